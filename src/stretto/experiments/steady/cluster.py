"""Clusters of any number of GPUs, composed like a published inventory of a large one."""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, Cluster, GpuType, InputError, Node, NodeId

# Nodes by GPU type and GPUs of a node. Weng et al. (ATC 2023): the 1,213 nodes of their public inventory, but
# for two of one GPU. It does not tell the type of the 588 nodes of eight; they count as A100 here.
INVENTORY = {
    "a100": {8: 588},
    "v100": {8: 29, 4: 37, 1: 19},
    "t4": {4: 17, 2: 387},
    "p100": {2: 131, 1: 3},
}
SHUT = 0.01  # of the nodes are not usable; chosen
LENT = 0.10  # of the nodes belong to a lender; chosen
ON_LOAN = (
    0.35  # of these are on loan: what inference does not need on average; Lyra (EuroSys 2023), section 1
)
LENDER = "inference"
LEAST_GPUS = 64  # below, some type would have no node


@dataclass(frozen=True, eq=False)
class MadeCluster:
    """A cluster, and which of its nodes may hold jobs."""

    cluster: Cluster
    usable: BoolArray  # (nodes,)


def made_cluster(gpus: int, types: int, rng: np.random.Generator, most_nodes_per_job: int = 0) -> MadeCluster:
    """About `gpus` GPUs of the first `types` types of the inventory, each node size as frequent as there.

    Some nodes are shut. Some belong to a lender, and a part of these is on loan.
    """
    if not 1 <= types <= len(INVENTORY):
        raise InputError(f"types must lie between 1 and {len(INVENTORY)}, got {types}")
    if gpus < LEAST_GPUS:
        raise InputError(f"gpus must be at least {LEAST_GPUS}, got {gpus}")
    chosen = dict(list(INVENTORY.items())[:types])
    scale = gpus / sum(size * nodes for sizes in chosen.values() for size, nodes in sizes.items())
    sorts = [
        (name, size)
        for name, sizes in chosen.items()
        for size, nodes in sizes.items()
        for _ in range(max(round(nodes * scale), 1))
    ]
    lent = rng.random(len(sorts)) < LENT
    away = np.where(lent, rng.random(len(sorts)) >= ON_LOAN, rng.random(len(sorts)) < SHUT)
    nodes = tuple(
        Node(NodeId(f"{name}-{index}"), name, size, lender=LENDER if of_lender else "")
        for index, ((name, size), of_lender) in enumerate(zip(sorts, lent.tolist(), strict=True))
    )
    kinds = tuple(GpuType(name, max_nodes_per_job=most_nodes_per_job) for name in chosen)
    return MadeCluster(Cluster(f"steady-{gpus}", kinds, nodes), ~away)
