"""Jobs of a trace as job files, so that a service with an emulated backend does what the trace says."""

import json
from math import isnan
from typing import Any

from stretto.jobfile.to_job import JOB_KEYS
from stretto.model import UNLIMITED_GPUS, Adaptivity, Cluster, Job, Purpose
from stretto.service.emulated.truth import DURATION
from stretto.traces.workload import Truth


def job_file(job: Job, truth: Truth, cluster: Cluster, epochs: int = 0) -> str:
    """The text to submit for one job; times of rewards are counted from the submission.

    Its queue and priority class are named, so the service has to know them. The caller that submits it is its
    user. cluster: on which it is to run. A duration that was recorded on a GPU type is put in terms of speed
    1. epochs: of a training that runs by its model; 0: the file does not say.
    """
    types: list[str] = list(job.gpu_types)
    entries: dict[str, Any] = {
        "name": _name(job.id),
        "run": "true  # emulated",
        "resources": {
            "accelerators": [f"{name}:{job.gpus}" for name in types] if types else str(job.gpus),
            "gpus_per_worker": job.gpus_per_worker,
            **({"heterogeneous": True} if job.heterogeneous else {}),
        },
        "kind": job.kind.value,
        "priority": job.priority_class or job.priority,
        "queue": job.queue,
        "preemptible": job.preemptible,
        "labels": {},
        **{name: getattr(job, name) for name in JOB_KEYS},
    }
    if job.checkpoints:
        entries["checkpoint"] = {"every": "10m"}
    if job.adaptivity is not Adaptivity.RIGID:
        most = {} if job.max_gpus == UNLIMITED_GPUS else {"max": job.max_gpus}
        entries["elastic"] = {"min": job.min_gpus, **most}
    batch: dict[str, Any] = {"init": job.batch_size} if job.batch_size else {}
    if job.adaptivity is Adaptivity.ADAPTIVE and job.purpose is Purpose.TRAINING:
        batch["policy"] = "adaptive"
    if batch:
        entries["batch"] = batch
    if job.purpose is Purpose.SERVING:
        entries["serving"] = {
            "latency": f"{job.latency_s * 1e3:.6f}ms",
            "requests_per_s": job.requests_per_s,
        }
    by_clock = job.purpose is Purpose.TRAINING and not isnan(truth.duration_s)
    if job.purpose is not Purpose.SERVING and not by_clock and not isnan(truth.steps):
        entries["stop"] = {"steps": max(round(truth.steps), 1)}
    elif job.purpose is Purpose.TRAINING and not by_clock and epochs:
        entries["stop"] = {"epochs": epochs}
    if not isnan(truth.duration_s):
        speed = cluster.types[cluster.type_index(truth.gpu_type)].speed if truth.gpu_type else 1.0
        duration_s = max(truth.duration_s * speed, 1.0)
        entries["expected_time"] = f"{duration_s:.3f}s"
        entries["labels"] = {DURATION: repr(duration_s)}
    if job.rewards:
        entries["rewards"] = [
            {"by": f"{reward.deadline_s - job.submitted_s:.3f}s", "worth": reward.value}
            for reward in job.rewards
        ]
    return json.dumps({key: value for key, value in entries.items() if value not in ("", {}, None)})


def _name(text: str) -> str:
    """A trace's id as far as a name may be like it."""
    return "".join(char if char.isalnum() and char.isascii() else "-" for char in text)[:63] or "job"
