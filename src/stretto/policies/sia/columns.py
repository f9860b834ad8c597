"""The columns of Sia's ILP (section 3.3), and the pools of GPUs that they are taken from."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stretto.model import Cluster, Configurations, IntArray, Snapshot, frozen, virtual_nodes


@dataclass(frozen=True, eq=False)
class Pools:
    """GPUs that can stand in for each other: of one type, in virtual nodes of one size.

    A node whose size is no power of two counts as virtual nodes of its binary powers (section 3.3). A job on
    one node fits a virtual node at least as large; a job on whole nodes takes them from the largest. With
    one capacity for each pool, whatever the program chooses can be placed. Where all nodes of a type have
    the same power of two of GPUs, as in the paper, the type is one pool.
    """

    kind: IntArray  # (pools,) GPU type
    block: IntArray  # (pools,) GPUs of a virtual node
    capacity: IntArray  # (pools,) GPUs on usable nodes
    columns: "Columns"  # without those by request, of the configurations that were offered

    @classmethod
    def of(cls, snapshot: Snapshot, offered: Configurations) -> "Pools":
        """The pools of a cluster, by type, largest blocks first."""
        pool_gpus, sort_of_node, kind, block = _sorts(snapshot.cluster)
        nodes = np.bincount(sort_of_node, snapshot.usable, len(pool_gpus)).astype(np.int64)
        columns = _columns(offered, snapshot.cluster)
        return cls(kind, block, nodes @ pool_gpus, columns)


@lru_cache(maxsize=16)
def _sorts(cluster: Cluster) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(sorts, pools) GPUs that a node of each sort has in each pool, (nodes,) its sort; kind and block."""
    sorts, sort_of_node = np.unique(
        np.stack([cluster.kind, cluster.node_gpus], axis=1), axis=0, return_inverse=True
    )
    pools = sorted({(kind, -block) for kind, size in sorts.tolist() for block in virtual_nodes(size)})
    pool_gpus = np.zeros((len(sorts), len(pools)), dtype=np.int64)
    for row, (kind, size) in enumerate(sorts.tolist()):
        for block in virtual_nodes(size):
            pool_gpus[row, pools.index((kind, -block))] = block
    of_pool = np.array(pools, dtype=np.int64).reshape(-1, 2)
    return (
        frozen(pool_gpus),
        frozen(sort_of_node.ravel()),
        frozen(of_pool[:, 0].copy()),
        frozen(-of_pool[:, 1]),
    )


@dataclass(frozen=True, eq=False)
class Columns:
    """Every configuration in every pool that has room for it; by type, and of a type by GPUs."""

    configuration: IntArray  # (columns,)
    pool: IntArray  # (columns,)
    kind: IntArray  # (columns,) GPU type
    gpus: IntArray  # (columns,)
    begin: IntArray  # (types + 1,) where the columns of each type begin
    first: IntArray  # (configs + 1,) where the columns of each configuration begin

    def __len__(self) -> int:
        """The number of columns."""
        return len(self.configuration)

    def sizes(self, kind: int) -> IntArray:
        """GPUs of the columns of a type, ascending."""
        return self.gpus[self.begin[kind] : self.begin[kind + 1]]


@lru_cache(maxsize=16)
def _columns(offered: Configurations, cluster: Cluster) -> Columns:
    _, _, kind, block = _sorts(cluster)
    largest = np.zeros(len(cluster.types), dtype=np.int64)
    np.maximum.at(largest, kind, block)
    # A job on whole nodes takes them from the largest blocks, one within a node takes any that has room.
    least = np.where(offered.nodes > 1, largest[offered.kind], offered.gpus)
    has_room = (kind == offered.kind[:, None]) & (block >= least[:, None])
    configuration, pool = has_room.nonzero()
    of_type = offered.kind[configuration]
    return Columns(
        configuration=frozen(configuration),
        pool=frozen(pool),
        kind=frozen(of_type),
        gpus=frozen(offered.gpus[configuration]),
        begin=frozen(np.searchsorted(of_type, np.arange(len(cluster.types) + 1))),
        first=frozen(np.searchsorted(configuration, np.arange(len(offered) + 1))),
    )
