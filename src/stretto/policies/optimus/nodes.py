"""Optimus' placement: evenly on as few nodes as can hold a job, smaller demands first."""

from collections.abc import Sequence

import numpy as np

from stretto.model import IntArray, Pinned, Snapshot


def even_counts(free: Sequence[int], gpus: int, most_nodes: int) -> tuple[int, ...]:
    """How many GPUs on each of the nodes with most of them free, in that order; empty where it cannot be.

    free: by node, decreasing. The fewest nodes k on which `gpus` lie evenly, as k counts that differ by one
    at most.
    """
    for nodes in range(1, min(len(free), gpus, most_nodes) + 1):
        each, larger = divmod(gpus, nodes)
        counts = (each + 1,) * larger + (each,) * (nodes - larger)
        if all(count <= there for count, there in zip(counts, free, strict=False)):
            return counts
    return ()


def pins_over_fewest_nodes(snapshot: Snapshot, gpus: IntArray, kind: IntArray) -> dict[int, Pinned]:
    """Where the jobs go whose share is not what they hold. Who cannot lie evenly is left to the placer.

    gpus, kind: (jobs,). Jobs by increasing demand, each on the nodes with most GPUs free then.
    """
    jobs, cluster = snapshot.jobs, snapshot.cluster
    changed = (gpus != jobs.held_gpus) | (kind != jobs.held_kind)
    free = np.where(snapshot.usable, snapshot.placement.free, 0)
    # Whatever changes lets go of its GPUs first.
    for row in np.flatnonzero(changed & (jobs.held_gpus > 0)).tolist():
        held = snapshot.placement[jobs.ids[row]]
        for node, mask in zip(held.nodes, held.masks, strict=True):
            free[node] += mask.bit_count() if snapshot.usable[node] else 0
    moving = np.flatnonzero(changed & (gpus > 0))
    pinned: dict[int, Pinned] = {}
    for row in moving[np.argsort(gpus[moving], kind="stable")].tolist():
        # Even counts over as few nodes as possible, the roomiest first.
        of_kind = np.flatnonzero(cluster.kind == kind[row])
        roomiest = of_kind[np.argsort(-free[of_kind], kind="stable")]
        most_nodes = cluster.types[int(kind[row])].max_nodes_per_job or len(roomiest)
        counts = even_counts(free[roomiest].tolist(), int(gpus[row]), most_nodes)
        if counts:
            where = sorted(zip(roomiest.tolist(), counts, strict=False))
            pinned[row] = Pinned(tuple(node for node, _ in where), tuple(count for _, count in where))
            free[[node for node, _ in where]] -= [count for _, count in where]
    return pinned
