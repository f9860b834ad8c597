"""Workers of several GPUs: a job has whole ones, each on one node, also where their size differs by type.

Sia gives a hybrid-parallel job whole replicas of the size of each type (SOSP 2023, section 3.4). Other
policies know one size for a job. They are shown one that makes whole workers on every type, so that whatever
type they choose suits.
"""

from dataclasses import replace
from math import lcm

import numpy as np

from stretto.model import UNLIMITED_GPUS, Allocation, Job, Placement, Snapshot, Why, lowest_gpus
from stretto.scheduler.constraints.context import DecisionContext
from stretto.scheduler.constraints.job_rows import select_jobs


def show_one_size(snapshot: Snapshot) -> Snapshot:
    """The snapshot in which every job grows and shrinks by a number that suits all its types."""
    if not snapshot.jobs.requests.any_varies:
        return snapshot
    varying = np.flatnonzero(snapshot.jobs.varies_by_type).tolist()
    if not varying:
        return snapshot
    names, ranges_kept = snapshot.cluster.type_names, snapshot.constraints.ranges_kept
    changed = {
        row: in_one_size(snapshot.jobs[row], names, snapshot.cluster.gpus_per_node.tolist(), ranges_kept)
        for row in varying
    }
    rows = np.arange(len(snapshot.jobs))
    jobs = select_jobs(snapshot.jobs, rows, changed, snapshot.placement)
    return replace(
        snapshot, jobs=jobs, worker_sizes={changed[row].id: snapshot.worker_gpus(row) for row in varying}
    )


def in_one_size(
    job: Job, type_names: tuple[str, ...], gpus_per_node: list[int], range_kept: bool = True
) -> Job:
    """A job in multiples of a number that makes whole workers on every type that it may have then.

    Types of the largest workers are left out where the job may not have so many GPUs. So are those of which
    no number of whole workers lies in its range. range_kept: if not, as older logs were decided, these stay,
    and a policy may be shown a size below the range.
    """
    least = job.min_gpus if range_kept else 1

    def has_whole(names: list[str]) -> bool:
        each = lcm(*(job.replica_gpus[name] for name in names))
        return job.max_gpus // each * each >= least

    allowed = [
        name
        for name, most in zip(type_names, gpus_per_node, strict=True)
        if name in job.replica_gpus
        and job.replica_gpus[name] <= most
        and name in (job.gpu_types or type_names)
    ]
    # A multiple of all sizes may be more than the job may have: the types of the largest workers go first.
    allowed.sort(key=lambda name: job.replica_gpus[name])
    if range_kept:
        allowed = [name for name in allowed if has_whole([name])] or allowed
    while len(allowed) > 1 and not has_whole(allowed):
        allowed.pop()
    each = lcm(*(job.replica_gpus[name] for name in allowed)) if allowed else job.gpus_per_worker
    most = job.max_gpus if job.max_gpus == UNLIMITED_GPUS else max(job.max_gpus // each, 1) * each
    fewest = min(-(-job.min_gpus // each) * each, most)
    return replace(
        job,
        min_gpus=fewest,
        max_gpus=most,
        gpus=max(fewest, min(-(-job.gpus // each) * each, most)),
        gpus_per_worker=each,
        replica_gpus={},
        gpu_types=tuple(name for name in type_names if name in allowed) or job.gpu_types,
    )


def keep_whole_workers(context: DecisionContext, placement: Placement) -> Placement:
    """The placement in which every job has whole workers, each on one node; GPUs that make none stay free.

    A job that is left with too few waits. Only where the world asks for it, or workers differ by type.
    """
    names, large = context.snapshot.cluster.type_names, context.snapshot.large_workers
    for row in np.flatnonzero(large).tolist() if large is not None else ():
        job = context.jobs[row]
        allocation = placement.get(job.id)
        if allocation is None or allocation.flexible:
            continue
        gpu_type = names[allocation.kind]
        if whole_workers_of(allocation, context.snapshot.worker_gpus(row)[allocation.kind]) is allocation:
            continue
        whole = whole_workers_of(allocation, job.worker_gpus(gpu_type))
        if whole is allocation:
            continue
        before = context.snapshot.placement.get(job.id)
        # What it holds already it keeps, also below the least size: only new placements are refused.
        if whole is None or (whole.gpus < job.fewest_gpus(gpu_type) and before != whole):
            whole = None
        placement = placement.changed({job.id: whole})
        if whole is None:
            each = job.worker_gpus(gpu_type)
            context.why[row] = (Why.FRAGMENTED, f"a worker needs {each} GPUs of one node of {gpu_type}")
    return placement


def whole_workers_of(allocation: Allocation, each: int) -> Allocation | None:
    """As many GPUs of each node as make whole workers; None where no node has enough for one."""
    counts = [gpus // each * each for gpus in allocation.shape]
    if counts == list(allocation.shape):
        return allocation
    kept = [
        (node, lowest_gpus(mask, gpus))
        for node, mask, gpus in zip(allocation.nodes, allocation.masks, counts, strict=True)
        if gpus
    ]
    if not kept:
        return None
    nodes, masks = zip(*kept, strict=True)
    return replace(allocation, nodes=nodes, masks=masks, local_batch=(), cpus=0.0)
