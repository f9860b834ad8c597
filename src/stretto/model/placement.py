"""Which job holds which GPUs of which nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stretto.model.arrays import IntArray, frozen
from stretto.model.cluster import Cluster
from stretto.model.errors import BadPlan
from stretto.model.job import JobId


@dataclass(frozen=True, slots=True)
class Allocation:
    """Named GPUs of one type held by one job.

    `nodes` are indices into the cluster's nodes in increasing order; bit `g` of `masks[i]` stands for GPU `g`
    of `nodes[i]`. No mask is empty.
    """

    kind: int  # index of the GPU type
    nodes: tuple[int, ...]
    masks: tuple[int, ...]
    local_batch: tuple[int, ...] = ()  # samples on each GPU, in order, where the policy chose them (ONES)

    @property
    def shape(self) -> tuple[int, ...]:
        """GPUs on each node, in the order of the nodes."""
        return tuple(mask.bit_count() for mask in self.masks)

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(mask.bit_count() for mask in self.masks)


class Placement(Mapping[JobId, Allocation]):
    """Every allocation at one moment: an immutable mapping that also knows what is free."""

    __slots__ = ("_held", "busy", "cluster")

    def __init__(self, cluster: Cluster, held: dict[JobId, Allocation], busy: IntArray) -> None:
        """Use `no_placement` and `changed`; this takes its parts as they are."""
        self.cluster = cluster
        self._held = held
        self.busy = frozen(busy)  # (nodes,) bit g set: GPU g is held

    def __getitem__(self, job: JobId) -> Allocation:
        """The allocation of a job; KeyError where it holds nothing."""
        return self._held[job]

    def __iter__(self) -> Iterator[JobId]:
        """Jobs that hold something, in the order in which they came to."""
        return iter(self._held)

    def __len__(self) -> int:
        """The number of jobs that hold something."""
        return len(self._held)

    @property
    def free(self) -> IntArray:
        """(nodes,) GPUs that nobody holds."""
        return self.cluster.node_gpus - np.bitwise_count(self.busy).astype(np.int64)

    @property
    def free_by_kind(self) -> IntArray:
        """(types,) GPUs that nobody holds."""
        return np.bincount(self.cluster.kind, self.free, len(self.cluster.types)).astype(np.int64)

    def changed(self, changes: Mapping[JobId, Allocation | None]) -> "Placement":
        """This placement with some jobs' allocations replaced (None: taken away).

        All that goes is released before anything is taken. Raises BadPlan where a GPU would be held twice
        or does not exist.
        """
        held = self._held.copy()
        busy = self.busy.copy()
        for job in changes:
            before = held.pop(job, None)
            if before is not None:
                for node, mask in zip(before.nodes, before.masks, strict=True):
                    busy[node] &= ~mask
        for job, after in changes.items():
            if after is None:
                continue
            for node, mask in zip(after.nodes, after.masks, strict=True):
                taken = int(busy[node])
                if taken & mask or mask >> int(self.cluster.node_gpus[node]):
                    raise BadPlan(
                        f"job {job} is given GPUs {mask:b} of node {node}, where {taken:b} are held"
                    )
                busy[node] = taken | mask
            held[job] = after
        return Placement(self.cluster, held, busy)


def no_placement(cluster: Cluster) -> Placement:
    """Nobody holds anything."""
    return Placement(cluster, {}, np.zeros(len(cluster.nodes), dtype=np.int64))


def lowest_gpus(free_mask: int, count: int) -> int:
    """The `count` lowest set bits of a mask of free GPUs."""
    taken = 0
    for _ in range(count):
        lowest = free_mask & -free_mask
        taken |= lowest
        free_mask ^= lowest
    return taken
