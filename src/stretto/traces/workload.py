"""A workload: what was asked for, what will really happen (hidden from policies), and what it needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import nan

from stretto.model import Adaptivity, Cluster, InputError, Job
from stretto.model.equality import equal_as_tuples
from stretto.traces.learning import LearningCurve


class Outcome(StrEnum):
    """How a job ended in the trace."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@equal_as_tuples
@dataclass(frozen=True, slots=True)
class Truth:
    """What a job will really do. NaN or empty: it follows from the profiles or the catalogue of its model."""

    duration_s: float = nan  # from start to end on the GPUs asked for, uninterrupted
    gpu_type: str = ""  # the type on which that was measured; "" = on any, at that type's relative speed 1
    steps: float = nan  # optimiser steps at the submitted batch size, where the trace says
    outcome: Outcome = Outcome.COMPLETED
    learning: LearningCurve | None = None  # what it reports while it trains
    cpus_per_gpu: float = nan  # cores at which it is at its fastest; NaN: cores make no difference


@dataclass(frozen=True, eq=False)
class Workload:
    """Jobs by submission, then id, and the truth of each."""

    name: str
    jobs: Sequence[Job]
    truths: Sequence[Truth]
    source: str = ""  # where it comes from, for people
    synthetic: bool = False  # made, not recorded
    skipped: Sequence[str] = ()  # rows that were left out, and why


# ── can a cluster run these jobs at all? ──────────────────────────────────────────────────────────


def check_against(workload: Workload, cluster: Cluster, skip_bad: bool = False) -> Workload:
    """The workload, where every job could run on the cluster if it were empty.

    A job must name GPU types that the cluster has, and fit on one type that it accepts. A rigid job fits with
    all its GPUs, another with its least. Raises InputError for the first that does not, or leaves them all
    out and lists them in `skipped`.
    """
    reach = reach_of(cluster)
    problems: dict[int, str] = {}
    for row, job in enumerate(workload.jobs):
        problem = _problem(job, cluster, reach)
        if problem and not skip_bad:
            raise InputError(f"{workload.name}: {problem}")
        if problem:
            problems[row] = problem
    if not problems:
        return workload
    rows = [row for row in range(len(workload.jobs)) if row not in problems]
    if not rows:
        raise InputError(f"{workload.name}: no job can run on cluster {cluster.name}: {problems[0]}")
    return replace(
        workload,
        jobs=tuple(workload.jobs[row] for row in rows),
        truths=tuple(workload.truths[row] for row in rows),
        skipped=(*workload.skipped, *problems.values()),
    )


def reach_of(cluster: Cluster) -> tuple[int, ...]:
    """(types,) the most GPUs of each type that one job can hold."""
    return tuple(
        min(int(capacity), gpu_type.max_nodes_per_job * int(per_node))
        if gpu_type.max_nodes_per_job
        else int(capacity)
        for gpu_type, capacity, per_node in zip(
            cluster.types, cluster.capacity, cluster.gpus_per_node, strict=True
        )
    )


def _problem(job: Job, cluster: Cluster, reach: Sequence[int]) -> str:
    """Why a job can never run; "" if it can."""
    accepted = list(range(len(cluster.types)))
    if job.gpu_types:
        try:
            accepted = sorted({cluster.type_index(name) for name in job.gpu_types})
        except InputError as error:
            return f"job {job.id}: {error}"
    needed = job.gpus if job.adaptivity is Adaptivity.RIGID else job.min_gpus
    most = max(reach[index] for index in accepted)
    if needed <= most:
        return ""
    if needed > cluster.total_gpus:
        return f"job {job.id}: gpus must be at most the {cluster.total_gpus} of {cluster.name}, got {needed}"
    names = ", ".join(cluster.type_names[index] for index in accepted)
    return (
        f"job {job.id}: gpus must be at most {most}, what one job can have of one type ({names}) "
        f"of {cluster.name}, got {needed}"
    )
