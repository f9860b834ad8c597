"""The profiler of Cornucopia, section 4.3: from measured throughput to scaling factors.

Algorithm 1 measures T, the throughput on 1 to 2R GPUs. Equation 1 turns it into scaling factors S, by which
the allocator gives and takes GPUs. When a count becomes known is up to the policy (`Cornucopia.profile`).
"""

from functools import lru_cache

import numpy as np

from stretto.model import FloatArray, MeasuredSpeeds

LINEAR_WITHIN = 0.05  # chosen: a job is linear where its last GPU brings at least 1 - 0.05 of its second
LONGEST_RAMP_STEP_S = 600.0  # of a job that reports nothing; chosen: a slow start and some reports
ALL_PROFILED = -1  # stands for a profile without gaps


def scaling_factors(throughput: FloatArray, asked: int) -> FloatArray:
    """(2R + 1,) S, worth of the GPU that comes on top of 0, 1, … 2R GPUs; equation 1 with guards.

    throughput: entry j is T^j, NaN where it is unknown or the job cannot run so; entry 0 is not read.
    The first GPU is worth 1, and GPU j + 1 is worth (T^{j+1} - T^j) / (T^2 - T^1), at least 0. Nothing is
    known beyond 2R, which is worth 0, and so is everything where the second GPU brings nothing.

    Deviation: where a job does not run on one or two GPUs, its average GPU at its smallest size stands in
    for the second.
    """
    most = 2 * asked
    known = np.full(most + 1, np.nan)
    known[: len(throughput)] = throughput[: most + 1]
    # T^2 - T^1, the denominator of equation 1; or the average GPU of the smallest size that runs.
    second = known[2] - known[1]
    if np.isnan(second):
        sizes = np.flatnonzero(np.isfinite(known[1:])) + 1
        second = known[sizes[0]] / sizes[0] if sizes.size else 0.0
    factors = np.zeros(most + 1)
    factors[0] = 1.0
    if second > 0:
        factors[1:most] = np.maximum(np.nan_to_num(np.diff(known[1:]) / second), 0.0)
    return factors


def extrapolated(throughput: FloatArray, profiled_upto: int, most: int) -> FloatArray:
    """(most + 1,) a profile of which only the first counts are known, continued.

    The last known step up is repeated, at most the one before it. Until two counts are known every GPU is
    taken for as good as the first.
    """
    continued = np.full(most + 1, np.nan)
    continued[0] = 0.0
    known = min(profiled_upto, most, len(throughput) - 1)
    continued[1 : known + 1] = throughput[1 : known + 1]
    if known < 1:
        return np.arange(most + 1, dtype=np.float64)
    steps = np.diff(continued[: known + 1])
    step = float(np.nanmin(steps[-2:])) if np.isfinite(steps[-2:]).any() else 0.0
    continued[known + 1 :] = continued[known] + step * np.arange(1, most - known + 1)
    return continued


@lru_cache(maxsize=65_536)
def measured_upto(table: MeasuredSpeeds) -> int:
    """The count up to which every count has been measured on some type; 0 where all was known beforehand."""
    if table.measured is None:
        return 0
    return int(table.measured[:, 1:].cumprod(axis=1).sum(axis=1).max())


@lru_cache(maxsize=65_536)
def profiled_factors(
    table: MeasuredSpeeds, kind: int, asked: int, profiled_upto: int = ALL_PROFILED
) -> tuple[float, ...]:
    """`scaling_factors` of a measured job on consolidated GPUs of one type, of what is profiled of it."""
    throughput = table.per_s[kind]
    if profiled_upto != ALL_PROFILED:
        throughput = extrapolated(throughput, profiled_upto, 2 * asked)
    return tuple(scaling_factors(throughput, asked).tolist())


def factor_of_last_gpu(factors: tuple[float, ...], gpus: int) -> float:
    """What a job that holds so many GPUs loses with one of them: what that one brought."""
    return factors[gpus - 1] if gpus <= len(factors) else 0.0


def is_linear(loss: float, within: float = LINEAR_WITHIN) -> bool:
    """Whether a job's last GPU brings as much as its second did, nearly."""
    return loss >= 1.0 - within
