"""How long one training step takes on some GPUs of one type.

    T_grad(m)   = α_c + β_c m
    T_sync(K,N) = 0                           K = 1
                = α_l + β_l max(K - 2, 0)     K ≥ 2, N = 1
                = α_n + β_n max(K - 2, 0)     N ≥ 2
    T_step      = (T_grad^γ + T_sync^γ)^(1/γ)
    T_iter      = s T_grad + T_step

for K GPUs on N nodes, m samples a GPU and pass. The s passes before the one that synchronises only
accumulate. With γ = 1 computing and communicating take turns, with γ → ∞ the shorter hides behind the longer.
Pollux (Qiao et al., OSDI 2021), section 3.2; used by Sia (SOSP 2023), section 3.2.

Parameters are arrays (..., 7) in the order of `ThroughputModel`; the other arguments broadcast against the
leading shape.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stretto.model.arrays import BoolArray, FloatArray, IntArray

NO_SYNC_S = 1e-8  # stands for zero, so that its logarithm exists; as in Pollux's published code
FORWARD_AND_BACKWARD = 3.0  # a backward pass costs about two forward passes; Sia's published simulator


class ThroughputModel(NamedTuple):
    """The seven parameters, for one job on one GPU type. `numpy.asarray` of it is a (7,) array."""

    alpha_c: float  # s, fixed part of a forward and backward pass
    beta_c: float  # s per sample on the GPU
    alpha_n: float  # s, synchronising two GPUs on different nodes
    beta_n: float  # s per GPU beyond two, on several nodes
    alpha_l: float  # s, synchronising two GPUs of one node
    beta_l: float  # s per GPU beyond two, within a node
    gamma: float  # 1 (no overlap) to 10 (nearly perfect overlap)


Parameters = FloatArray | ThroughputModel


"""(..., 7) in the order of `ThroughputModel`, or one such model."""


def grad_s(params: Parameters, local_batch: npt.ArrayLike) -> FloatArray:
    """Seconds of one forward and backward pass over `local_batch` samples."""
    p = np.asarray(params, dtype=np.float64)
    return np.asarray(p[..., 0] + p[..., 1] * np.asarray(local_batch))


def sync_s(params: Parameters, nodes: npt.ArrayLike, gpus: npt.ArrayLike) -> FloatArray:
    """Seconds of averaging the gradients of `gpus` replicas on `nodes` nodes; `NO_SYNC_S` for one."""
    p = np.asarray(params, dtype=np.float64)
    count = np.asarray(gpus)
    beyond_two = np.maximum(count - 2, 0)
    across = p[..., 2] + p[..., 3] * beyond_two
    within = p[..., 4] + p[..., 5] * beyond_two
    return np.where(count < 2, NO_SYNC_S, np.where(np.asarray(nodes) > 1, across, within))


def overlapped_s(grad: npt.ArrayLike, sync: npt.ArrayLike, gamma: npt.ArrayLike) -> FloatArray:
    """(T_grad^γ + T_sync^γ)^(1/γ), computed from the larger of the two so that no power overflows."""
    longer = np.maximum(grad, sync)
    ratio = np.minimum(grad, sync) / longer
    power = np.asarray(gamma)
    return np.asarray(longer * (1.0 + ratio**power) ** (1.0 / power))


def step_s(
    params: Parameters, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local_batch: npt.ArrayLike
) -> FloatArray:
    """Seconds of one pass that synchronises."""
    p = np.asarray(params, dtype=np.float64)
    return overlapped_s(grad_s(p, local_batch), sync_s(p, nodes, gpus), p[..., 6])


def iteration_s(
    params: Parameters,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    local_batch: npt.ArrayLike,
    accumulation: npt.ArrayLike = 0,
) -> FloatArray:
    """Seconds of one optimiser iteration: `accumulation` passes alone, then one that synchronises."""
    alone = np.asarray(accumulation) * grad_s(params, local_batch)
    return np.asarray(alone + step_s(params, nodes, gpus, local_batch))


def throughput(
    params: Parameters,
    nodes: npt.ArrayLike,
    gpus: npt.ArrayLike,
    local_batch: npt.ArrayLike,
    accumulation: npt.ArrayLike = 0,
) -> FloatArray:
    """Samples per second: K m (s + 1) / T_iter."""
    samples = np.asarray(gpus) * np.asarray(local_batch) * (np.asarray(accumulation) + 1)
    return np.asarray(samples / iteration_s(params, nodes, gpus, local_batch, accumulation))


# How long does a step of a hybrid parallel job take?
#
# A replica is a pipeline of P stages on as many GPUs; replicas average their gradients like those of data
# parallel jobs. Sia (SOSP 2023), sections 3.4 and 5.3; the schedule is GPipe's (Huang et al., NeurIPS 2019):
# all micro-batches forward, then all backward, so that each stage idles while the pipeline fills and drains.
#
#     T_pipe = (q + P - 1) τ          q micro-batches, P stages, τ seconds per micro-batch and stage
#     T_iter = T_pipe + T_sync(N)     N replicas; nothing overlaps


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


# ── how fast is a job on a GPU type on which it has not run with several GPUs? ──────────────────────────────
# Sia (SOSP 2023), section 3.2. Before a job starts, one GPU of each type is profiled. For K replicas on
# type B
#
# 1. B was measured with several GPUs: B's own model;
# 2. else another type A was:   X_B(K) = X_B(1) / X_A(1) · X_A(K)        (equation 1);
# 3. else:                      X_B(K) = K X_B(1)                        (perfect scaling).
#
# For hybrid parallel jobs "one GPU" means one replica, and K counts replicas.
#
# X_B(1) / X_A(1) is taken at a batch that both types were profiled with, where that is known; the published
# code takes each at its type's largest local batch.


class Mode(StrEnum):
    """What is known beforehand; Sia, section 5.7."""

    ORACLE = "oracle"  # every speed on every type: each type has a model of its own from the start
    BOOTSTRAP = "bootstrap"  # one GPU of each type was profiled
    NO_PROF = "no-prof"  # nothing: types count as equal, and scaling as perfect, until a type is tried


class Choice(StrEnum):
    """Which type A stands in for a type B."""

    MOST_OBSERVED = "most"  # measured with several GPUs at most points, then of nearest node size, then first
    FIRST_MODEL = (
        "first"  # first type that the job ran on at all, and B itself if it did; Sia's published code
    )


@dataclass(frozen=True, slots=True)
class Known:
    """What has been seen of one job, each by GPU type in the cluster's order."""

    several: tuple[int, ...]  # operating points measured on more than one GPU
    alone: tuple[int, ...]  # operating points measured on one GPU, while running
    single_per_s: tuple[float, ...]  # samples/s on one GPU, profiled; NaN: not profiled
    gpus_per_node: tuple[int, ...]
    ratio: tuple[tuple[float, ...], ...] | None = None  # X_B(1) / X_A(1) by (B, A) at a common batch; NaN


class Source(NamedTuple):
    """Where a type's speeds come from: `ratio` times those that the model of type `kind` predicts."""

    kind: int
    ratio: float
    perfect: bool  # ignore the model's synchronisation times


class Sources(NamedTuple):
    """The same of many jobs on every type, as columns (jobs, types)."""

    kind: IntArray  # -1: there is nothing to go by
    ratio: FloatArray
    perfect: BoolArray


def source_of(
    kind: int, known: Known, mode: Mode = Mode.BOOTSTRAP, choice: Choice = Choice.MOST_OBSERVED
) -> Source | None:
    """What to believe of a job on GPU type `kind`; None while there is nothing to go by."""
    single = np.array([known.single_per_s])
    sources = sources_of(
        np.array([known.several]),
        np.array([known.alone]),
        np.isfinite(single),
        single_ratios(single if known.ratio is None else None, known.ratio)[None],
        known.gpus_per_node,
        mode,
        choice,
    )
    reference = int(sources.kind[0, kind])
    if reference < 0:
        return None
    return Source(reference, float(sources.ratio[0, kind]), bool(sources.perfect[0, kind]))


def sources_of(
    several: IntArray,
    alone: IntArray,
    is_profiled: BoolArray,
    single_ratio: FloatArray,
    gpus_per_node: tuple[int, ...],
    mode: Mode = Mode.BOOTSTRAP,
    choice: Choice = Choice.MOST_OBSERVED,
) -> Sources:
    """What to believe of each job on each type.

    several, alone: (jobs, types) as in `Known`. single_ratio: (jobs, types, types) X_B(1) / X_A(1). Where a
    job has run nowhere, a source of `perfect` scaling has the profile for its model. Where it has run
    elsewhere, K X_B(1) is written as X_B(1) / X_A(1) · K X_A(1), so that both have the batch sizes of A's
    model.
    """
    jobs, types = several.shape
    kind = np.arange(types)
    ran = (several > 0) | (alone > 0)
    # What was measured here needs no stand-in.
    own = (several > 0) | (ran if mode is Mode.ORACLE else np.zeros_like(ran))
    # Where a job has run on several GPUs of some type, its scaling is known only there.
    candidates = ran
    if choice is Choice.MOST_OBSERVED and mode is not Mode.NO_PROF:
        measured = several > 0
        candidates = np.where(measured.any(axis=1, keepdims=True), measured, ran)
        itself = ran & ~measured.any(axis=1, keepdims=True)
    else:
        itself = ran
    reference = _stand_ins(candidates, several, gpus_per_node, choice)
    reference = np.where(own | itself, kind, reference)
    # Without a type that it ran on, only its profile is left.
    blind = reference < 0
    if mode is not Mode.NO_PROF:
        reference = np.where(blind & is_profiled, kind, reference)
    row = np.arange(jobs)[:, None]
    carried = (reference >= 0) & (reference != kind) & (mode is not Mode.NO_PROF)
    ratio = np.where(carried, single_ratio[row, kind, reference], 1.0)
    perfect = several[row, reference] == 0
    if mode is Mode.NO_PROF:
        perfect = np.ones_like(perfect)
    return Sources(reference, ratio, (perfect | blind) & ~own)


def _stand_ins(
    candidates: BoolArray, several: IntArray, gpus_per_node: tuple[int, ...], choice: Choice
) -> IntArray:
    """(jobs, types) the type among the candidates that stands in for each; -1 where there is none."""
    types = candidates.shape[1]
    first = np.where(candidates.any(axis=1), candidates.argmax(axis=1), -1)
    if choice is Choice.FIRST_MODEL:
        return np.repeat(first[:, None], types, axis=1)
    size = np.array(gpus_per_node)
    apart = np.abs(size[:, None] - size)  # (for, by)
    # Most points first, then the nearest node size, then the first: one number for all three.
    rank = -several[:, None, :] * (int(size.max()) + 1) + apart
    rank = np.where(candidates[:, None, :], rank, np.iinfo(np.int64).max)
    return np.where(first[:, None] < 0, -1, rank.argmin(axis=2))


def single_ratios(single_per_s: FloatArray | None, common: "npt.ArrayLike | None" = None) -> FloatArray:
    """(types, types) X_B(1) / X_A(1), at a common batch where profiles say it; 1 where one was not profiled.

    single_per_s: (types,) of each type at a batch of its own. common: (types, types) by (B, A).
    """
    if common is not None:
        ratio = np.asarray(common, dtype=np.float64)
    else:
        single = np.ravel(np.asarray(single_per_s, dtype=np.float64))
        single = np.where((single > 0) & (single < inf), single, np.nan)
        ratio = single[:, None] / single
    with np.errstate(invalid="ignore"):
        return np.where((ratio > 0) & (ratio < inf), ratio, 1.0)


def perfectly_scaled(single_per_s: FloatArray | float, replicas: IntArray) -> FloatArray:
    """K X(1); the arguments broadcast."""
    return np.asarray(single_per_s * np.asarray(replicas, dtype=np.float64))


def without_sync(params: FloatArray) -> FloatArray:
    """The same models (..., 7) with nothing to synchronise, so that they scale perfectly."""
    alone = np.array(params, dtype=np.float64)
    alone[..., 2:6] = NO_SYNC_S, 0.0, NO_SYNC_S, 0.0
    return alone
