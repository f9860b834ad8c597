"""A placement while it is being worked out: what is free so far, and how to take a step back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Cluster,
    IntArray,
    JobId,
    Pinned,
    Placement,
    Snapshot,
    count_by_size,
    lowest_gpus,
    shift,
)
from stretto.place.free_nodes import FreeNodes
from stretto.place.shapes import FEWEST_FREE, best_fit, tightest_counts
from stretto.place.topology import Room


class Want(NamedTuple):
    """What one job is to get."""

    job: JobId
    gpus: int
    kind: int  # the GPU type; -1: any that the job accepts, until one is tried
    nodes: int  # how many nodes; 0: as the rule decides
    held: Allocation | None  # in the snapshot; what it keeps costs least
    mixes: bool = False  # may hold GPUs of several types at once
    profiling: bool = False  # for a profiling run only
    cpus: float = 0.0  # cores in all; 0: in proportion
    within: int = -1  # the level of the network of which it must be in one domain; -1: none
    workers: tuple[int, ...] = ()  # GPUs of one worker by type, which no two nodes share; (): of one GPU

    @property
    def each(self) -> int:
        """GPUs of one worker on the type that is tried; 1 where the request makes no whole workers anyway."""
        if not self.workers:
            return 1
        each = self.workers[self.kind]
        return 1 if self.gpus % each else each


class Draft:
    """What each job holds while one decision is placed. Starts as the snapshot; every step can be undone.

    Nodes that are not usable count as full, also once their jobs have let go.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Nothing is changed yet."""
        self.before = snapshot.placement
        self.cluster = snapshot.cluster
        self.free = self.before.free.copy()  # (nodes,) GPUs that may be taken
        self.busy = self.before.busy.copy()  # (nodes,) bit g set: GPU g may not be taken
        # Nodes that are not usable are full, whatever runs there.
        self._closed = frozenset[int]()
        if not snapshot.all_usable:
            closed = np.flatnonzero(~snapshot.usable)
            self.free[closed] = 0
            self.busy[closed] = (1 << self.cluster.node_gpus[closed]) - 1
            self._closed = frozenset(closed.tolist())
        self._has_searched = False
        self._among: BoolArray | None = None  # (nodes,) only these are looked at; None: all
        self._nodes_of: dict[int, FreeNodes] = {}
        self._nodes_among: dict[int, FreeNodes] = {}  # of these
        self._room_of: dict[int, Room] = {}
        self._now: dict[JobId, Allocation | None] = {}
        self._steps: list[tuple[JobId, Allocation, int]] = []  # +1 put, -1 lifted
        self._jobs_on: IntArray | None = None
        self._held_by_size: IntArray | None = None
        self._on: dict[int, dict[JobId, Allocation]] | None = None  # of nodes where anything was changed

    def current(self, job: JobId) -> Allocation | None:
        """What the job holds in the draft."""
        return self._now[job] if job in self._now else self.before.get(job)

    def free_of(self, kind: int) -> IntArray:
        """(nodes,) GPUs of one type that may be taken; 0 on nodes of other types."""
        if len(self.cluster.types) == 1 and self._among is None:
            return self.free
        return np.where(self._is_looked_at(kind), self.free, 0)

    def free_masks_of(self, kind: int) -> IntArray:
        """(nodes,) the same as masks: bit g set, GPU g may be taken."""
        masks = ((1 << self.cluster.node_gpus) - 1) & ~self.busy
        if len(self.cluster.types) == 1 and self._among is None:
            return masks
        return np.where(self._is_looked_at(kind), masks, 0)

    def nodes_of(self, kind: int) -> FreeNodes:
        """The nodes of one type by GPUs that may be taken."""
        known = self._nodes_of if self._among is None else self._nodes_among
        if kind not in known:
            nodes = np.flatnonzero(self._is_looked_at(kind))
            most = int(self.cluster.gpus_per_node[kind])
            known[kind] = FreeNodes(nodes, self.free[nodes], most)
        return known[kind]

    def room_of(self, kind: int) -> Room:
        """What may be taken of one type in each domain of the network."""
        if kind not in self._room_of:
            cluster = self.cluster
            self._room_of[kind] = Room(cluster.topology, cluster.kind == kind, self.free, cluster.node_gpus)
        return self._room_of[kind]

    @contextmanager
    def only(self, nodes: IntArray) -> Iterator[None]:
        """As long as this lasts, a rule that gives a job GPUs sees these nodes alone."""
        self._among = np.zeros(len(self.free), dtype=np.bool_)
        self._among[nodes] = True
        try:
            yield
        finally:
            self._among, self._nodes_among = None, {}

    def _is_looked_at(self, kind: int) -> BoolArray:
        is_kind: BoolArray = self.cluster.kind == kind
        return is_kind if self._among is None else is_kind & self._among

    def best_fit(self, kind: int, gpus: int, fit: IntArray = FEWEST_FREE) -> int:
        """The node of a type on which a request fits most tightly, ties by index; -1 where it fits none."""
        if fit is FEWEST_FREE and not self._has_searched:  # for one job it does not pay to group the nodes
            self._has_searched = True
            return best_fit(self.free_of(kind), gpus)
        return self.nodes_of(kind).first_of(tightest_counts(gpus, fit))

    def has_room(self, node: int, kind: int, gpus: int) -> bool:
        """Whether so many GPUs of a node may be taken, and are of this type."""
        is_open = self._among is None or self._among[node]
        return bool(is_open and self.free[node] >= gpus and self.cluster.kind[node] == kind)

    def lift(self, job: JobId) -> Allocation | None:
        """Take away what the job holds, and say what that was."""
        allocation = self.current(job)
        if allocation is not None:
            self._step(job, allocation, -1)
        return allocation

    def put(self, job: JobId, allocation: Allocation) -> None:
        """Give GPUs that are free to a job that holds nothing."""
        self._step(job, allocation, +1)

    def give(self, want: Want, where: Pinned) -> bool:
        """Give a job that holds nothing GPUs of these nodes; False, and nothing done, where it cannot be.

        On each node the GPUs that it held before come first, then the lowest. The type's limit on the
        nodes of one job is kept.
        """
        kind = int(self.cluster.kind[where.nodes[0]])
        limit = self.cluster.types[kind].max_nodes_per_job
        return not (limit and len(where.nodes) > limit) and self.give_exactly(want, where)

    def give_exactly(self, want: Want, where: Pinned) -> bool:
        """The same, on as many nodes as named."""
        before = want.held
        masks = where.masks or self._name(where, before)
        if not masks:
            return False
        kind = int(self.cluster.kind[where.nodes[0]])
        new = Allocation(
            kind, where.nodes, masks, where.local_batch, where.flexible, want.profiling, want.cpus
        )
        if where.masks and not self.is_free(new):  # what was named here is
            return False
        self._step(want.job, before if before is not None and new == before else new, +1)
        return True

    def is_free(self, allocation: Allocation) -> bool:
        """Whether no job holds any of these GPUs."""
        places = zip(allocation.nodes, allocation.masks, strict=True)
        return not any(int(self.busy[node]) & mask for node, mask in places)

    def mark(self) -> int:
        """A moment to come back to."""
        return len(self._steps)

    def undo(self, mark: int) -> None:
        """Take back every step since a mark."""
        while len(self._steps) > mark:
            job, allocation, sign = self._steps[-1]
            self._step(job, allocation, -sign)
            del self._steps[-2:]

    def placement(self) -> Placement:
        """The placement that the draft has come to; the old one where nothing changed."""
        changes = {job: now for job, now in self._now.items() if now is not self.before.get(job)}
        return self.before.changed(changes) if changes else self.before

    @property
    def jobs_on(self) -> IntArray:
        """(nodes,) jobs that hold a GPU of the node."""
        if self._jobs_on is None:
            self._jobs_on = self.before.jobs_on.copy()
            for _, allocation, sign in self._steps:
                self._jobs_on[list(allocation.nodes)] += sign
        return self._jobs_on

    @property
    def held_by_size(self) -> IntArray:
        """(sizes, nodes) as of a placement."""
        if self._held_by_size is None:
            self._held_by_size = self.before.held_by_size.copy()
            for _, allocation, sign in self._steps:
                count_by_size(self._held_by_size, allocation, sign)
        return self._held_by_size

    def on(self, node: int) -> Mapping[JobId, Allocation]:
        """Which jobs hold GPUs of a node, and what in all."""
        if self._on is None:
            self._on = {}
            for job, allocation, sign in self._steps:
                self._note(job, allocation, sign)
        return self._on[node] if node in self._on else self.before.on(node)

    def _step(self, job: JobId, allocation: Allocation, sign: int) -> None:
        follows = self._nodes_of or self._room_of
        had = self.free[list(allocation.nodes)].tolist() if follows else []
        shift(self.busy, self.free, allocation, sign)
        for node in self._closed.intersection(allocation.nodes) if self._closed else ():
            self.free[node], self.busy[node] = 0, (1 << int(self.cluster.node_gpus[node])) - 1
        for node, before in zip(allocation.nodes, had, strict=False):
            kind, now = int(self.cluster.kind[node]), int(self.free[node])
            if (nodes := self._nodes_of.get(kind)) is not None:
                nodes.move(node, before, now)
            if now != before and (room := self._room_of.get(kind)) is not None:
                room.move(node, before, now)
        self._now[job] = allocation if sign > 0 else None
        self._steps.append((job, allocation, sign))
        if self._jobs_on is not None:
            self._jobs_on[list(allocation.nodes)] += sign
        if self._held_by_size is not None:
            count_by_size(self._held_by_size, allocation, sign)
        if self._on is not None:
            self._note(job, allocation, sign)

    def _note(self, job: JobId, allocation: Allocation, sign: int) -> None:
        assert self._on is not None
        for node in allocation.nodes:
            if node not in self._on:
                self._on[node] = dict(self.before.on(node))
            if sign > 0:
                self._on[node][job] = allocation
            else:
                del self._on[node][job]

    def _name(self, where: Pinned, allocation: Allocation | None) -> tuple[int, ...]:
        """One mask for each node; none at all where a node has too few GPUs free."""
        own = dict(zip(allocation.nodes, allocation.masks, strict=True)) if allocation else {}
        masks = []
        for node, count in zip(where.nodes, where.gpus, strict=True):
            if self.free[node] < count:
                return ()
            free = ((1 << int(self.cluster.node_gpus[node])) - 1) & ~int(self.busy[node])
            masks.append(own_then_lowest(free, own.get(node, 0), count))
        return tuple(masks)


def own_then_lowest(free: int, own: int, count: int) -> int:
    """`count` bits of `free`: those of `own` first, then the lowest."""
    kept = lowest_gpus(free & own, min(count, (free & own).bit_count()))
    return kept | lowest_gpus(free & ~kept, count - kept.bit_count())


def shrunk(cluster: Cluster, allocation: Allocation, want: Want) -> Allocation:
    """What a job keeps when it gives GPUs back: first those of the node where it holds fewest.

    It trains or is profiled there as its share says; batch sizes and flexible workers are open again.

    Ties give back on the last node, and on a node its highest GPUs. The same object where nothing goes.
    """
    left = list(allocation.shape)
    excess = sum(left) - want.gpus
    if excess <= 0:
        return allocation
    for place in sorted(range(len(left)), key=lambda place: (left[place], -place)):
        given_back = min(left[place], excess)
        left[place] -= given_back
        excess -= given_back
    places = zip(allocation.nodes, allocation.masks, left, strict=True)
    pieces = [(node, lowest_gpus(mask, count)) for node, mask, count in places if count]
    nodes, masks = tuple(node for node, _ in pieces), tuple(mask for _, mask in pieces)
    kind = int(cluster.kind[nodes[0]])  # of a job that mixes types, the first may be gone
    return Allocation(kind, nodes, masks, profiling=want.profiling, cpus=want.cpus)
