"""What jobs of lower priority can give up, in which order, and what is left of one that has given."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stretto.model import Allocation, Cluster, IntArray, Job, JobId, Placement
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.sizes import PermittedSizes, shrink_allocation


@dataclass(frozen=True)
class Victim:
    """A job of lower priority that holds GPUs and may be preempted."""

    row: int
    job: Job
    held: Allocation


@dataclass(frozen=True)
class Claim:
    """GPUs that were given back for a job of a queue with a quota: higher jobs leave them to it."""

    job: JobId
    priority: int
    masks: Mapping[int, int]  # by node


@dataclass
class Budget:
    """GPUs that others may take from each queue: what it holds beyond its guaranteed quota.

    own: a queue whose own jobs are served; among themselves no guarantee holds, nor one of what it is in.
    """

    hierarchy: Hierarchy
    usage: dict[str, int]  # GPUs of queues with a quota, with all that is in them
    own: str | None = None

    def of(self, queue: str) -> int | None:
        """How many GPUs may still be taken; None: any number."""
        spare = self.hierarchy.spare(self.usage, queue, beside=self.own)
        return None if spare is None else max(spare, 0)

    def spend(self, queue: str, gpus: int) -> None:
        """So many are taken."""
        self.hierarchy.add(self.usage, queue, -gpus)


def offer(
    victims: list[Victim],
    cluster: Cluster,
    sizes: PermittedSizes,
    budget: Budget,
    *,
    stops: bool,
    needed: IntArray | None = None,
) -> IntArray:
    """(nodes,) masks of GPUs that victims can give up, in their order, in place first.

    stops: jobs may be stopped; else each keeps its least size. needed: (types,) no more than so many. Where
    jobs can only be stopped as a whole it may be more. Then those that are spared come off in reverse order.
    """
    missing = None if needed is None else needed.copy()
    left: dict[int, Allocation | None] = {}  # by row of a victim that gives something
    # First all are made smaller, then they are stopped.
    for stopping in (False, True) if stops else (False,):
        for victim in victims:
            if missing is not None and not (missing > 0).any():
                break
            before = left.get(victim.row, victim.held)
            after = _reduced_further(victim, before, cluster, sizes, budget, missing, stopping)
            if after is not None:
                left[victim.row] = after[0]
    if missing is not None and (missing < 0).any():
        _spare(victims, left, cluster, budget, missing)
    masks = np.zeros(len(cluster.nodes), dtype=np.int64)
    for victim in victims:
        if victim.row in left:
            add_masks(masks, without(victim.held, left[victim.row]))
    return masks


def _reduced_further(
    victim: Victim,
    allocation: Allocation | None,
    cluster: Cluster,
    sizes: PermittedSizes,
    budget: Budget,
    missing: IntArray | None,
    stops: bool,
) -> tuple[Allocation | None] | None:
    """What a victim keeps once it has given what it can; None where it gives nothing more.

    Takes what it gives off the budget and off what is missing.
    """
    if allocation is None:
        return None
    # At most what is missing of its type, and what its queue may lose.
    most = allocation.gpus
    if missing is not None:
        gpu_types = np.unique(cluster.kind[list(allocation.nodes)])
        most = min(most, int(np.maximum(missing[gpu_types], 0).sum()))
    allowed = budget.of(victim.job.queue)
    if allowed is not None:
        most = min(most, allowed) if not stops else most
    if most <= 0:
        return None
    if stops:
        if allowed is not None and allocation.gpus > allowed:
            return None
        size = 0
    else:
        # The largest permitted size that gives so much, at least its smallest one.
        size = sizes.at_most(victim.job, allocation.gpus - most) or sizes.at_least(victim.job, 0)
        if allowed is not None and allocation.gpus - size > allowed:
            size = sizes.at_least(victim.job, allocation.gpus - allowed)
        if size >= allocation.gpus:
            return None
    after = shrink_allocation(allocation, size, allocation, cluster.kind) if size else None
    budget.spend(victim.job.queue, allocation.gpus - size)
    if missing is not None:
        missing -= gpus_by_type(without(allocation, after), cluster)
    return (after,)


def _spare(
    victims: list[Victim],
    left: dict[int, Allocation | None],
    cluster: Cluster,
    budget: Budget,
    missing: IntArray,
) -> None:
    """A job that would be stopped for nothing keeps what it has: those that give last come first."""
    for victim in reversed(victims):
        if victim.row in left and left[victim.row] is None:
            given_up = gpus_by_type(victim.held, cluster)
            if (missing + given_up <= 0).all():
                missing += given_up
                budget.spend(victim.job.queue, -victim.held.gpus)
                del left[victim.row]


def reduced(victim: Victim, used: IntArray, cluster: Cluster, sizes: PermittedSizes) -> Allocation | None:
    """What a victim keeps once others use some of its GPUs: the largest size in place, or nothing.

    used: (nodes,) masks.
    """
    rest = {
        node: mask & ~int(used[node])
        for node, mask in zip(victim.held.nodes, victim.held.masks, strict=True)
        if mask & ~int(used[node])
    }
    size = sizes.at_most(victim.job, sum(map(int.bit_count, rest.values())))
    if not size or victim.held.profiling:
        return None
    nodes = tuple(rest)
    left = Allocation(int(cluster.kind[nodes[0]]), nodes, tuple(rest.values()), cpus=0.0)
    return left if left.gpus == size else shrink_allocation(left, size, None, cluster.kind)


def gpus_by_queue(jobs: Iterable[Job], placement: Placement, hierarchy: Hierarchy) -> dict[str, int]:
    """GPUs that each queue with a quota holds, with all that is in it. jobs: all whose GPUs count."""
    usage = dict.fromkeys(hierarchy.queues, 0)
    for job in jobs if usage else ():
        if job.id in placement:
            hierarchy.add(usage, job.queue, placement[job.id].gpus)
    return usage


# ── masks ─────────────────────────────────────────────────────────────────────────────────────────


def without(held: Allocation, kept: Allocation | None) -> Mapping[int, int]:
    """By node, the GPUs of an allocation that are not kept."""
    own = {} if kept is None else dict(zip(kept.nodes, kept.masks, strict=True))
    return {
        node: mask & ~own.get(node, 0)
        for node, mask in zip(held.nodes, held.masks, strict=True)
        if mask & ~own.get(node, 0)
    }


def add_masks(masks: IntArray, more: Mapping[int, int]) -> None:
    """Set the bits of some nodes, in place."""
    for node, mask in more.items():
        masks[node] |= mask


def remove_masks(masks: IntArray, allocations: Iterable[Allocation]) -> None:
    """Clear the bits of some allocations, in place."""
    for allocation in allocations:
        masks[list(allocation.nodes)] &= ~np.array(allocation.masks, dtype=np.int64)


def gpus_by_type(gpus: Mapping[int, int] | Allocation, cluster: Cluster) -> IntArray:
    """(types,) how many GPUs these are. gpus: by node, masks; or an allocation."""
    pairs = zip(gpus.nodes, gpus.masks, strict=True) if isinstance(gpus, Allocation) else gpus.items()
    counts = np.zeros(len(cluster.types), dtype=np.int64)
    for node, mask in pairs:
        counts[cluster.kind[node]] += mask.bit_count()
    return counts
