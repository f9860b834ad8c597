"""How fast is a job on a GPU type on which it has not run with several GPUs?

Sia (SOSP 2023), section 3.2. Before a job starts, one GPU of each type is profiled. For K replicas on type B

1. B was measured with several GPUs: B's own model;
2. else another type A was:   X_B(K) = X_B(1) / X_A(1) · X_A(K)        (equation 1);
3. else:                      X_B(K) = K X_B(1)                        (perfect scaling).

For hybrid parallel jobs "one GPU" means one replica, and K counts replicas.

X_B(1) / X_A(1) is taken at a batch that both types were profiled with, where that is known; the published
code takes each at its type's largest local batch.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

from stretto.estimate.throughput import NO_SYNC_S
from stretto.model.arrays import FloatArray, IntArray


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


def source_of(
    kind: int, known: Known, mode: Mode = Mode.BOOTSTRAP, choice: Choice = Choice.MOST_OBSERVED
) -> Source | None:
    """What to believe of a job on GPU type `kind`; None while there is nothing to go by.

    A ratio of which either side was not profiled is 1. Where the job has run nowhere, a source of `perfect`
    scaling has the profile for its model; where it has run elsewhere, K X_B(1) is written as
    X_B(1) / X_A(1) · K X_A(1), so that both have the batch sizes of A's model.
    """
    # What was measured here needs no stand-in.
    if known.several[kind] or (mode is Mode.ORACLE and known.alone[kind]):
        return Source(kind, 1.0, perfect=False)
    types = range(len(known.several))
    ran = [one for one in types if known.several[one] or known.alone[one]]
    # Without profiles any type that it ran on stands in as it is.
    if mode is Mode.NO_PROF:
        reference = kind if kind in ran else _stand_in(kind, ran, known, choice)
        return None if reference is None else Source(reference, 1.0, perfect=True)
    if choice is Choice.FIRST_MODEL:
        reference = kind if kind in ran else _stand_in(kind, ran, known, choice)
    else:
        # Prefer a type on which it ran on several GPUs: only there is its scaling known.
        measured = [one for one in ran if known.several[one]]
        reference = _stand_in(kind, measured or ([kind] if kind in ran else ran), known, choice)
    if reference is not None:
        ratio = 1.0 if reference == kind else single_ratio(known, kind, reference)
        return Source(reference, ratio, perfect=not known.several[reference])
    return Source(kind, 1.0, perfect=True) if isfinite(known.single_per_s[kind]) else None


def _stand_in(kind: int, candidates: list[int], known: Known, choice: Choice) -> int | None:
    """The type among `candidates` that stands in for `kind`."""
    if not candidates:
        return None
    if choice is Choice.FIRST_MODEL:
        return candidates[0]
    size = known.gpus_per_node
    return min(candidates, key=lambda one: (-known.several[one], abs(size[one] - size[kind]), one))


def single_ratio(known: Known, kind: int, reference: int) -> float:
    """X_B(1) / X_A(1), at a common batch where profiles say it; 1 where either was not profiled."""
    if known.ratio is not None:
        common = known.ratio[kind][reference]
        return common if 0 < common < inf else 1.0
    here, there = known.single_per_s[kind], known.single_per_s[reference]
    return here / there if 0 < here < inf and 0 < there < inf else 1.0


def perfectly_scaled(single_per_s: FloatArray | float, replicas: IntArray) -> FloatArray:
    """K X(1); the arguments broadcast."""
    return np.asarray(single_per_s * np.asarray(replicas, dtype=np.float64))


def without_sync(params: FloatArray) -> FloatArray:
    """The same models (..., 7) with nothing to synchronise, so that they scale perfectly."""
    alone = np.array(params, dtype=np.float64)
    alone[..., 2:6] = NO_SYNC_S, 0.0, NO_SYNC_S, 0.0
    return alone
