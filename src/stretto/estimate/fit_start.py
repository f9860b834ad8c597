"""The fit of a throughput model as arrays: data sets side by side, bounds, and a good place to start.

Parameters here are θ = (α_c, β_c, x_n, ρ_n, x_l, ρ_l, γ), shape (sets, 7), in the order of
`ThroughputModel`. ρ = β/α is what the objective penalises. x is the logarithm of the *excess* that
synchronising two GPUs adds to a pass of the usual length G,

    e^x = T_step - G,    α = ((G + e^x)^γ - G^γ)^(1/γ),

because that is what the measurements fix: α itself must change by orders of magnitude when γ moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.estimate.throughput import NO_SYNC_S
from stretto.model.arrays import BoolArray, FloatArray
from stretto.model.errors import InputError
from stretto.model.observations import Observations

LOWEST = 1e-8  # bound of α and β; Pollux's published code
MOST_GAMMA = 10.0  # Pollux, section 3.2
LEAST_SYNC_S = 1e-6  # chosen: bound of a fitted excess; above LOWEST, or β/α = 1 would cost at the bound
FIRST_GAMMA = 1.5  # chosen: some overlap, so that both directions of γ are open
STEEPEST = 3.0  # chosen: largest β/α to start from

LOWER = np.array([LOWEST, LOWEST, np.log(LEAST_SYNC_S), 0, np.log(LEAST_SYNC_S), 0, 1])
UPPER = np.array([np.inf, np.inf, np.inf, np.inf, np.inf, np.inf, MOST_GAMMA])

ALPHA_C, BETA_C, EXCESS_N, RATIO_N, EXCESS_L, RATIO_L, GAMMA = range(7)


@dataclass(frozen=True, eq=False)
class Problem:
    """Data sets to fit, side by side, the shorter ones padded with points of no weight."""

    points: FloatArray  # (9, points, sets): local batch; across, across × (K - 2), within, within × (K - 2);
    #                     log T_sync of a single GPU; log T_grad, log T_step; weight
    usual_s: FloatArray  # (2, sets) G: mean T_grad on several nodes, and on several GPUs of one node
    seen: BoolArray  # (2, sets) something ran on several nodes; on several GPUs of one node
    lower: FloatArray  # (sets, 7)
    upper: FloatArray  # (sets, 7); equal to lower where a parameter is not fitted
    start: FloatArray  # (sets, 7), within the bounds


def problem_of(observed: Sequence[Observations]) -> Problem:
    """Arrays, bounds and start for these data sets; each has at least one point."""
    lengths = np.array([len(one) for one in observed])
    raw = np.ones((int(lengths.max()), len(observed), 5))
    for index, one in enumerate(observed):
        raw[: len(one), index] = one.points
    if not ((raw > 0) & (raw < np.inf)).all():
        raise InputError(_refused(observed))
    nodes, gpus, local_batch, grad, step = raw.transpose(2, 0, 1)
    present = np.arange(len(raw))[:, None] < lengths
    weight = present / lengths
    single = gpus < 2
    across = (nodes > 1) & ~single
    within = ~(across | single)
    beyond_two = np.maximum(gpus - 2, 0)
    points = np.stack([
        local_batch, across, across * beyond_two, within, within * beyond_two,
        single * np.log(NO_SYNC_S), np.log(grad), np.log(step), weight,
    ])  # fmt: skip

    seen = np.asarray(points[1:5:2].any(axis=1))
    one_batch = ~((local_batch != local_batch[0]) & present).any(axis=0)
    several, beyond_seen = seen.any(axis=0), (gpus > 2).any(axis=0)
    fixed = np.zeros((len(observed), 7), dtype=np.bool_)
    fixed[:, ALPHA_C] = one_batch
    fixed[:, [EXCESS_N, EXCESS_L]] = ~seen.T
    fixed[:, [RATIO_N, RATIO_L]] = ~(seen & beyond_seen).T
    fixed[:, GAMMA] = ~several

    start = np.empty((len(observed), 7))
    middle = np.where(several, grad, np.sqrt(grad * step))
    start[:, :EXCESS_N] = _compute_line(local_batch, middle, grad, weight, one_batch)
    lines, usual_s = _sync_lines(grad, step, beyond_two, weight[:, None] * points[1:5:2].transpose(1, 0, 2))
    start[:, EXCESS_N:GAMMA] = lines
    start[:, GAMMA] = np.where(several, FIRST_GAMMA, 1.0)
    start = np.clip(start, LOWER, UPPER)
    start[:, RATIO_N:GAMMA:2] *= ~fixed[:, RATIO_N:GAMMA:2]
    return Problem(points, usual_s, seen, np.where(fixed, start, LOWER), np.where(fixed, start, UPPER), start)


def _refused(observed: Sequence[Observations]) -> str:
    """What is wrong with the first point that is not positive and finite throughout."""
    points = [point for one in observed for point in one.points]
    wrong = next(point for point in points if not all(0 < value < np.inf for value in point))
    return f"counts and times of a measured point must be positive and finite, got {wrong}"


def _sums(*terms: FloatArray) -> FloatArray:
    """(terms, ..., sets) sums over the points, the first axis of each term, one point after the other."""
    return np.asarray(np.stack(terms, axis=1).sum(axis=0))


def _compute_line(
    local_batch: FloatArray, target: FloatArray, grad: FloatArray, weight: FloatArray, one_batch: BoolArray
) -> FloatArray:
    """(sets, 2) α_c and β_c of the line through `target` with least relative error, neither negative.

    With one local batch only, α_c is half the mean of T_grad.
    """
    per_s, batch_per_s = 1 / target, local_batch / target
    w, wb = weight * per_s, weight * batch_per_s
    s1, s2, s11, s12, s22, mean, mean_log = _sums(
        w, wb, w * per_s, w * batch_per_s, wb * batch_per_s, weight * grad, weight * np.log(target)
    )
    determinant = s11 * s22 - s12 * s12
    determinant = np.where(one_batch | (determinant <= 0), np.inf, determinant)
    alpha, beta = (s1 * s22 - s2 * s12) / determinant, (s2 * s11 - s1 * s12) / determinant
    alpha, beta = np.where(beta < LOWEST, s1 / s11, alpha), np.where(alpha < LOWEST, s2 / s22, beta)
    half = mean / 2
    alpha = np.where(one_batch, half, alpha)
    beta = np.where(one_batch, (np.exp(mean_log) - half) / local_batch[0], beta)
    return np.stack([alpha, beta], axis=1)


def _sync_lines(
    grad: FloatArray, step: FloatArray, beyond_two: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(sets, 4) x and ρ of the lines through T_step - T_grad, and G (2, sets), for either kind of sync.

    weight: (points, 2, sets). Each point counts as much as it does in log T_step.
    """
    excess = np.maximum(step - grad, LEAST_SYNC_S)[:, None]
    w = weight / (step * step)[:, None]
    wk = w * beyond_two[:, None]
    s0, s1, s2, t0, t1, mean, total = _sums(
        w, wk, wk * beyond_two[:, None], w * excess, wk * excess, weight * grad[:, None], weight
    )
    s0 = np.where(s0 > 0, s0, 1.0)
    determinant = s0 * s2 - s1 * s1
    spread = determinant > 1e-9 * s0 * s2  # more than one count of GPUs
    slope = np.where(spread, (t1 * s0 - t0 * s1) / np.where(spread, determinant, 1.0), 0.0)
    base = np.maximum((t0 - slope * s1) / s0, slope / STEEPEST)
    ratio = np.where(slope > 0, slope / np.where(base > 0, base, 1.0), 0.0)
    excess_of_two = np.maximum(t0 / (s0 + ratio * s1), LEAST_SYNC_S)
    lines = np.stack([np.log(excess_of_two), ratio], axis=1)  # (2, 2, sets): kind, x and ρ
    return lines.reshape(4, -1).T, np.where(total > 0, mean / np.where(total > 0, total, 1.0), 1.0)
