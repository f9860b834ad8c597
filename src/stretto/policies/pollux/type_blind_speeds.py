"""What Pollux believes about speed: one curve for each job, whatever the GPU type."""

import numpy as np

from stretto.model import BoolArray, Cluster, FloatArray, IntArray, Speeds

SPREAD = 1  # index of "on several nodes"; 0 is "on one"


def type_blind(
    speeds: Speeds, cluster: Cluster, allowed: BoolArray, node_gpus: int, units: int
) -> tuple[FloatArray, BoolArray]:
    """Relative speed (jobs, on several nodes, gpus) and on which types a job runs at all (jobs, types).

    allowed: (jobs, types). The last axis counts GPUs from 0 to `units`; NaN where the job cannot run so.

    Pollux fits one model to samples of all types together. Its fit minimises the errors of log times, so
    where types were sampled alike it lies at the geometric mean of what they show. That is what we take,
    over the types on which a job was seen (over all on which it runs, before it was seen anywhere), each
    type relative to its own speed on one GPU: factors common to a row cancel in a speed-up.

    **Deviation**: types sampled at different counts do not distort the curve here, as they would in one fit.
    An estimator that pools a job's samples over types gives equal columns for them, and its curve then
    passes through unchanged. A count counts as possible if it is so on every type on which the job runs;
    the published simulator takes the limits of a single type.
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
