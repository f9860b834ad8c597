"""The machines: GPU types, nodes and their order, which is the order of types everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NewType

import numpy as np

from stretto.errors import InputError
from stretto.model.arrays import IntArray, frozen, ints
from stretto.model.topology import Topology, topology_of

NodeId = NewType("NodeId", str)

MAX_GPUS_PER_NODE = 62  # the GPUs of a node are the bits of one integer


@dataclass(frozen=True, slots=True)
class GpuType:
    """One kind of accelerator."""

    name: str
    memory_gb: float = 16.0
    speed: float = 1.0  # relative, where no profile says more
    aliases: tuple[str, ...] = ()  # other names under which traces and profiles know it
    max_nodes_per_job: int = 0  # 0 = no limit
    stand_ins: int = 1  # of these, how many take the place of one GPU that a job asks for (Lyra, section 2.1)


@dataclass(frozen=True, slots=True)
class Node:
    """One machine with GPUs of a single type."""

    id: NodeId
    gpu_type: str
    gpus: int
    cpus: int = 0
    memory_gb: float = 0.0
    lender: str = ""  # who owns it, where it is only on loan
    domains: tuple[str, ...] = ()  # where it is, by levels of the cluster; "" or left out: not known


@dataclass(frozen=True)
class Cluster:
    """Every node that could ever be used, in a fixed order, as columns.

    `types` come in the order of their first node; `kind` of a node is the index of its type there.
    """

    name: str
    types: tuple[GpuType, ...]
    nodes: tuple[Node, ...]
    levels: tuple[str, ...] = ()  # of the network, outermost first, such as leaf and rack
    node_index: dict[NodeId, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check names and sizes."""
        names = [gpu_type.name for gpu_type in self.types]
        if not self.nodes:
            raise InputError(f"cluster {self.name}: nodes must not be empty")
        for node in self.nodes:
            if node.gpu_type not in names:
                raise InputError(
                    f"cluster {self.name}: node {node.id} has gpu type {node.gpu_type!r}, "
                    f"expected one of {names}"
                )
            if not 1 <= node.gpus <= MAX_GPUS_PER_NODE:
                raise InputError(
                    f"cluster {self.name}: node {node.id} must have 1 to {MAX_GPUS_PER_NODE} gpus, "
                    f"got {node.gpus}"
                )
            if len(node.domains) > len(self.levels):
                raise InputError(
                    f"cluster {self.name}: node {node.id} must have at most {len(self.levels)} domains, "
                    f"one a level, got {list(node.domains)}"
                )
        index = {node.id: position for position, node in enumerate(self.nodes)}
        if len(index) != len(self.nodes):
            raise InputError(f"cluster {self.name}: node names must differ")
        object.__setattr__(self, "node_index", index)

    def __eq__(self, other: object) -> bool:
        """Whether name, types, nodes and levels are equal.

        Equal ones share their nodes from then on, so that these are compared once only. Every run reads its
        cluster anew, and looks it up in memo tables that earlier runs have filled.
        """
        if self is other:
            return True
        if not isinstance(other, Cluster):
            return NotImplemented
        mine, others = ((each.name, each.types, each.levels, each.nodes) for each in (self, other))
        if mine != others:
            return False
        object.__setattr__(other, "nodes", self.nodes)
        return True

    def __hash__(self) -> int:
        """Of the name and nodes, computed once: clusters are keys of memo tables on a hot path."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.types, self.nodes, self.levels))

    @cached_property
    def kind(self) -> IntArray:
        """(nodes,) index of each node's GPU type."""
        position = {gpu_type.name: index for index, gpu_type in enumerate(self.types)}
        return frozen(ints([position[node.gpu_type] for node in self.nodes]))

    @cached_property
    def node_gpus(self) -> IntArray:
        """(nodes,) GPUs of each node."""
        return frozen(ints([node.gpus for node in self.nodes]))

    @cached_property
    def stand_ins(self) -> IntArray:
        """(types,) GPUs of each type that take the place of one GPU asked for."""
        return frozen(ints([gpu_type.stand_ins for gpu_type in self.types]))

    @cached_property
    def any_stand_ins(self) -> bool:
        """Whether of some type several GPUs take the place of one asked for."""
        return bool((self.stand_ins > 1).any())

    @cached_property
    def capacity(self) -> IntArray:
        """(types,) GPUs of each type."""
        return frozen(np.bincount(self.kind, self.node_gpus, len(self.types)).astype(np.int64))

    @cached_property
    def gpus_per_node(self) -> IntArray:
        """(types,) GPUs of the largest node of each type."""
        largest = np.zeros(len(self.types), dtype=np.int64)
        np.maximum.at(largest, self.kind, self.node_gpus)
        return frozen(largest)

    @cached_property
    def topology(self) -> Topology:
        """Which nodes are near each other; of no levels where nothing is known."""
        return topology_of(self.levels, [node.domains for node in self.nodes])

    @cached_property
    def total_gpus(self) -> int:
        """GPUs of all types together."""
        return int(self.node_gpus.sum())

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        """Names of the GPU types, in order."""
        return tuple(gpu_type.name for gpu_type in self.types)

    def type_index(self, name: str) -> int:
        """The position of a GPU type, also by an alias; raises InputError for an unknown one."""
        for index, gpu_type in enumerate(self.types):
            if name == gpu_type.name or name in gpu_type.aliases:
                return index
        raise InputError(
            f"unknown gpu type {name!r} on cluster {self.name}, expected one of {list(self.type_names)}"
        )


def cluster_of(name: str, *groups: tuple[GpuType, int, int]) -> Cluster:
    """A cluster from (type, nodes, GPUs per node) groups; nodes are named after their type."""
    return Cluster(
        name=name,
        types=tuple(gpu_type for gpu_type, _, _ in groups),
        nodes=tuple(
            Node(NodeId(f"{gpu_type.name}-{index}"), gpu_type.name, gpus)
            for gpu_type, count, gpus in groups
            for index in range(count)
        ),
    )


def node_groups(cluster: Cluster) -> Sequence[tuple[str, int, int]]:
    """(type, nodes, GPUs per node) of runs of equal nodes, for people to read."""
    groups: list[tuple[str, int, int]] = []
    for node in cluster.nodes:
        if groups and groups[-1][0] == node.gpu_type and groups[-1][2] == node.gpus:
            groups[-1] = (node.gpu_type, groups[-1][1] + 1, node.gpus)
        else:
            groups.append((node.gpu_type, 1, node.gpus))
    return groups
