"""Permitted sizes: which numbers of GPUs a job may have, and what is left of an allocation at one."""

from collections.abc import Container
from dataclasses import dataclass

from stretto.model import Allocation, Constraints, IntArray, Job, lowest_gpus


@dataclass(frozen=True)
class PermittedSizes:
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


def shrink_allocation(
    allocation: Allocation,
    gpus: int,
    before: Allocation | None,
    kinds: IntArray,
    gives: Container[int] = (),
) -> Allocation:
    """So many GPUs of an allocation: those held before first, then those of the fullest nodes.

    Exactly what was held before where that is as many. Batch sizes and flexible workers are open again.
    kinds: (nodes,) their GPU types. gives: types of which GPUs are given up before others.
    """
    own = dict(zip(before.nodes, before.masks, strict=True)) if before is not None else {}
    # GPUs that the job holds now and keeps in the allocation.
    both = {
        node: mask & own.get(node, 0) for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
    }
    if (
        before is not None
        and before.gpus == gpus
        and all(both.get(node, 0) == mask for node, mask in own.items())
    ):
        return before
    # Of these first, then of the others, from the node that has most of the allocation.
    chosen: dict[int, int] = {}
    places = list(zip(allocation.nodes, allocation.masks, strict=True))
    stay = [place for place in places if int(kinds[place[0]]) not in gives]
    go = [place for place in places if int(kinds[place[0]]) in gives]
    for group, pool in ((stay, both), (stay, dict(places)), (go, both), (go, dict(places))):
        for node, _ in sorted(group, key=lambda pair: (-pair[1].bit_count(), pair[0])):
            rest = pool[node] & ~chosen.get(node, 0)
            count = min(rest.bit_count(), gpus - sum(map(int.bit_count, chosen.values())))
            if count > 0:
                chosen[node] = chosen.get(node, 0) | lowest_gpus(rest, count)
    nodes = tuple(sorted(chosen))
    return Allocation(int(kinds[nodes[0]]), nodes, tuple(chosen[node] for node in nodes), cpus=0.0)
