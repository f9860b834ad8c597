"""The columns of Sia's ILP (section 3.3), and the pools of GPUs that they are taken from."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stretto.model import Cluster, Configurations, IntArray, Snapshot, Speeds, frozen, virtual_nodes
from stretto.policies.sia.whole_nodes import Unsplit, gpus_beside

Sizes = tuple[tuple[int, ...], ...]  # by type, GPUs of the nodes that are not split


@dataclass(frozen=True, eq=False)
class Pools:
    """GPUs that can stand in for each other: of one type, in virtual nodes of one size.

    A node whose size is no power of two counts as virtual nodes of its binary powers (section 3.3). A job on
    one node fits a virtual node at least as large; a job on whole nodes takes them from the largest. With
    one capacity for each pool, whatever the program chooses can be placed. Where all nodes of a type have
    the same power of two of GPUs, as in the paper, the type is one pool.

    A job may ask for more of one node than a virtual node has. Nodes that are not split because of that are a
    pool of their own, behind all others.
    """

    kind: IntArray  # (pools,) GPU type
    block: IntArray  # (pools,) GPUs of a virtual node, or of the largest node that is not split
    capacity: IntArray  # (pools,) GPUs on usable nodes
    split: int  # pools of virtual nodes, which come first
    unsplit: Unsplit
    columns: "Columns"  # without those by request, of the configurations that were offered

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds) -> "Pools":
        """The pools of a cluster, by type, largest blocks first, and behind them nodes that are not split."""
        cluster, unsplit = snapshot.cluster, Unsplit.of(snapshot, speeds)
        pool_gpus, sort_of_node, _, _ = _sorts(cluster)
        kind, block = _pools(cluster, unsplit.sizes)
        usable = snapshot.usable
        if unsplit.nodes:
            usable = usable.copy()
            usable[list(unsplit.nodes)] = False
        nodes = np.bincount(sort_of_node, usable, len(pool_gpus)).astype(np.int64)
        capacity, split = nodes @ pool_gpus, pool_gpus.shape[1]
        if unsplit.nodes:
            whole = list(unsplit.nodes)
            by_type = np.bincount(cluster.kind[whole], cluster.node_gpus[whole], len(cluster.types))
            capacity = np.concatenate([capacity, by_type[kind[split:]].astype(np.int64)])
        columns = _columns(speeds.configurations, cluster, unsplit.sizes)
        return cls(kind, block, capacity, split, unsplit, columns)

    def beside(self, snapshot: Snapshot, rows: IntArray) -> IntArray:
        """(pools,) GPUs on usable nodes beside what these rows hold, where they hold it.

        What is left of a node counts in blocks of its own. Where no pool has such small ones, they count in
        the next larger one.
        """
        left, cluster = gpus_beside(snapshot, rows), snapshot.cluster
        capacity = np.zeros(len(self.kind), dtype=np.int64)
        place = {kind: self.split + number for number, kind in enumerate(self.kind[self.split :].tolist())}
        # From the smallest blocks up: the first that is large enough is the next larger one.
        by_kind = [
            np.flatnonzero(self.kind[: self.split] == kind)[::-1].tolist()
            for kind in range(len(cluster.types))
        ]
        nodes = np.flatnonzero(left)
        is_whole = np.isin(nodes, self.unsplit.nodes)
        parts = np.stack([cluster.kind[nodes], left[nodes], is_whole], axis=1)
        for (kind, gpus, as_whole), count in zip(*np.unique(parts, axis=0, return_counts=True), strict=True):
            if as_whole:
                capacity[place[kind]] += count * gpus
                continue
            for block in virtual_nodes(int(gpus)):
                pool = next(number for number in by_kind[kind] if self.block[number] >= block)
                capacity[pool] += count * block
        return capacity


@lru_cache(maxsize=16)
def _pools(cluster: Cluster, unsplit: Sizes) -> tuple[IntArray, IntArray]:
    """(pools,) type and GPUs of a block; unsplit: by type, GPUs of nodes that are not split."""
    _, _, kind, block = _sorts(cluster)
    whole = [(each, sizes[0]) for each, sizes in enumerate(unsplit) if sizes]
    if not whole:
        return kind, block
    more = np.array(whole, dtype=np.int64)
    return frozen(np.append(kind, more[:, 0])), frozen(np.append(block, more[:, 1]))


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
def _columns(offered: Configurations, cluster: Cluster, unsplit: Sizes) -> Columns:
    _, _, of_split, blocks = _sorts(cluster)
    kind, block = _pools(cluster, unsplit)
    largest = np.zeros(len(cluster.types), dtype=np.int64)
    np.maximum.at(largest, of_split, blocks)
    # A job on whole nodes takes them from the largest blocks, one within a node takes any that has room.
    least = np.where(offered.nodes > 1, largest[offered.kind], offered.gpus)
    has_room = (kind == offered.kind[:, None]) & (block >= least[:, None])
    for pool in range(len(of_split), len(kind)):
        # Of nodes that are not split there are few: as many as it takes have to be as large as a block.
        large = sum(size >= largest[kind[pool]] for size in unsplit[kind[pool]])
        has_room[:, pool] &= (offered.nodes == 1) | (offered.nodes <= large)
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
