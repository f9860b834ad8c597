"""Which job holds which GPUs of which nodes, and how large its training steps are."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from stretto.errors import BadPlan
from stretto.model.arrays import IntArray, frozen, ints
from stretto.model.cluster import Cluster
from stretto.model.job import JobId

FEW_NODES = 12  # up to here a loop is quicker than arrays; measured


@dataclass(frozen=True, slots=True)
class Allocation:
    """Named GPUs held by one job, all of one type unless it may mix them.

    `nodes` are indices into the cluster's nodes in increasing order; bit `g` of `masks[i]` stands for GPU `g`
    of `nodes[i]`. No mask is empty.
    """

    kind: int  # index of the GPU type; of a mixed allocation, that of its first node
    nodes: tuple[int, ...]
    masks: tuple[int, ...]
    local_batch: tuple[int, ...] = ()  # samples on each GPU, in order, where the policy chose them (ONES)
    flexible: tuple[int, ...] = ()  # by node, the GPUs of workers that may be taken back first (Lyra)
    profiling: bool = False  # a profiling run; what it trains counts
    cpus: float = 0.0  # cores in all; 0: in proportion to the GPUs of its nodes

    @property
    def shape(self) -> tuple[int, ...]:
        """GPUs on each node, in the order of the nodes."""
        return tuple(map(int.bit_count, self.masks))

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(map(int.bit_count, self.masks))


def gpus_by_type(allocation: Allocation, cluster: Cluster) -> dict[int, int]:
    """GPUs of each type that an allocation has: of one, unless it mixes them."""
    if len(cluster.types) == 1:
        return {allocation.kind: sum(allocation.shape)}
    gpus: dict[int, int] = {}
    for node, count in zip(allocation.nodes, allocation.shape, strict=True):
        kind = int(cluster.kind[node])
        gpus[kind] = gpus.get(kind, 0) + count
    return gpus


def types_in_words(allocation: Allocation, cluster: Cluster) -> str:
    """The name of the GPU type of an allocation; of several, their names with a plus between them."""
    return "+".join(cluster.type_names[kind] for kind in gpus_by_type(allocation, cluster))


class Placement(Mapping[JobId, Allocation]):
    """Every allocation at one moment: an immutable mapping that also knows what is free.

    What is derived from the allocations is computed when first asked for. A placement made from this one by
    `changed` inherits it, brought up to date.
    """

    __slots__ = (
        *("_free", "_held", "_held_by_size", "_jobs_on", "_on", "_origin", "_token", "_touched"),
        *("busy", "cluster"),
    )

    def __init__(self, cluster: Cluster, allocations: dict[JobId, Allocation], busy: IntArray) -> None:
        """Use `no_placement` and `changed`; this takes its parts as they are."""
        self.cluster = cluster
        self._held = allocations
        self.busy = frozen(busy)  # (nodes,) bit g set: GPU g is held
        self._free: IntArray | None = None
        self._jobs_on: IntArray | None = None
        self._held_by_size: IntArray | None = None
        self._on: dict[int, dict[JobId, Allocation]] | None = None
        self._token = object()  # stands for this placement without keeping it alive
        self._origin: object = None  # the token of the placement that this one was changed from
        self._touched: tuple[JobId, ...] = ()

    def __getitem__(self, job: JobId) -> Allocation:
        """The allocation of a job; KeyError where it holds nothing."""
        return self._held[job]

    def __iter__(self) -> Iterator[JobId]:
        """Jobs that hold something, in the order in which they came to."""
        return iter(self._held)

    def __len__(self) -> int:
        """The number of jobs that hold something."""
        return len(self._held)

    # The inherited versions of these go through `__getitem__` job by job, five times slower.

    def __contains__(self, job: object) -> bool:
        """Whether the job holds something."""
        return job in self._held

    def get(self, job: JobId, default: Any = None) -> Any:
        """The allocation of a job, or the default."""
        return self._held.get(job, default)

    def keys(self) -> KeysView[JobId]:
        """Jobs that hold something."""
        return self._held.keys()

    def values(self) -> ValuesView[Allocation]:
        """What they hold."""
        return self._held.values()

    def items(self) -> ItemsView[JobId, Allocation]:
        """Jobs with what they hold."""
        return self._held.items()

    @property
    def free(self) -> IntArray:
        """(nodes,) GPUs that no job holds."""
        if self._free is None:
            self._free = frozen(self.cluster.node_gpus - np.bitwise_count(self.busy).astype(np.int64))
        return self._free

    @property
    def free_by_kind(self) -> IntArray:
        """(types,) GPUs that no job holds."""
        return np.bincount(self.cluster.kind, self.free, len(self.cluster.types)).astype(np.int64)

    @property
    def jobs_on(self) -> IntArray:
        """(nodes,) jobs that hold a GPU of the node."""
        if self._jobs_on is None:
            counts = np.zeros(len(self.cluster.nodes), dtype=np.int64)
            for allocation in self._held.values():
                counts[list(allocation.nodes)] += 1
            self._jobs_on = frozen(counts)
        return self._jobs_on

    @property
    def held_by_size(self) -> IntArray:
        """(sizes, nodes) GPUs of a node that are held by jobs of so many GPUs, all of them on that node."""
        if self._held_by_size is None:
            held = np.zeros((int(self.cluster.node_gpus.max(initial=0)) + 1, len(self.busy)), dtype=np.int64)
            for allocation in self._held.values():
                count_by_size(held, allocation, +1)
            self._held_by_size = frozen(held)
        return self._held_by_size

    def on(self, node: int) -> Mapping[JobId, Allocation]:
        """Jobs that hold GPUs of a node, in the order in which they came to, and what each holds in all."""
        if self._on is None:
            self._on = {}
            for job, allocation in self._held.items():
                for each in allocation.nodes:
                    self._on.setdefault(each, {})[job] = allocation
        return self._on.get(node, _NOTHING)

    def touched_since(self, before: "Placement") -> tuple[JobId, ...] | None:
        """The jobs whose allocations may differ from `before`; None where this is not one change away."""
        return self._touched if self._origin is before._token else None

    def changed(self, changes: Mapping[JobId, Allocation | None]) -> "Placement":
        """This placement with some jobs' allocations replaced (None: taken away).

        All that goes is released before anything is taken. Raises BadPlan where a GPU would be held twice
        or does not exist.
        """
        allocations = self._held.copy()
        busy = self.busy.copy()
        free = self.free.copy()
        jobs_on = None if self._jobs_on is None else self._jobs_on.copy()
        by_size = None if self._held_by_size is None else self._held_by_size.copy()
        for job in changes:
            before = allocations.pop(job, None)
            if before is not None:
                shift(busy, free, before, -1)
                if jobs_on is not None:
                    jobs_on[list(before.nodes)] -= 1
                if by_size is not None:
                    count_by_size(by_size, before, -1)
        for job, after in changes.items():
            if after is None:
                continue
            for node, mask in zip(after.nodes, after.masks, strict=True):
                busy_mask = int(busy[node])
                if busy_mask & mask or mask >> int(self.cluster.node_gpus[node]):
                    raise BadPlan(
                        f"job {job} is given GPUs {mask:b} of node {node}, where {busy_mask:b} are held"
                    )
            shift(busy, free, after, +1)
            if jobs_on is not None:
                jobs_on[list(after.nodes)] += 1
            if by_size is not None:
                count_by_size(by_size, after, +1)
            allocations[job] = after
        new = Placement(self.cluster, allocations, busy)
        new._free = frozen(free)
        new._jobs_on = None if jobs_on is None else frozen(jobs_on)
        new._held_by_size = None if by_size is None else frozen(by_size)
        new._on = self._on_after(changes)
        new._origin, new._touched = self._token, tuple(changes)
        return new

    def _on_after(
        self, changes: Mapping[JobId, Allocation | None]
    ) -> dict[int, dict[JobId, Allocation]] | None:
        """What `on` is read from after some changes; only nodes that they touch are copied."""
        if self._on is None:
            return None
        on, own = self._on.copy(), set[int]()
        for job in changes:
            for node in self._held[job].nodes if job in self._held else ():
                if node not in own:
                    on[node] = on[node].copy()
                    own.add(node)
                del on[node][job]
        for job, after in changes.items():
            if after is None:
                continue
            for node in after.nodes:
                if node not in own:
                    on[node] = on.get(node, {}).copy()
                    own.add(node)
                on[node][job] = after
        return on


_NOTHING: Mapping[JobId, Allocation] = MappingProxyType({})


def shift(busy: IntArray, free: IntArray, allocation: Allocation, sign: int) -> None:
    """Take what an allocation names (+1), where it is free, or release it (-1), where it is held, in place.

    busy: (nodes,) masks; free: (nodes,) GPUs.
    """
    if len(allocation.nodes) > FEW_NODES:
        nodes, masks = ints(allocation.nodes), ints(allocation.masks)
        busy[nodes] ^= masks
        free[nodes] -= sign * np.bitwise_count(masks).astype(np.int64)
        return
    for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
        busy[node] ^= mask
        free[node] -= sign * mask.bit_count()


def count_by_size(held: IntArray, allocation: Allocation, sign: int) -> None:
    """Count a job that comes (+1) or goes (-1) into `Placement.held_by_size`; one of several nodes not."""
    if len(allocation.nodes) == 1:
        gpus = allocation.masks[0].bit_count()
        held[gpus, allocation.nodes[0]] += sign * gpus


def no_placement(cluster: Cluster) -> Placement:
    """No job holds anything."""
    return Placement(cluster, {}, np.zeros(len(cluster.nodes), dtype=np.int64))


def lowest_gpus(free_mask: int, count: int) -> int:
    """The `count` lowest set bits of a mask of free GPUs."""
    taken = 0
    for _ in range(count):
        lowest = free_mask & -free_mask
        taken |= lowest
        free_mask ^= lowest
    return taken


@dataclass(frozen=True, slots=True)
class Batch:
    """How large a training step is."""

    total: int  # samples of a step, over all workers
    local: int  # samples of one pass of one worker at most
    accumulation: int  # passes of each worker in a step, at least 1
    # Samples of each worker in a step: of a decision in the order of nodes and GPUs, of a generation in that
    # of ranks. Empty: the total is split evenly.
    by_worker: tuple[int, ...] = ()

    def to_json(self) -> tuple[int, ...]:
        """As a log keeps it."""
        return (self.total, self.local, self.accumulation, *self.by_worker)

    @classmethod
    def from_json(cls, numbers: Sequence[int]) -> "Batch":
        """What `to_json` gave."""
        total, local, accumulation, *by_worker = numbers
        return cls(total, local, accumulation, tuple(by_worker))


def in_proportion(parts: Sequence[int], total: int) -> tuple[int, ...]:
    """Whole numbers that sum to `total` and differ from being in proportion to `parts` by less than one."""
    ends = [total * end // sum(parts) for end in accumulate(parts, initial=0)]
    return tuple(end - begin for begin, end in pairwise(ends))
