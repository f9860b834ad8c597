"""How fast is a job on a GPU type on which it has not run with several GPUs?

Sia (SOSP 2023), section 3.2. Before a job starts, one GPU of each type is profiled. For K replicas on type B

1. B was measured with several GPUs: B's own model;
2. else another type A was:   X_B(K) = X_B(1) / X_A(1) · X_A(K)        (equation 1);
3. else:                      X_B(K) = K X_B(1)                        (perfect scaling).

For hybrid parallel jobs "one GPU" means one replica, and K counts replicas.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stretto.estimate.throughput import NO_SYNC_S
from stretto.model.arrays import FloatArray, IntArray


class Mode(StrEnum):
    """What is known beforehand; Sia, section 5.7."""

    ORACLE = "oracle"  # every type's own model is right from the start
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


class Source(NamedTuple):
    """Where a type's speeds come from: `ratio` times those that the model of type `kind` predicts."""

    kind: int
    ratio: float
    perfect: bool  # ignore the model's synchronisation times


def source_of(
    kind: int, known: Known, mode: Mode = Mode.BOOTSTRAP, choice: Choice = Choice.MOST_OBSERVED
) -> Source | None:
    """What to believe of a job on GPU type `kind`; None while there is nothing to go by.

    In the oracle's mode `known` does not matter. A ratio of which either side was not profiled is 1. A
    source of `perfect` scaling on a type that was only profiled has the profile for its model.
    """
    if mode is Mode.ORACLE or known.several[kind]:
        return Source(kind, 1.0, perfect=False)
    types = range(len(known.several))
    ran = [one for one in types if known.several[one] or known.alone[one]]
    if mode is Mode.NO_PROF:
        reference = kind if kind in ran else _stand_in(kind, ran, known, choice)
        return None if reference is None else Source(reference, 1.0, perfect=True)
    if choice is Choice.FIRST_MODEL:
        if kind in ran:
            return Source(kind, 1.0, perfect=True)
        reference = ran[0] if ran else None
    else:
        reference = _stand_in(kind, [one for one in types if known.several[one]], known, choice)
    if reference is not None:
        perfect = not known.several[reference]
        return Source(reference, single_ratio(known, kind, reference), perfect)
    if kind in ran or np.isfinite(known.single_per_s[kind]):
        return Source(kind, 1.0, perfect=True)
    reference = _stand_in(kind, ran, known, choice)
    return None if reference is None else Source(reference, 1.0, perfect=True)


def _stand_in(kind: int, candidates: list[int], known: Known, choice: Choice) -> int | None:
    """The type among `candidates` that stands in for `kind`."""
    if not candidates:
        return None
    if choice is Choice.FIRST_MODEL:
        return candidates[0]
    size = known.gpus_per_node
    return min(candidates, key=lambda one: (-known.several[one], abs(size[one] - size[kind]), one))


def single_ratio(known: Known, kind: int, reference: int) -> float:
    """X_B(1) / X_A(1); 1 where either was not profiled."""
    ratio = known.single_per_s[kind] / known.single_per_s[reference]
    return ratio if np.isfinite(ratio) and ratio > 0 else 1.0


def profiled_single_per_s(
    batches: IntArray, per_s: FloatArray, other_batches: IntArray, other_per_s: FloatArray
) -> tuple[float, float]:
    """X_B(1) and X_A(1), samples/s, from one-GPU profiles of two types (batches ascending, speeds).

    At the largest batch that both were profiled with; where there is none, each at its best.
    """
    common, here, there = np.intersect1d(batches, other_batches, return_indices=True)
    if len(common):
        return float(per_s[here[-1]]), float(other_per_s[there[-1]])
    return float(per_s.max()), float(other_per_s.max())


def carried_over(single_b: float, single_a: float, several_a: FloatArray) -> FloatArray:
    """Equation 1: X_B(K) from one-GPU speeds and X_A(K)."""
    return single_b / single_a * several_a


def perfectly_scaled(single: float, replicas: IntArray) -> FloatArray:
    """K X(1)."""
    return single * np.asarray(replicas, dtype=np.float64)


def without_sync(params: FloatArray) -> FloatArray:
    """The same models (..., 7) with nothing to synchronise, so that they scale perfectly."""
    alone = np.array(params, dtype=np.float64)
    alone[..., 2:6] = NO_SYNC_S, 0.0, NO_SYNC_S, 0.0
    return alone
