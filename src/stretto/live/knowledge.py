"""What the service knows of its jobs, as the views of a policy show it.

Nothing here is true by construction, as it is in the simulated world: durations are what owners state or
what the training itself says is left; speeds are what was measured, else what the catalogue or plain
proportion suggests.
"""

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

import numpy as np

from stretto.live.priors import limits_of, observations_of, prior_table
from stretto.live.records import JobRecord
from stretto.model import (
    Adaptivity,
    Cluster,
    Durations,
    Evidence,
    FloatArray,
    Learning,
    Progress,
    View,
    floats,
    ints,
)

USUAL_S = 3600.0  # a job of which nobody says how long it takes; chosen
LEAST_LEFT_S = 60.0  # what a job that outlives its stated time is believed to need still; chosen
_NO_METRICS = np.zeros(0)


def known(
    records: Sequence[JobRecord], cluster: Cluster, views: frozenset[View], now_s: float
) -> dict[str, Any]:
    """The columns of a job table that these views show."""
    columns: dict[str, Any] = {}
    if View.PROGRESS in views:
        columns["known_progress"] = _progress(records, now_s)
    if View.ORACLE_DURATION in views:
        columns["known_durations"] = _durations(records, now_s)
    if View.ESTIMATED_DURATION in views:
        columns["known_estimates"] = _durations(records, now_s)
    if View.REMAINING_WORK in views:
        columns["known_work"] = floats([_work_left(record, now_s) for record in records])
    if View.THROUGHPUT_TABLE in views or View.GOODPUT_MODEL in views:
        columns["known_tables"] = [prior_table(record, cluster) for record in records]
    if View.GOODPUT_MODEL in views:
        columns["known_evidence"] = [_evidence(record, cluster) for record in records]
    if View.LEARNING in views:
        columns["known_learning"] = _learning(records)
    if View.CPU_DEMAND in views:
        columns["known_cpu_demand"] = floats([_cpus_per_gpu(record) for record in records])
    return columns


def _progress(records: Sequence[JobRecord], now_s: float) -> Progress:
    books = [record.books for record in records]
    running_s = [now_s - one.held_since_s if one.held_gpus else 0.0 for one in books]
    return Progress(
        executed_s=floats([one.executed_s + s for one, s in zip(books, running_s, strict=True)]),
        attained_gpu_s=floats(
            [one.attained_gpu_s + one.held_gpus * s for one, s in zip(books, running_s, strict=True)]
        ),
        first_start_s=floats([one.first_start_s for one in books]),
        last_stop_s=floats([one.last_stop_s for one in books]),
        restarts=ints([max(record.books.starts, record.attempt, 1) - 1 for record in records]),
        largest_held_gpus=ints([one.largest_held for one in books]),
        epochs=ints([int(record.learned.latest.get("epoch", 0)) for record in records]),
        recovering=np.array([_recovers(record) for record in records], dtype=np.bool_),
        profiled_s=np.zeros(len(records)),
    )


def _recovers(record: JobRecord) -> bool:
    """Holds GPUs, but some of its workers do not train yet, or the wrong ones still do."""
    if not record.books.held_gpus:
        return False
    members = record.members
    if members.number:
        return any(record.workers[name].joined < members.number for name in members.workers)
    return not record.is_open or any(worker.began_s != worker.began_s for worker in record.alive)


def _durations(records: Sequence[JobRecord], now_s: float) -> Durations:
    """On what was asked for: as the owner states it, or as the training says that is left."""
    whole, left = np.full(len(records), USUAL_S), np.full(len(records), USUAL_S)
    for row, record in enumerate(records):
        stated_s = record.spec.expected_time_s or record.spec.max_time_s or USUAL_S
        books = record.books
        attained = books.attained_gpu_s
        if books.held_gpus:
            attained += books.held_gpus * (now_s - books.held_since_s)
        whole[row] = stated_s
        left[row] = max(stated_s - attained / record.job.gpus, min(LEAST_LEFT_S, stated_s))
        told = record.learned.latest.get("left_s")
        if told is not None and books.held_gpus and isfinite(told):
            left[row] = max(float(told) * books.held_gpus / record.job.gpus, 1.0)
            whole[row] = left[row] + attained / record.job.gpus
    return Durations(whole, left)


def _work_left(record: JobRecord, now_s: float) -> float:
    """Steps of the initial batch that are left where the stop rule says how many; else NaN."""
    latest, stop = record.learned.latest, record.spec.stop
    done = float(latest.get("progress_steps", latest.get("step", 0.0)))
    if stop is not None and stop.steps is not None:
        return max(stop.steps - done, 1.0)
    batch = float(latest.get("init_batch") or 0.0)
    dataset = float(latest.get("dataset_samples") or 0.0)
    epochs = None if stop is None else stop.epochs or stop.max_epochs
    if epochs is not None and batch and dataset:
        return max(epochs * dataset / batch - done, 1.0)
    return nan


def _evidence(record: JobRecord, cluster: Cluster) -> Evidence | None:
    """What a job has shown; None where it can only be as fast as a table says."""
    learned = record.learned
    if record.job.adaptivity is Adaptivity.RIGID and not learned.points and not learned.profile:
        return None
    limits = limits_of(record, cluster)
    if limits is None:
        return None
    latest = record.learned.latest
    fixed = record.job.adaptivity is not Adaptivity.ADAPTIVE
    return Evidence(
        limits=limits,
        observed=observations_of(record, len(cluster.types)),
        grad_sqr=float(latest.get("grad_sqr", nan)),
        grad_var=float(latest.get("grad_var", nan)),
        fixed_batch=int(latest.get("batch") or limits.init_batch) if fixed else 0,
    )


def _learning(records: Sequence[JobRecord]) -> Learning:
    def column(key: str) -> FloatArray:
        return floats([float(record.learned.latest.get(key, nan)) for record in records])

    return Learning(
        samples=column("samples"),
        dataset_samples=column("dataset_samples"),
        initial_loss=floats([record.learned.initial_loss for record in records]),
        loss=column("loss"),
        metric=column("metric"),
        history=[
            np.array(record.learned.metrics) if record.learned.metrics else _NO_METRICS for record in records
        ],
    )


def _cpus_per_gpu(record: JobRecord) -> float:
    cpus = record.spec.resources.cpus
    return nan if cpus is None else cpus / record.job.gpus
