"""How Pollux sees nodes: all of one size and one type; and how what it decides becomes real again.

Sia (SOSP 2023), section 4.3, "Fixing mixed-GPU allocations from Pollux": a node larger than the smallest is
shown as several virtual ones, and of a mixed allocation only the type with most GPUs is kept.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.model import Allocation, BoolArray, Cluster, IntArray, JobId, Pinned, Snapshot

SLOTS = 64  # more virtual nodes than one node can have


@dataclass(frozen=True, eq=False)
class VirtualNodes:
    """Usable nodes in the cluster's order, each cut into parts of the smallest node's size and a rest."""

    cluster: Cluster
    node: IntArray  # (virtual,) the node that each is a part of
    gpus: IntArray  # (virtual,)
    place: IntArray  # (virtual,) a number that stays with a part when other nodes come and go

    @cached_property
    def kind(self) -> IntArray:
        """(virtual,) GPU type, which Pollux does not see."""
        return self.cluster.kind[self.node]

    def merged(self, row: IntArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Real nodes, in order, and the GPUs on each, of GPUs by virtual node."""
        parts = np.flatnonzero(row)
        nodes, first = np.unique(self.node[parts], return_index=True)
        return tuple(nodes.tolist()), tuple(np.add.reduceat(row[parts], first).tolist() if parts.size else ())


def virtual_nodes_of(cluster: Cluster, usable: BoolArray) -> VirtualNodes:
    """What Pollux is shown of a cluster."""
    size = smallest_node_gpus(cluster)
    parts = -(-cluster.node_gpus // size) * usable
    node = np.repeat(np.arange(len(parts)), parts)
    slot = np.arange(node.size) - np.repeat(np.cumsum(parts) - parts, parts)
    return VirtualNodes(
        cluster, node, np.minimum(size, cluster.node_gpus[node] - slot * size), node * SLOTS + slot
    )


def smallest_node_gpus(cluster: Cluster) -> int:
    """GPUs of the smallest node, usable now or not."""
    return int(cluster.node_gpus.min())


def rows_held(snapshot: Snapshot, shown: VirtualNodes, chosen: dict[JobId, IntArray]) -> IntArray:
    """(jobs, virtual) the GPUs that each job holds now.

    chosen: GPUs by virtual node as Pollux last gave them to jobs; they stand where they agree with what is
    held. Of other allocations only the real nodes are known: they fill up parts with most room. A job that
    has GPUs on a node that is no longer usable counts as holding nothing, since it has to move.
    """
    rows = np.zeros((len(snapshot.jobs), len(shown.node)), dtype=np.int64)
    left = shown.gpus.copy()
    unexplained: list[tuple[int, Allocation]] = []
    for row in np.flatnonzero(snapshot.jobs.held_gpus).tolist():
        job = snapshot.jobs[row].id
        allocation = snapshot.placement[job]
        if not snapshot.usable[list(allocation.nodes)].all():
            continue
        before = chosen.get(job)
        if before is not None and shown.merged(before) == (allocation.nodes, allocation.shape):
            rows[row] = before
            left -= before
        else:
            unexplained.append((row, allocation))
    # Now the others, part by part, where the explained ones have left room.
    for row, allocation in unexplained:
        for node, gpus in zip(allocation.nodes, allocation.shape, strict=True):
            parts = np.flatnonzero(shown.node == node)
            parts = parts[np.argsort(-left[parts], kind="stable")]
            room = left[parts]
            rows[row, parts] = np.clip(gpus - (np.cumsum(room) - room), 0, room)
            left[parts] -= rows[row, parts]
    return rows


def of_one_type(shown: VirtualNodes, row: IntArray) -> IntArray:
    """The GPUs of the type of which there are most, ties to the faster type, on as many nodes as it allows.

    Types of equal speed come in the cluster's order. **Deviation**: Sia does not say what happens where a
    type limits the nodes of a job; here the nodes with fewest GPUs go.
    """
    types = shown.cluster.types
    by_kind = np.bincount(shown.kind, row, len(types))
    kind = max(range(len(types)), key=lambda kind: (by_kind[kind], types[kind].speed, -kind))
    kept = np.where(shown.kind == kind, row, 0)
    limit = types[kind].max_nodes_per_job
    nodes, gpus = shown.merged(kept)
    if limit and len(nodes) > limit:
        largest = sorted(range(len(nodes)), key=lambda index: (-gpus[index], index))[:limit]
        kept = np.where(np.isin(shown.node, [nodes[index] for index in largest]), kept, 0)
    return kept


def shrunk_to(row: IntArray, gpus: int) -> IntArray:
    """So many of a row's GPUs: the largest pieces stay whole, ties by node."""
    largest = np.argsort(-row, kind="stable")
    kept = np.zeros_like(row)
    kept[largest] = np.clip(gpus - (np.cumsum(row[largest]) - row[largest]), 0, row[largest])
    return kept


def idle_of_one_type(shown: VirtualNodes, free: IntArray, kinds: BoolArray, gpus: int) -> IntArray:
    """(virtual,) so many GPUs of one type, faster types first; none at all where no type has them.

    Of the fullest node with room, else of the emptiest ones. free: (virtual,) GPUs to take from; kinds:
    (types,) those that will do.
    """
    row = np.zeros_like(free)
    speed = np.array([one.speed for one in shown.cluster.types])
    for kind in np.argsort(-speed, kind="stable").tolist():
        there = np.where((shown.kind == kind) & kinds[kind], free, 0)
        if there.max(initial=0) >= gpus:
            row[np.where(there >= gpus, there, np.iinfo(np.int64).max).argmin()] = gpus
            return row
        if there.sum() >= gpus:
            kept = of_one_type(shown, shrunk_to(there, gpus))
            if kept.sum() == gpus:
                return kept
    return row


def pin_of(shown: VirtualNodes, row: IntArray) -> Pinned:
    """Where a job is to run."""
    return Pinned(*shown.merged(row))
