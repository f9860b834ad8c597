"""From genomes to named GPUs and back, moving as little as can be."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment

from stretto.model import Allocation, BoolArray, IntArray, Pinned, Snapshot
from stretto.policies.ones.evolution import IDLE

SLOTS = 64  # more GPUs than one node can have


@dataclass(frozen=True, eq=False)
class Gpus:
    """The GPUs that may change hands: the columns of a genome. Types, and nodes, stand together."""

    kind: IntArray  # (gpus,)
    node: IntArray  # (gpus,)
    slot: IntArray  # (gpus,) which of its node

    @property
    def place(self) -> IntArray:
        """(gpus,) a number that stays with a GPU when others come and go."""
        return self.node * SLOTS + self.slot

    @cached_property
    def column(self) -> dict[int, int]:
        """The column of a place."""
        return {place: column for column, place in enumerate(self.place.tolist())}


def gpus_beside(snapshot: Snapshot, stays: BoolArray) -> Gpus:
    """The GPUs of usable nodes that none of the jobs that stay holds."""
    cluster = snapshot.cluster
    taken = np.zeros(len(cluster.nodes), dtype=np.int64)
    for row in np.flatnonzero(stays).tolist():
        held = snapshot.placement[snapshot.jobs[row].id]
        taken[list(held.nodes)] |= held.masks
    order = np.argsort(cluster.kind, kind="stable")
    node = np.repeat(order, np.where(snapshot.usable, cluster.node_gpus, 0)[order])
    starts = np.flatnonzero(np.diff(node, prepend=-1))
    slot = np.arange(len(node)) - np.repeat(starts, np.diff(np.append(starts, len(node))))
    free = (taken[node] >> slot) & 1 == 0
    node, slot = node[free], slot[free]
    return Gpus(cluster.kind[node], node, slot)


def genome_of(gpus: Gpus, held: dict[int, Allocation]) -> IntArray:
    """(1, gpus) who holds what, by the rows given; GPUs that may not be used are left out."""
    genome = np.full((1, len(gpus.node)), IDLE, dtype=np.int64)
    for row, allocation in held.items():
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            for slot in range(mask.bit_length()):
                column = gpus.column.get(node * SLOTS + slot) if mask >> slot & 1 else None
                if column is not None:
                    genome[0, column] = row
    return genome


def settle_on_nodes(gpus: Gpus, genome: IntArray, held: IntArray, jobs: int) -> IntArray:
    """(gpus,) a schedule on other nodes of the same sizes, so that as many GPUs as can be keep their job.

    An assignment problem: what the schedule says of a node goes to the node where most of it is already.
    On a node, jobs keep their own GPUs first.
    """
    nodes, first, sizes = np.unique(gpus.node, return_index=True, return_counts=True)
    # Count the GPUs of each job on each node, in the schedule and now; column 0 is IDLE and is cut off.
    inside = np.searchsorted(nodes, gpus.node) * (jobs + 1)
    shape = (len(nodes), jobs + 1)
    size = len(nodes) * (jobs + 1)
    new = np.bincount(inside + genome + 1, minlength=size).reshape(shape)[:, 1:]
    old = np.bincount(inside + held + 1, minlength=size).reshape(shape)[:, 1:]
    there = np.full(len(genome), IDLE, dtype=np.int64)
    alike = np.stack([gpus.kind[first], sizes], axis=1)
    for group in np.unique(alike, axis=0):
        among = np.flatnonzero((alike == group).all(axis=1))
        # What stays if node i of the schedule becomes node j: of each job the smaller of both counts.
        stays = np.minimum(new[among][:, None], old[among][None]).sum(axis=2)
        for source, target in zip(*linear_sum_assignment(stays, maximize=True), strict=True):
            columns = slice(first[among[target]], first[among[target]] + int(group[1]))
            there[columns] = _on_node(new[among[source]], held[columns])
    return there


def _on_node(counts: IntArray, held: IntArray) -> IntArray:
    """(gpus of a node,) so many GPUs to each job, its own ones first."""
    left = counts.copy()
    there = np.full(len(held), IDLE, dtype=np.int64)
    for place, job in enumerate(held.tolist()):
        if job != IDLE and left[job] > 0:
            there[place] = job
            left[job] -= 1
    rest = np.repeat(np.arange(len(left)), left)
    there[np.flatnonzero(there == IDLE)[: len(rest)]] = rest
    return there


def within_nodes(gpus: Gpus, genome: IntArray, job: int, most_nodes: int) -> None:
    """Take the GPUs of a job on nodes beyond so many away, in place: those where it has fewest go first."""
    mine = genome == job
    nodes, counts = np.unique(gpus.node[mine], return_counts=True)
    lost = nodes[np.lexsort((nodes, -counts))][most_nodes:]
    genome[mine & np.isin(gpus.node, lost)] = IDLE


def pin_of(gpus: Gpus, columns: IntArray, batch: int) -> Pinned:
    """Exactly these GPUs, with a total batch split evenly, the rest on the first; 0: none is chosen."""
    columns = columns[np.lexsort((gpus.slot[columns], gpus.node[columns]))]
    nodes = np.unique(gpus.node[columns])
    masks = [int((1 << gpus.slot[columns[gpus.node[columns] == node]]).sum()) for node in nodes]
    each, rest = divmod(batch, len(columns))
    local = (each + 1,) * rest + (each,) * (len(columns) - rest) if batch else ()
    return Pinned(tuple(nodes.tolist()), tuple(mask.bit_count() for mask in masks), tuple(masks), local)
