"""Nodes that are not split into virtual nodes, since a job asks for what only a whole one has.

A node of 6 GPUs counts as virtual nodes of 4 and 2 (section 3.3), and neither has room for 5 or 6 GPUs. A
job that may have other sizes does without. One that asks for exactly 6 needs the node as it is.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stretto.model import BoolArray, Cluster, IntArray, Snapshot, Speeds, frozen
from stretto.policies.sia.requests import GpuRequests

NO_LIMIT = 1 << 62  # GPUs: more than a node has


@dataclass(frozen=True)
class Unsplit:
    """Nodes that count as a whole: as many as jobs need that ask for what no virtual node has.

    Of each type they are one pool, from which any number of GPUs is taken. As with odd numbers on nodes of 8,
    what the counts allow may then fit no node. All others keep their virtual nodes, where it always does.
    """

    nodes: tuple[int, ...]  # indices, ascending
    sizes: tuple[tuple[int, ...], ...]  # by type, GPUs of these nodes beside jobs that stay, largest first

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds) -> "Unsplit":
        """Those for the jobs of a snapshot; none where the GPUs of every node are a power of two."""
        cluster, jobs = snapshot.cluster, snapshot.jobs
        odd = odd_kinds(cluster)
        if not odd.any() or not len(jobs):
            return cls((), ((),) * len(cluster.types))
        runs = jobs.held_gpus > 0
        stays = runs & (jobs.progress.recovering | ~jobs.preemptible)
        asks = GpuRequests.of(snapshot, speeds, np.arange(len(jobs)))
        rows = np.flatnonzero(asks.fixed & ~stays)
        # Those that run come first, so that they can stay where they are.
        rows = np.concatenate([rows[runs[rows]], rows[~runs[rows]]])
        free = gpus_beside(snapshot, np.flatnonzero(stays))
        choices = [_Choice.of(snapshot, kind, free) for kind in np.flatnonzero(odd).tolist()]
        for row in rows.tolist():
            allocation = snapshot.placement.get(jobs.ids[row])
            for choice in choices:
                gpus, reserved = int(asks.request[row, choice.kind]), int(asks.reserved[row])
                if not jobs.allowed_kinds[row, choice.kind] or reserved not in (-1, choice.kind):
                    continue
                if allocation is None or allocation.gpus != gpus:
                    choice.take(cluster, gpus, int(asks.nodes[row]))
                elif allocation.kind == choice.kind:
                    choice.keep(cluster, gpus, allocation.nodes)
            if not any(choice.open for choice in choices):
                break
        nodes = sorted(node for choice in choices for node in choice.taken)
        sizes: list[tuple[int, ...]] = [()] * len(cluster.types)
        for choice in choices:
            sizes[choice.kind] = tuple(sorted((int(free[node]) for node in choice.taken), reverse=True))
        return cls(tuple(nodes), tuple(sizes))

    def hold(self, cluster: Cluster, kind: int, gpus: int, nodes: int) -> bool:
        """Whether these nodes have a place for so many GPUs of a type. nodes: 0: as few as can be."""
        return _fit(parts_of(gpus, nodes, int(cluster.gpus_per_node[kind])), self.sizes[kind])


@lru_cache(maxsize=64)
def odd_kinds(cluster: Cluster) -> BoolArray:
    """(types,) whether some node of a type has a number of GPUs that is no power of two."""
    odd = np.zeros(len(cluster.types), dtype=np.bool_)
    odd[cluster.kind[(cluster.node_gpus & (cluster.node_gpus - 1)) != 0]] = True
    return frozen(odd)


@lru_cache(maxsize=4096)
def needs_whole(cluster: Cluster, kind: int, gpus: int, nodes: int) -> bool:
    """Whether so many GPUs of a type are counted right on nodes that are not split only.

    That is so where a job on one node needs more than every virtual node has. Of one on several nodes, some
    part may have to go to a node of which no virtual node has room for it.
    """
    largest = int(cluster.gpus_per_node[kind])
    parts = parts_of(gpus, nodes, largest)
    if len(parts) == 1:
        return parts[0] > _power_below(largest)
    sizes = _sizes(cluster)[kind]
    return any(_is_odd(part, size) for part in set(parts) for size in set(sizes))


def parts_of(gpus: int, nodes: int, largest: int) -> tuple[int, ...]:
    """GPUs on each node that so many take, largest first: as they are placed. Empty where that cannot be.

    nodes: on how many, 0: as few as can be; largest: GPUs of the largest node.
    """
    if gpus <= largest and nodes <= 1:
        return (gpus,)
    block = _power_below(largest)
    if gpus == nodes * block:
        return (block,) * nodes
    whole, rest = divmod(gpus, largest)
    fewest = whole + (rest > 0)
    if nodes in (0, fewest):
        return (largest,) * whole + (rest,) * (rest > 0)
    if not fewest < nodes <= gpus:
        return ()
    each, more = divmod(gpus, nodes)
    return (each + 1,) * more + (each,) * (nodes - more)


def gpus_beside(snapshot: Snapshot, rows: IntArray) -> IntArray:
    """(nodes,) GPUs that may be used beside what these rows hold."""
    free = np.where(snapshot.usable, snapshot.cluster.node_gpus, 0)
    for row in rows.tolist():
        allocation = snapshot.placement.get(snapshot.jobs.ids[row])
        if allocation is not None:
            free[list(allocation.nodes)] -= np.array(allocation.shape)
    return np.maximum(free, 0)


@dataclass
class _Choice:
    """The nodes of one type, while it is chosen which of them stay whole."""

    kind: int
    open: list[tuple[int, int]]  # (GPUs, node) of those that are split so far, ascending
    taken: set[int]  # nodes that stay whole
    free: IntArray  # (nodes,) GPUs
    every: tuple[int, ...]  # GPUs of all usable nodes, largest first

    @classmethod
    def of(cls, snapshot: Snapshot, kind: int, free: IntArray) -> "_Choice":
        """All nodes are split. free: (nodes,) GPUs that may be used."""
        nodes = np.flatnonzero((snapshot.cluster.kind == kind) & (free > 0)).tolist()
        by_size = sorted((int(free[node]), node) for node in nodes)
        every = tuple(size for size, _ in reversed(by_size))
        return cls(kind, by_size, set(), free, every)

    def take(self, cluster: Cluster, gpus: int, nodes: int) -> None:
        """The tightest nodes that so many GPUs need as a whole; none where they do not fit all nodes."""
        parts = parts_of(gpus, nodes, int(cluster.gpus_per_node[self.kind]))
        if len(parts) == 1:
            # A node of which a virtual node has room does not have to stay whole.
            self._take_one(gpus, below=1 << (gpus - 1).bit_length())
        elif needs_whole(cluster, self.kind, gpus, nodes) and _fit(parts, self.every):
            for part in parts:
                self._take_one(part, below=NO_LIMIT)

    def keep(self, cluster: Cluster, gpus: int, nodes: tuple[int, ...]) -> None:
        """The nodes on which a job holds what it asks for, where no virtual node has room for that."""
        several = len(nodes) > 1 and needs_whole(cluster, self.kind, gpus, 0)
        for node in nodes:
            size = int(self.free[node])
            if node not in self.taken and size and (several or _is_odd(gpus, size)):
                self.open.remove((size, node))
                self.taken.add(node)

    def _take_one(self, gpus: int, below: int) -> None:
        place = bisect_left(self.open, (gpus, -1))
        if place < len(self.open) and self.open[place][0] < below:
            self.taken.add(self.open.pop(place)[1])


def _fit(parts: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether parts of a job have nodes of their own; both largest first."""
    return 0 < len(parts) <= len(sizes) and all(
        part <= size for part, size in zip(parts, sizes, strict=False)
    )


def _is_odd(gpus: int, size: int) -> bool:
    """Whether a node of this size has so many GPUs, and none of its virtual nodes does."""
    return _power_below(size) < gpus <= size


def _power_below(gpus: int) -> int:
    """The largest power of two that is not above a number of GPUs, 0 for none."""
    return 1 << (gpus.bit_length() - 1) if gpus else 0


@lru_cache(maxsize=64)
def _sizes(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """By type, GPUs of each node, largest first."""
    return tuple(
        tuple(sorted(cluster.node_gpus[cluster.kind == kind].tolist(), reverse=True))
        for kind in range(len(cluster.types))
    )
