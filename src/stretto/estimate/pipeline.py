"""How long does a step of a hybrid parallel job take?

A replica is a pipeline of P stages on as many GPUs; replicas average their gradients like those of data
parallel jobs. Sia (SOSP 2023), sections 3.4 and 5.3; the schedule is GPipe's (Huang et al., NeurIPS 2019):
all micro-batches forward, then all backward, so that each stage idles while the pipeline fills and drains.

    T_pipe = (q + P - 1) τ          q micro-batches, P stages, τ seconds per micro-batch and stage
    T_iter = T_pipe + T_sync(N)     N replicas; nothing overlaps
"""

import numpy as np
import numpy.typing as npt

from stretto.model.arrays import FloatArray, IntArray

FORWARD_AND_BACKWARD = 3.0  # a backward pass costs about two forward passes; Sia's published simulator


def pipeline_s(micro_batches: npt.ArrayLike, stages: npt.ArrayLike, micro_s: npt.ArrayLike) -> FloatArray:
    """Seconds to pass all micro-batches through the pipeline.

    micro_s: seconds per micro-batch and stage; forward *and* backward, `FORWARD_AND_BACKWARD` times forward.
    """
    slots = np.asarray(micro_batches) + np.asarray(stages) - 1
    return np.asarray(slots * np.asarray(micro_s, dtype=np.float64))


def bubble_fraction(micro_batches: npt.ArrayLike, stages: npt.ArrayLike) -> FloatArray:
    """Share of the time in which a stage waits for the pipeline to fill or drain: (P - 1) / (q + P - 1)."""
    idle = np.asarray(stages) - 1
    return np.asarray(idle / (np.asarray(micro_batches) + idle), dtype=np.float64)


def hybrid_iteration_s(
    micro_batches: npt.ArrayLike, stages: npt.ArrayLike, micro_s: npt.ArrayLike, sync_s: npt.ArrayLike
) -> FloatArray:
    """Seconds of one iteration of a hybrid parallel job whose replicas synchronise in `sync_s`."""
    return np.asarray(pipeline_s(micro_batches, stages, micro_s) + np.asarray(sync_s))


def hybrid_throughput(
    replicas: npt.ArrayLike,
    micro_batches: npt.ArrayLike,
    micro_batch: npt.ArrayLike,
    stages: npt.ArrayLike,
    micro_s: npt.ArrayLike,
    sync_s: npt.ArrayLike,
) -> FloatArray:
    """Samples per second: each replica passes `micro_batches` of `micro_batch` samples per iteration."""
    samples = np.asarray(replicas) * np.asarray(micro_batches) * np.asarray(micro_batch)
    return np.asarray(samples / hybrid_iteration_s(micro_batches, stages, micro_s, sync_s))


def replicas_of(gpus: npt.ArrayLike, stages: npt.ArrayLike) -> IntArray:
    """Replicas that exactly fill `gpus` GPUs; 0 where they are no multiple of the stages."""
    count, per_replica = np.asarray(gpus), np.asarray(stages)
    return np.where(count % per_replica == 0, count // per_replica, 0).astype(np.int64)
