"""What jobs hold before the first decision: whole requests, first come, first placed."""

import numpy as np

from stretto.experiments.steady.cluster import MadeCluster
from stretto.experiments.steady.jobs import Drawn
from stretto.model import Allocation, IntArray, JobId, Placement, lowest_gpus, no_placement


def first_placement(
    made: MadeCluster, drawn: Drawn, names: list[JobId], rng: np.random.Generator
) -> Placement:
    """Each of the first rows on the type drawn for it, else on the first with room; what finds none waits.

    names: of the rows that are there.
    """
    cluster = made.cluster
    free = np.where(made.usable, cluster.node_gpus, 0)
    types = range(len(cluster.types))
    nodes_of = [np.flatnonzero((cluster.kind == kind) & made.usable) for kind in types]
    largest = int(cluster.capacity.argmax())
    drawn_kind = rng.choice(len(nodes_of), len(names), p=cluster.capacity / cluster.total_gpus).tolist()
    allocations: dict[JobId, Allocation | None] = {}
    for row, name in enumerate(names):
        gpus = int(drawn.gpus[row])
        for kind in (largest,) if drawn.is_large[row] else (drawn_kind[row], *types):
            nodes = _first_fit(free, nodes_of[kind], gpus, int(cluster.gpus_per_node[kind]))
            if len(nodes):
                allocations[name] = _take(free, cluster.node_gpus, kind, nodes, gpus)
                break
    return no_placement(cluster).changed(allocations)


def _first_fit(free: IntArray, nodes: IntArray, gpus: int, per_node: int) -> IntArray:
    """The tightest node with room; for more than a node has, whole free nodes; none where there are none."""
    left = free[nodes]
    if gpus > per_node:
        whole: IntArray = nodes[left == per_node][: -(-gpus // per_node)]
        return whole if len(whole) * per_node >= gpus else whole[:0]
    looseness = np.where(left >= gpus, left, per_node + 1)
    best: IntArray = nodes[looseness.argmin() :][:1] if len(nodes) else nodes
    return best if len(best) and free[best[0]] >= gpus else nodes[:0]


def _take(free: IntArray, node_gpus: IntArray, kind: int, nodes: IntArray, gpus: int) -> Allocation:
    """So many GPUs of these nodes, the lowest free ones; on each node they are taken from below."""
    masks = []
    for node in nodes.tolist():
        count, had = min(gpus, int(free[node])), int(free[node])
        above = ((1 << had) - 1) << (int(node_gpus[node]) - had)
        masks.append(lowest_gpus(above, count))
        free[node] -= count
        gpus -= count
    return Allocation(kind, tuple(nodes.tolist()), tuple(masks))
