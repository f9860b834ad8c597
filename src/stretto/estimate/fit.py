"""Throughput models fitted to measured points, many at once; what was fitted before is remembered.

The objective is Pollux's (OSDI 2021, section 3.2, and the code published with it):

    RMSE(log T_grad) + RMSE(log T_step) + 1e-3 (γ - 1)² + 1e-2 [(β_n/α_n)² + (β_l/α_l)²]

over α, β ≥ 1e-8 and 1 ≤ γ ≤ 10, with parameters that nothing was measured for held fixed:

1. one local batch only: α_c is half the mean of T_grad;
2. nothing on several nodes: α_n and β_n are at their bound and, after the fit, at least 1.1 α_l and 1.1 β_l;
3. nothing on several GPUs of one node: α_l and β_l are at their bound;
4. nothing on more than two GPUs: β_l and β_n are at their bound.

**Deviation**: the method. The published code runs L-BFGS-B from one fixed start to a loose tolerance and
often stops far from the optimum. We start from lines through the measurements. From there we take damped
Gauss-Newton steps (Levenberg-Marquardt) within the bounds, in the coordinates of `problem_of`, all data sets
at once. A sum of two root mean squares has kinks where either vanishes; each step takes √q for the quadratic
q/(2 √q₀) + √q₀/2, which touches it from above.

**Deviation**: with measurements on one GPU only, every T_grad between the measured pass and the measured
step is about equally good. We settle near the middle, not where a search from a fixed start first arrives.

Sums run over the points one after the other and never across data sets. So a fit is the same bit for bit
whether its data set is fitted alone or among others.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from stretto.errors import InputError
from stretto.estimate.throughput import NO_SYNC_S, ThroughputModel
from stretto.model.arrays import BoolArray, FloatArray
from stretto.model.knowledge import Observations

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Values of a pure function by argument, computed many at a time; forgets the oldest beyond `most`.

    Unlike `functools.lru_cache` it hands all arguments that are missing to the function at once.
    """

    def __init__(self, compute: Callable[[Sequence[Key]], Sequence[Value]], most: int) -> None:
        self._compute = compute
        self._most = most
        self._known: dict[Key, Value] = {}

    def of(self, keys: Sequence[Key]) -> list[Value]:
        """One value per key, in their order."""
        known = self._known
        missing = list(dict.fromkeys(key for key in keys if key not in known))
        fresh = dict(zip(missing, self._compute(missing), strict=True)) if missing else {}
        values = [fresh[key] if key in fresh else known[key] for key in keys]
        known.update(fresh)
        while len(known) > self._most:
            del known[next(iter(known))]
        return values

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


# ── which throughput model explains what was measured? ──────────────────────────────────────────────────────


GAMMA_PENALTY = 1e-3  # Pollux's published code
RATIO_PENALTY = 1e-2  # Pollux's published code
MULTI_NODE_MARGIN = 1.1  # Pollux's published code: least α_n/α_l and β_n/β_l before a job spans nodes
CLOSE = 1e-6  # chosen: a step that improves the objective by less is the last
MOST_STEPS = 30  # chosen: of the data sets we tried, 99 in 100 take fewer than 20
FIRST_DAMPING, MOST_DAMPING = 0.05, 1e6  # chosen, relative to the diagonal
KINK = 1e-6  # chosen: smaller root mean squares count as this, or the quadratic would be infinitely steep
REACH = np.array([np.inf, np.inf, 2, 1, 2, 1, 1])  # chosen: most that a step changes θ
SIDE_BY_SIDE = 256  # measured: data sets in one batch; 32 take 2.5 times as long each, 1,024 no less
REMEMBERED = 16_384  # chosen: fits kept, a few kB each
_PENALTY = 2 * np.array([0, 0, 0, RATIO_PENALTY, 0, RATIO_PENALTY, GAMMA_PENALTY])
_PENALTY_CENTRE = np.array([0, 0, 0, 0, 0, 0, 1.0])
_LEAST_CURVATURE = 1e-6  # keeps the matrix regular where a parameter has no effect
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


def fit(observations: Observations) -> ThroughputModel:
    """The model of one job on one GPU type that best explains these measurements, remembered by content.

    A function of the set of points alone. Raises `InputError` where there is no point, or one whose counts
    or times are not positive.
    """
    return _known_fits.of([observations])[0]


def fit_many(observed: Sequence[Observations]) -> list[ThroughputModel]:
    """`fit` of each; those not yet known are fitted side by side, in a fraction of the time."""
    return _known_fits.of(observed)


def _fit_all(observed: Sequence[Observations]) -> list[ThroughputModel]:
    """`fit` of each, computed."""
    if not all(observed):
        raise InputError("a fit needs at least one measured point, got none")
    models: list[ThroughputModel] = [None] * len(observed)  # type: ignore[list-item]  # all filled below
    by_length = sorted(range(len(observed)), key=lambda index: len(observed[index]))  # little padding
    for first in range(0, len(by_length), SIDE_BY_SIDE):
        part = by_length[first : first + SIDE_BY_SIDE]
        problem = problem_of([observed[index] for index in part])
        rows = _as_parameters(problem, _descend(problem)).tolist()
        for index, row in zip(part, rows, strict=True):
            models[index] = ThroughputModel(*row)
    return models


_known_fits: Memo[Observations, ThroughputModel] = Memo(_fit_all, REMEMBERED)


def forget_fits() -> None:
    """Let every set of measurements be fitted anew."""
    _known_fits.clear()


def _as_parameters(problem: Problem, theta: FloatArray) -> FloatArray:
    """(sets, 7) in the order and units of `ThroughputModel`, with the priors that follow the fit."""
    params = theta.copy()
    log_alpha, _, _ = _log_alpha(theta, problem.usual_s)
    params[:, [EXCESS_N, EXCESS_L]] = np.where(problem.seen, np.exp(log_alpha), LOWEST).T
    params[:, [RATIO_N, RATIO_L]] *= params[:, [EXCESS_N, EXCESS_L]]
    params[:, :GAMMA] = np.maximum(params[:, :GAMMA], LOWEST)
    at_least = np.where(problem.seen[0], 0.0, MULTI_NODE_MARGIN)[:, None] * params[:, EXCESS_L:GAMMA]
    params[:, EXCESS_N:EXCESS_L] = np.maximum(params[:, EXCESS_N:EXCESS_L], at_least)
    return params


def _descend(problem: Problem) -> FloatArray:
    """(sets, 7) θ of least objective, by damped Gauss-Newton steps within the bounds."""
    result = problem.start.copy()
    points, usual_s, lower, upper = problem.points, problem.usual_s, problem.lower, problem.upper
    theta, sets = result.copy(), np.arange(len(result))
    objective, moments = _assess(theta, points, usual_s)
    damping, growth = np.full(len(theta), FIRST_DAMPING), np.full(len(theta), 2.0)
    for _ in range(MOST_STEPS):
        tried, promised = _step(theta, moments, damping, lower, upper)
        objective_there, moments_there = _assess(tried, points, usual_s)
        gain = objective - objective_there
        better = gain > 0
        if better.all():
            objective, theta, moments = objective_there, tried, moments_there
        else:
            objective = np.where(better, objective_there, objective)
            theta = np.where(better[:, None], tried, theta)
            moments = np.where(better[:, None, None, None], moments_there, moments)
        # Nielsen's rule: the nearer the gain to what was promised, the less damping.
        trust = np.clip(2 * gain / np.maximum(promised, 1e-300) - 1, -1, 1)
        damping = damping * np.where(better, np.maximum(1 / 3, 1 - trust * trust * trust), growth)
        growth = np.where(better, 2.0, 2 * growth)
        done = (better & (gain < CLOSE)) | (np.abs(promised) < CLOSE) | (damping > MOST_DAMPING)
        if done.any():
            result[sets] = theta
            if done.all():
                break
            on = ~done
            sets, theta, objective, moments = sets[on], theta[on], objective[on], moments[on]
            points, usual_s, lower, upper = points[:, :, on], usual_s[:, on], lower[on], upper[on]
            damping, growth = damping[on], growth[on]
    result[sets] = theta
    return result


def _log_alpha(theta: FloatArray, usual_s: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The logarithm of α and its derivatives by x and by γ, each (2, sets): on several nodes, within one."""
    gamma = theta[:, GAMMA]
    excess = np.exp(theta.T[EXCESS_N:GAMMA:2])
    share = np.log1p(excess / usual_s)  # log(T_step / G)
    left = np.exp(-gamma * share)  # (G / T_step)^γ
    rest = -np.expm1(-gamma * share)
    total = usual_s + excess
    log_rest = np.log(rest) / gamma
    return np.log(total) + log_rest, excess / (total * rest), (share * left / rest - log_rest) / gamma


def _assess(theta: FloatArray, points: FloatArray, usual_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The objective (sets,) at θ and its second moments (sets, 2, 8, 8).

    There are two residuals, in log T_grad and in log T_step. For each: weighted sums over the points of the
    products of its seven derivatives and, last, itself: [JᵀJ, Jᵀr; rᵀJ, rᵀr].
    """
    # Predicted times, as logarithms: of the gradient, and of the step that overlaps it with synchronising.
    local_batch, across, beyond_across, within, beyond_within, single, log_grad, log_step, weight = points
    alpha_c, beta_c, _, ratio_n, _, ratio_l, gamma = theta.T
    (log_n, log_l), (by_x_n, by_x_l), (by_gamma_n, by_gamma_l) = _log_alpha(theta, usual_s)
    grad = alpha_c + beta_c * local_batch
    log_g = np.log(grad)
    size = 1 + ratio_n * beyond_across + ratio_l * beyond_within
    lead = log_n * across + log_l * within + single + np.log(size) - log_g  # log(T_sync / T_grad)
    power = gamma * lead
    log_sum = np.logaddexp(0, power)
    log_overlap = log_sum / gamma  # log(T_step / T_grad)
    sync_part = np.exp(power - log_sum)  # T_sync^γ / (T_grad^γ + T_sync^γ)
    grad_part = 1 - sync_part
    across, within, per_size = sync_part * across, sync_part * within, sync_part / size

    # Derivatives by θ in the first seven columns, the residual in the last.
    terms = np.zeros((*grad.shape, 2, 8))
    of_grad, of_step = terms[:, :, 0], terms[:, :, 1]
    of_grad[:, :, 0] = 1 / grad
    of_grad[:, :, 1] = local_batch / grad
    of_grad[:, :, 7] = log_g - log_grad
    of_step[:, :, :2] = grad_part[:, :, None] * of_grad[:, :, :2]
    of_step[:, :, 2] = by_x_n * across
    of_step[:, :, 3] = per_size * beyond_across
    of_step[:, :, 4] = by_x_l * within
    of_step[:, :, 5] = per_size * beyond_within
    of_step[:, :, 6] = (sync_part * lead - log_overlap) / gamma + by_gamma_n * across + by_gamma_l * within
    of_step[:, :, 7] = log_g + log_overlap - log_step
    # Their products give errors, gradients and curvatures at once.
    weighted = terms * weight[:, :, None, None]
    moments = (weighted[..., None] * terms[..., None, :]).sum(axis=0)

    penalty = GAMMA_PENALTY * (gamma - 1) ** 2 + RATIO_PENALTY * (ratio_n**2 + ratio_l**2)
    return np.sqrt(moments[:, :, 7, 7]).sum(axis=1) + penalty, moments


def _step(
    theta: FloatArray, moments: FloatArray, damping: FloatArray, lower: FloatArray, upper: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The next θ to try, and the gain (sets,) that the quadratic promises.

    Parameters that the free step would push out of the box go to its side, and the others make the best of
    that. What still sticks out is cut off.
    """
    lower, upper = np.maximum(lower, theta - REACH), np.minimum(upper, theta + REACH)
    # Gradient and Gauss-Newton curvature of the sum of both errors, damped.
    rms = np.maximum(np.sqrt(moments[:, :, 7, 7]), KINK)
    total = (moments / rms[:, :, None, None]).sum(axis=1)
    gradient = total[:, :7, 7] + _PENALTY * (theta - _PENALTY_CENTRE)
    curvature = total[:, :7, :7]
    diagonal = np.einsum("sii->si", curvature)  # a view
    diagonal += _PENALTY + damping[:, None] * (diagonal + _LEAST_CURVATURE)

    # Parameters at a bound that push outwards are held, the others step freely.
    at_bound = np.where(gradient > 0, theta <= lower, theta >= upper) | (lower == upper)
    step = _solve_for_free(curvature, -gradient, at_bound, 0.0)
    tried = np.clip(theta + step, lower, upper)
    to_side = tried - theta
    crossing = to_side != step
    # Where the step would cross a bound it stops there, and the rest is solved again.
    if crossing.any():
        given = np.where(crossing, to_side, 0.0)
        step = _solve_for_free(
            curvature, -gradient - (curvature @ given[:, :, None])[:, :, 0], at_bound | crossing, given
        )
        tried = np.clip(theta + step, lower, upper)
    step = tried - theta
    along = (curvature @ step[:, :, None])[:, :, 0]
    return tried, -((gradient + 0.5 * along) * step).sum(axis=1)


def _solve_for_free(
    curvature: FloatArray, right: FloatArray, held: BoolArray, given: FloatArray | float
) -> FloatArray:
    """(sets, 7) solution of curvature · step = right whose `held` entries are `given` instead."""
    matrix = np.where(held[:, :, None] | held[:, None, :], 0.0, curvature)
    diagonal = np.einsum("sii->si", matrix)
    diagonal += held
    return np.asarray(np.linalg.solve(matrix, np.where(held, given, right)[:, :, None])[:, :, 0])


# The fit of a throughput model as arrays: data sets side by side, bounds, and a good place to start.
#
# Parameters here are θ = (α_c, β_c, x_n, ρ_n, x_l, ρ_l, γ), shape (sets, 7), in the order of
# `ThroughputModel`. ρ = β/α is what the objective penalises. x is the logarithm of the *excess* that
# synchronising two GPUs adds to a pass of the usual length G,
#
#     e^x = T_step - G,    α = ((G + e^x)^γ - G^γ)^(1/γ),
#
# because that is what the measurements fix: α itself must change by orders of magnitude when γ moves.


def problem_of(observed: Sequence[Observations]) -> Problem:
    """Arrays, bounds and start for these data sets; each has at least one point."""
    # Data sets side by side, the shorter ones padded with ones of no weight.
    lengths = np.array([len(samples) for samples in observed])
    raw = np.ones((int(lengths.max()), len(observed), 5))
    for index, samples in enumerate(observed):
        raw[: len(samples), index] = samples.points
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

    # A parameter that nothing measured depends on is fixed.
    seen = np.asarray(points[1:5:2].any(axis=1))
    one_batch = ~((local_batch != local_batch[0]) & present).any(axis=0)
    several, beyond_seen = seen.any(axis=0), (gpus > 2).any(axis=0)
    fixed = np.zeros((len(observed), 7), dtype=np.bool_)
    fixed[:, ALPHA_C] = one_batch
    fixed[:, [EXCESS_N, EXCESS_L]] = ~seen.T
    fixed[:, [RATIO_N, RATIO_L]] = ~(seen & beyond_seen).T
    fixed[:, GAMMA] = ~several

    # A start by straight lines: the gradient over the batch, the excess of a step over the GPUs.
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
    # Weighted sums for a line through the excess over GPUs beyond two; relative errors count.
    excess = np.maximum(step - grad, LEAST_SYNC_S)[:, None]
    w = weight / (step * step)[:, None]
    wk = w * beyond_two[:, None]
    s0, s1, s2, t0, t1, mean, total = _sums(
        w, wk, wk * beyond_two[:, None], w * excess, wk * excess, weight * grad[:, None], weight
    )
    s0 = np.where(s0 > 0, s0, 1.0)
    # Least squares where several counts were seen; else the line is flat.
    determinant = s0 * s2 - s1 * s1
    spread = determinant > 1e-9 * s0 * s2  # more than one count of GPUs
    slope = np.where(spread, (t1 * s0 - t0 * s1) / np.where(spread, determinant, 1.0), 0.0)
    base = np.maximum((t0 - slope * s1) / s0, slope / STEEPEST)
    ratio = np.where(slope > 0, slope / np.where(base > 0, base, 1.0), 0.0)
    # With the slope bounded, the height is fitted once more.
    excess_of_two = np.maximum(t0 / (s0 + ratio * s1), LEAST_SYNC_S)
    lines = np.stack([np.log(excess_of_two), ratio], axis=1)  # (2, 2, sets): kind, x and ρ
    return lines.reshape(4, -1).T, np.where(total > 0, mean / np.where(total > 0, total, 1.0), 1.0)
