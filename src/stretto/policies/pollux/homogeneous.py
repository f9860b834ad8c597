"""How Pollux sees a cluster of several types: nodes of one size and type, one curve of speed for each job.

Sia (SOSP 2023), section 4.3, "Fixing mixed-GPU allocations from Pollux". A node larger than the smallest is
shown as several virtual ones. Of a mixed allocation only the type with most GPUs is kept.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.model import (
    Allocation,
    BoolArray,
    Cluster,
    FloatArray,
    IntArray,
    JobId,
    Pinned,
    Snapshot,
    Speeds,
)

SLOTS = 64  # more virtual nodes than one node can have
SPREAD = 1  # index of "on several nodes"; 0 is "on one"


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

    chosen: GPUs by virtual node as Pollux last gave them to jobs. They stand where they agree with what is
    held, and fit. Nodes may have been cut otherwise then, as where others now use a part of one. Of other
    allocations only the real nodes are known: they fill up parts with most room. A job that has GPUs on a
    node that is no longer usable counts as holding nothing, since it has to move.
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
        agrees = before is not None and shown.merged(before) == (allocation.nodes, allocation.shape)
        if before is not None and agrees and (before <= left).all():
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


def idle_of_one_type(nodes: VirtualNodes, free: IntArray, kinds: BoolArray, gpus: int) -> IntArray:
    """(virtual,) so many GPUs of one type, faster types first; none at all where no type has them.

    Of the fullest node with room, else of the emptiest ones. free: (virtual,) GPUs to take from; kinds:
    (types,) those that will do.
    """
    row = np.zeros_like(free)
    speed = np.array([gpu_type.speed for gpu_type in nodes.cluster.types])
    for kind in np.argsort(-speed, kind="stable").tolist():
        there = np.where((nodes.kind == kind) & kinds[kind], free, 0)
        if there.max(initial=0) >= gpus:
            row[np.where(there >= gpus, there, np.iinfo(np.int64).max).argmin()] = gpus
            return row
        if there.sum() >= gpus:
            shrunk = of_one_type(nodes, shrunk_to(there, gpus))
            if shrunk.sum() == gpus:
                return shrunk
    return row


def pin_of(shown: VirtualNodes, row: IntArray) -> Pinned:
    """Where a job is to run."""
    return Pinned(*shown.merged(row))


# What Pollux believes about speed: one curve for each job, whatever the GPU type.


def type_blind(
    speeds: Speeds, cluster: Cluster, allowed: BoolArray, node_gpus: int, units: int
) -> tuple[FloatArray, BoolArray]:
    """Relative speed (jobs, on several nodes, gpus) and on which types a job runs at all (jobs, types).

    allowed: (jobs, types). The last axis counts GPUs from 0 to `units`; NaN where the job cannot run so.

    Pollux fits one model to samples of all types together. Its fit minimises the errors of log times, so
    where types were sampled alike it lies at the geometric mean of what they show. That is what we take, over
    the types on which a job was seen. Before it was seen anywhere, it is over all on which it runs. Each type
    is relative to its own speed on one GPU: factors common to a row cancel in a speed-up.

    **Deviation**: types sampled at different counts do not distort the curve here, as they would in one fit.
    An estimator that pools a job's samples over types gives equal columns for them, and its curve then passes
    through unchanged. A count counts as possible if it is so on every type on which the job runs. The
    published simulator takes the limits of a single type.
    """
    # On one node there are no more GPUs than one node has.
    per_s, exists = _by_count(speeds, cluster, units)
    per_s[:, :, 0, node_gpus + 1 :] = np.nan
    known = per_s > 0
    runs = allowed & known.any(axis=(2, 3))
    here = known & runs[:, :, None, None]
    # A count is possible if no type on which the job runs, and which has so many GPUs, rules it out.
    possible = here.any(axis=1) & (known | ~exists | ~runs[:, :, None, None]).all(axis=1)
    seen = here & (speeds.observed_gpus > 0)[:, :, None, None]
    counted = np.where(seen.any(axis=1, keepdims=True), seen, here)
    # The geometric mean over types of speeds relative to one GPU.
    logs = np.log(np.where(known, per_s, 1.0) / _of_one_gpu(per_s, known)[:, :, None, None])
    mean = np.where(counted, logs, 0.0).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
    return np.where(possible, np.exp(mean), np.nan), runs


def _by_count(speeds: Speeds, cluster: Cluster, units: int) -> tuple[FloatArray, BoolArray]:
    """Speeds (jobs, types, on several nodes, gpus), and which of these are configurations at all.

    A type with a single node has no spread: several virtual nodes are that one.
    """
    offered = speeds.configurations
    column = np.full((len(cluster.types), 2, units + 1), -1)
    asked = np.flatnonzero(offered.gpus <= units)
    column[offered.kind[asked], (offered.nodes[asked] > 1).astype(np.int64), offered.gpus[asked]] = asked
    alone = np.bincount(cluster.kind, minlength=len(cluster.types)) == 1
    column[alone, SPREAD, 2:] = column[alone, 0, 2:]
    padded = np.hstack([speeds.per_s, np.full((len(speeds.per_s), 1), np.nan)])
    return padded[:, column], column >= 0


def _of_one_gpu(per_s: FloatArray, known: BoolArray) -> FloatArray:
    """(jobs, types) speed on the fewest GPUs on which a job runs, per GPU; 1 where there is none."""
    jobs, types, _, counts = per_s.shape
    first = known.reshape(jobs, types, 2 * counts).argmax(axis=2)
    speed = np.take_along_axis(per_s.reshape(jobs, types, 2 * counts), first[:, :, None], axis=2)[:, :, 0]
    return np.where(known.any(axis=(2, 3)), speed / np.maximum(first % counts, 1), 1.0)


def largest_possible(possible: BoolArray) -> IntArray:
    """The largest possible count up to each one, along the last axis; 0 where there is none."""
    counts = np.where(possible, np.arange(possible.shape[-1]), 0)
    return np.asarray(np.maximum.accumulate(counts, axis=-1))
