"""How long does a job take on a placement, and how often will it be stopped? From runs on two GPUs.

UniSched (TPDS 2024), section III-B: the duration of a job (equation 1) is

    T_dur = T_sr + N_iter T_iter

with the time of an iteration from a profile of one and two GPUs (equation 2). The expected cost of
suspensions follows from how many of the leases before its deadline the job needs (equation 3).
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from stretto.model import FloatArray, MeasuredSpeeds

PROFILE_GPUS = 2  # a profiling run needs no more [paper]
BEST_EFFORT_CHANCE = 0.5  # that a best-effort job is suspended after a lease [paper]


@dataclass(frozen=True, slots=True)
class TwoGpuProfile:
    """Seconds measured on one and two GPUs, for one job."""

    step_s: float  # of a whole step (all samples of the job's batch) on one GPU; NaN: not measured
    near_s: float  # communication of a step between two GPUs of a node (T^1 of the paper)
    far_s: float  # between two nodes (T^2)


def two_gpu_profile(table: MeasuredSpeeds, kind: int) -> TwoGpuProfile:
    """What a run on two GPUs would have measured, read from the entries of a table for one and two GPUs.

    The table is for the job's own batch, so two GPUs do half a step each. What a step on them takes beyond
    that is communication. Entries for more GPUs are not looked at. A missing entry counts as no
    communication; a missing one for one GPU as nothing measured.
    """
    single_s = 1.0 / float(table.per_s[kind, 1])
    near_s, far_s = (
        1.0 / float(speeds[kind, PROFILE_GPUS]) if speeds.shape[1] > PROFILE_GPUS else np.nan
        for speeds in (table.per_s, table.spread_per_s)
    )
    near_s = max(near_s - single_s / 2, 0.0) if np.isfinite(near_s) else 0.0
    return TwoGpuProfile(
        single_s, near_s, max(far_s - single_s / 2, near_s) if np.isfinite(far_s) else near_s
    )


def iteration_s(
    compute_s: ArrayLike, near_s: ArrayLike, far_s: ArrayLike, gpus: ArrayLike, one_node: ArrayLike
) -> FloatArray:
    """Seconds of one iteration, in the shape of the arguments, which broadcast. Equation 2 of the paper.

    T_iter = T_comp                      on one GPU
           = T_comp + (n - 1) T^1        on n GPUs of one node
           = T_comp + (n - 1) T^2        on n GPUs of several nodes

    compute_s: of what one GPU does of the iteration. Nothing overlaps: the estimate errs to the long side,
    and for many GPUs far (all-reduce does not grow with n).
    """
    others = np.asarray(gpus, dtype=np.float64) - 1.0
    exchanged_s = others * np.where(np.asarray(one_node), np.asarray(near_s), np.asarray(far_s))
    return np.asarray(np.asarray(compute_s) + exchanged_s, dtype=np.float64)


def relative_speed(
    profile: TwoGpuProfile, gpus: ArrayLike, one_node: ArrayLike, best_one_node: ArrayLike
) -> FloatArray:
    """Speed of placements of a job beside its best one, in (0, 1] (equation 8); 1 where nothing is known."""
    count, on_one = np.broadcast_arrays(np.asarray(gpus, dtype=np.float64), np.asarray(one_node))
    if not np.isfinite(profile.step_s):
        return np.ones(count.shape)
    compute_s = profile.step_s / count
    best_s = iteration_s(compute_s, profile.near_s, profile.far_s, count, best_one_node)
    return np.minimum(best_s / iteration_s(compute_s, profile.near_s, profile.far_s, count, on_one), 1.0)


def suspension_probabilities(needed: int, available: int) -> FloatArray:
    """(k,) probability that a job which runs in `needed` of `available` leases is suspended k times.

    All choices of leases are equally likely: C(n-1, k) C(m-n+1, k+1) / C(m, n) for 0 <= k <= min(n-1, m-n).
    """
    ways = comb(available, needed)
    most = min(needed - 1, available - needed)
    return np.array(
        [comb(needed - 1, k) * comb(available - needed + 1, k + 1) / ways for k in range(most + 1)]
    )


def suspensions(needed: ArrayLike, available: ArrayLike) -> FloatArray:
    """Expected suspensions of a job with a deadline: (n - 1)(m - n) / m, equation 3 in closed form.

    needed: leases n that the job runs; available: leases m before its deadline. 0 where the job cannot make
    it (n > m) or has no lease left: that is for the planner to find out.
    """
    n, m = np.asarray(needed, dtype=np.float64), np.asarray(available, dtype=np.float64)
    possible = (n <= m) & (m > 0) & (n >= 1)
    return np.where(possible, (n - 1.0) * (m - n) / np.maximum(m, 1.0), 0.0)


def best_effort_suspensions(needed: ArrayLike) -> FloatArray:
    """Expected suspensions of a job without a deadline that runs for n leases: n / 2."""
    return np.asarray(needed, dtype=np.float64) * BEST_EFFORT_CHANCE
