"""What jobs of lower priority can give up, in which order, and what becomes of one that has given."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stretto.model import Allocation, Cluster, Constraints, IntArray, Job, JobId, Placement
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.shrinking import kept_of


@dataclass(frozen=True)
class Sizes:
    """Which sizes a job may have."""

    constraints: Constraints

    def at_most(self, job: Job, gpus: int) -> int:
        """The largest size of at most so many GPUs; 0: none."""
        size = self.constraints.permitted(job.id, gpus // job.gpus_per_worker * job.gpus_per_worker)
        return size if size >= job.min_gpus else 0

    def at_least(self, job: Job, gpus: int) -> int:
        """The smallest size of at least so many GPUs; more than there can be: none."""
        sizes = self.constraints.sizes.get(job.id)
        gpus = max(gpus, job.min_gpus)
        if sizes is None:
            return -(-gpus // job.gpus_per_worker) * job.gpus_per_worker
        return min((size for size in sizes if size >= gpus), default=1 << 31)


@dataclass(frozen=True)
class Holder:
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
    held: dict[str, int]  # GPUs of queues with a quota, with all that is in them
    own: str | None = None

    def of(self, queue: str) -> int | None:
        """How many GPUs may still be taken; None: any number."""
        spare = self.hierarchy.spare(self.held, queue, beside=self.own)
        return None if spare is None else max(spare, 0)

    def spend(self, queue: str, gpus: int) -> None:
        """So many are taken."""
        self.hierarchy.add(self.held, queue, -gpus)


def offered_by(
    holders: list[Holder],
    cluster: Cluster,
    sizes: Sizes,
    budget: Budget,
    *,
    stops: bool,
    needed: IntArray | None = None,
) -> IntArray:
    """(nodes,) masks of GPUs that holders can give up, in their order, in place first.

    stops: jobs may be stopped; else each keeps its least size. needed: (types,) no more than so many; where
    jobs can only be stopped as a whole it may be more, then those that are spared come off in reverse order.
    """
    left = None if needed is None else needed.copy()
    taken: dict[int, Allocation | None] = {}
    for final in (False, True) if stops else (False,):
        for holder in holders:
            if left is not None and not (left > 0).any():
                break
            after = _after(holder, taken.get(holder.row, holder.held), cluster, sizes, budget, left, final)
            if after is not None:
                taken[holder.row] = after[0]
    if left is not None and (left < 0).any():
        _spare(holders, taken, cluster, budget, left)
    masks = np.zeros(len(cluster.nodes), dtype=np.int64)
    for holder in holders:
        if holder.row in taken:
            add_masks(masks, without(holder.held, taken[holder.row]))
    return masks


def _after(
    holder: Holder,
    held: Allocation | None,
    cluster: Cluster,
    sizes: Sizes,
    budget: Budget,
    left: IntArray | None,
    stops: bool,
) -> tuple[Allocation | None] | None:
    """What the holder keeps once it has given what it can; None where it gives nothing more."""
    if held is None:
        return None
    most = held.gpus
    if left is not None:
        kinds = np.unique(cluster.kind[list(held.nodes)])
        most = min(most, int(np.maximum(left[kinds], 0).sum()))
    allowed = budget.of(holder.job.queue)
    if allowed is not None:
        most = min(most, allowed) if not stops else most
    if most <= 0:
        return None
    if stops:
        if allowed is not None and held.gpus > allowed:
            return None
        size = 0
    else:
        size = sizes.at_most(holder.job, held.gpus - most) or sizes.at_least(holder.job, 0)
        if allowed is not None and held.gpus - size > allowed:
            size = sizes.at_least(holder.job, held.gpus - allowed)
        if size >= held.gpus:
            return None
    after = kept_of(held, size, held) if size else None
    budget.spend(holder.job.queue, held.gpus - size)
    if left is not None:
        left -= by_kind(without(held, after), cluster)
    return (after,)


def _spare(
    holders: list[Holder],
    taken: dict[int, Allocation | None],
    cluster: Cluster,
    budget: Budget,
    left: IntArray,
) -> None:
    """Whoever was to be stopped for nothing keeps what it has: those that would be taken last come first."""
    for holder in reversed(holders):
        if holder.row in taken and taken[holder.row] is None:
            given = by_kind(holder.held, cluster)
            if (left + given <= 0).all():
                left += given
                budget.spend(holder.job.queue, -holder.held.gpus)
                del taken[holder.row]


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


def by_kind(gpus: Mapping[int, int] | Allocation, cluster: Cluster) -> IntArray:
    """(types,) how many GPUs these are. gpus: by node, masks; or an allocation."""
    pairs = zip(gpus.nodes, gpus.masks, strict=True) if isinstance(gpus, Allocation) else gpus.items()
    counts = np.zeros(len(cluster.types), dtype=np.int64)
    for node, mask in pairs:
        counts[cluster.kind[node]] += mask.bit_count()
    return counts


def reduced(holder: Holder, used: IntArray, cluster: Cluster, sizes: Sizes) -> Allocation | None:
    """What a holder keeps once others use some of its GPUs: the largest size in place, or nothing.

    used: (nodes,) masks.
    """
    rest = {
        node: mask & ~int(used[node])
        for node, mask in zip(holder.held.nodes, holder.held.masks, strict=True)
        if mask & ~int(used[node])
    }
    size = sizes.at_most(holder.job, sum(map(int.bit_count, rest.values())))
    if not size or holder.held.profiling:
        return None
    nodes = tuple(rest)
    left = Allocation(int(cluster.kind[nodes[0]]), nodes, tuple(rest.values()), cpus=0.0)
    return left if left.gpus == size else kept_of(left, size, None)


def gpus_by_queue(jobs: list[Job], placement: Placement, hierarchy: Hierarchy) -> dict[str, int]:
    """GPUs that each queue with a quota holds, with all that is in it. jobs: all whose GPUs count."""
    held = dict.fromkeys(hierarchy.queues, 0)
    for job in jobs if held else ():
        if job.id in placement:
            hierarchy.add(held, job.queue, placement[job.id].gpus)
    return held
