"""Sia's jobs are tuned anew for a uniform cluster as its paper says, and written as its authors do."""

from pathlib import Path

import numpy as np
import pytest

from stretto.experiments.sia.tuned import (
    alone_gpu_hours,
    most_gpu_hours,
    one_gpu_s,
    requests_of,
    tuned_jobs,
    write_workload,
)
from stretto.experiments.spec import RunSpec, set_up
from stretto.sim.run import Setup
from stretto.sim.setup import truth_of
from stretto.traces.makers import LEAST, MOST
from stretto.traces.workload import Workload

UNIFORM = "sia-homo-64"
Made = tuple[Workload, Setup]


@pytest.fixture(scope="module")
def made() -> Made:
    return set_up(RunSpec(UNIFORM, "synthetic-sia:jobs=60,hours=3,seed=4", "gavel"))


def test_a_tuned_job_gains_between_half_and_four_fifths_of_the_ideal(made: Made) -> None:
    workload, setup = made
    shares = []
    for job in tuned_jobs(workload, setup, number=0):
        truth = truth_of(job, setup.cluster, setup.sim, setup.profiles)
        took_s = truth.alone_s(0, job.gpus, job.batch_size)[-1]
        shares.append(one_gpu_s(truth) / took_s / job.gpus)
    assert np.all((np.array(shares) >= LEAST) & (np.array(shares) <= MOST))
    assert len(set(shares)) > len({job.model for job in workload.jobs}), "equal jobs ask for different things"


def test_it_may_ask_for_all_of_the_cluster_and_the_draw_is_of_the_file(made: Made) -> None:
    workload, setup = made
    truth = truth_of(workload.jobs[0], setup.cluster, setup.sim, setup.profiles)
    assert max(one.gpus for one in requests_of(truth)) == setup.cluster.total_gpus
    draws = [tuned_jobs(workload, setup, number) for number in (0, 0, 1)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert [job.id for job in draws[0]] == [job.id for job in workload.jobs]


def test_tuned_jobs_that_lose_nothing_take_less_than_those_at_the_lower_limit(made: Made) -> None:
    workload, setup = made
    tuned = tuned_jobs(workload, setup, number=0)
    most_h = most_gpu_hours(workload.jobs, setup)
    assert LEAST / MOST * most_h <= alone_gpu_hours(tuned, setup) <= most_h


def test_what_is_written_is_read_as_the_same_jobs(made: Made, tmp_path: Path) -> None:
    workload, setup = made
    tuned = tuned_jobs(workload, setup, number=0)
    path = tmp_path / "tuned-0.csv"
    write_workload(tuned, path)
    read = set_up(RunSpec(UNIFORM, str(path), "gavel"))[0].jobs
    assert [(job.id, job.model, job.gpus, job.batch_size, job.submitted_s) for job in read] == [
        (job.id, job.model, job.gpus, job.batch_size, job.submitted_s) for job in tuned
    ]
