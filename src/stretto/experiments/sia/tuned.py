"""The jobs of Sia's workloads, tuned anew for a uniform cluster: its TunedJobs (section 4.3).

The authors' files have the GPUs and batches that were tuned for the mixed cluster, 16 GPUs at most. For the
uniform one the paper tunes them again, with up to 64. Both are drawn among those whose runtime is 50 to 80 %
of the ideal: the speed-up over one GPU with its best batch.
"""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stretto.model import Job
from stretto.sim.run import Setup
from stretto.sim.setup import truth_of
from stretto.sim.truth.training import TrainingTruth
from stretto.traces.makers import LEAST, MOST_GPUS_HOMO, Request, draw_request
from stretto.traces.workload import Workload

SEED = 17  # of the draw; chosen
HOUR_S = 3_600.0


def tuned_jobs(workload: Workload, setup: Setup, number: int) -> list[Job]:
    """The jobs with GPUs and batches drawn for the only type of a cluster. number: of the file, its draw."""
    rng = np.random.default_rng([SEED, number])
    choices = {model: requests_of(truth) for model, truth in _truths(workload.jobs, setup).items()}
    drawn = [draw_request(choices[job.model], rng) for job in workload.jobs]
    return [
        replace(job, gpus=asked.gpus, batch_size=asked.batch_size)
        for job, asked in zip(workload.jobs, drawn, strict=True)
    ]


def requests_of(truth: TrainingTruth, most_gpus: int = MOST_GPUS_HOMO) -> list[Request]:
    """Every even number of GPUs with every batch (the first one times a power of two) that can run."""
    doublings = int(np.log2(truth.limits.max_batch / truth.limits.init_batch))
    batches = [truth.limits.init_batch << power for power in range(doublings + 1)]
    ideal_s = one_gpu_s(truth)
    tried = [(gpus, batch) for gpus in range(2, most_gpus + 1, 2) for batch in batches]
    return [
        Request(gpus, batch, ends_s[-1], ideal_s / ends_s[-1] / gpus)
        for gpus, batch in tried
        if (ends_s := truth.alone_s(0, gpus, batch))
    ]


def one_gpu_s(truth: TrainingTruth) -> float:
    """Seconds of a training on one GPU with the batch that is best there."""
    doublings = int(np.log2(truth.limits.max_batch / truth.limits.init_batch))
    ends_s = [truth.alone_s(0, 1, truth.limits.init_batch << power) for power in range(doublings + 1)]
    return min(each[-1] for each in ends_s if each)


def alone_gpu_hours(jobs: Sequence[Job], setup: Setup) -> float:
    """GPU hours of a mean job on the GPUs and the batch that it asks for, where nothing is ever lost."""
    truths = _truths(jobs, setup)
    hours = [truths[job.model].alone_s(0, job.gpus, job.batch_size)[-1] * job.gpus for job in jobs]
    return float(np.mean(hours)) / HOUR_S


def most_gpu_hours(jobs: Sequence[Job], setup: Setup) -> float:
    """GPU hours of a mean job that is tuned as badly as is allowed: to half of the ideal."""
    truths = _truths(jobs, setup)
    return float(np.mean([one_gpu_s(truths[job.model]) for job in jobs])) / LEAST / HOUR_S


def write_workload(jobs: Sequence[Job], path: Path) -> None:
    """Write them as Sia's authors publish theirs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("name", "time", "application", "num_replicas", "batch_size"))
        rows.writerows((job.id, job.submitted_s, job.model, job.gpus, job.batch_size) for job in jobs)


def _truths(jobs: Sequence[Job], setup: Setup) -> dict[str, TrainingTruth]:
    """By model, on the cluster of a setup."""
    of_model = {job.model: job for job in jobs}
    return {model: truth_of(job, setup.cluster, setup.sim, setup.profiles) for model, job in of_model.items()}
