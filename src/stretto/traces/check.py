"""Can this cluster run these jobs at all?"""

from collections.abc import Sequence
from dataclasses import replace

from stretto.model import Adaptivity, Cluster, InputError, Job
from stretto.traces.workload import Workload


def check_against(workload: Workload, cluster: Cluster, skip_bad: bool = False) -> Workload:
    """The workload, where every job could run on the cluster if it were empty.

    A job must name GPU types that the cluster has, and fit on one type that it accepts: a rigid one with all
    its GPUs, another with its least. Raises InputError for the first that does not, or leaves them all out
    and lists them in `skipped`.
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
    kept = [row for row in range(len(workload.jobs)) if row not in problems]
    if not kept:
        raise InputError(f"{workload.name}: no job can run on cluster {cluster.name}: {problems[0]}")
    return replace(
        workload,
        jobs=tuple(workload.jobs[row] for row in kept),
        truths=tuple(workload.truths[row] for row in kept),
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
