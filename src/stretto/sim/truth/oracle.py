"""What an oracle would know of a training job before it starts: its true step times, as observations."""

from math import ceil

import numpy as np

from stretto.model import (
    NOTHING_OBSERVED,
    Cluster,
    Observations,
    Point,
    powers_and_whole_nodes,
)
from stretto.sim.truth.training import TrainingTruth

BATCHES = 4  # chosen: local batches shown for each placement, spaced geometrically


def true_observations(truth: TrainingTruth, cluster: Cluster) -> tuple[Observations, ...]:
    """By GPU type: exact times on Sia's bundles of GPUs, whole nodes by powers of two and all of them.

    Nothing where the model does not run on a type. For the mode *oracle* of Sia (SOSP 2023), section 5.7;
    what an estimator makes of them is still a fit of the throughput model.
    """
    return tuple(_on_type(truth, cluster, kind) for kind in range(len(cluster.types)))


def _on_type(truth: TrainingTruth, cluster: Cluster, kind: int) -> Observations:
    limits = truth.limits
    if not limits.max_local[kind]:
        return NOTHING_OBSERVED
    bundles = powers_and_whole_nodes(cluster)
    of_kind = np.flatnonzero(bundles.kind == kind).tolist()
    points = []
    for column in of_kind:
        nodes, gpus = int(bundles.nodes[column]), int(bundles.gpus[column])
        replicas, part = divmod(gpus, int(limits.replica_gpus[kind]))
        fits = replicas * int(limits.min_local[kind]) <= limits.max_batch
        is_round = nodes & (nodes - 1) == 0 or column == of_kind[-1]
        if replicas and not part and fits and is_round:
            shape = (gpus // nodes,) * nodes
            for local in _local_batches(truth, kind, replicas):
                step_s, sync_s = truth.step(kind, shape, local)
                points.append(Point(nodes, replicas, local, step_s - sync_s, step_s))
    return Observations(tuple(points))


def _local_batches(truth: TrainingTruth, kind: int, replicas: int) -> list[int]:
    """From the smallest local batch to the largest that fits and stays within the largest total batch."""
    limits = truth.limits
    least = int(limits.min_local[kind])
    most = max(min(truth.most_local(kind, replicas), ceil(limits.max_batch / replicas)), least)
    return sorted({round(batch) for batch in np.geomspace(least, most, BATCHES).tolist()})
