"""Which parameters explain published figures: of the time of a step, and of the gain of a larger batch."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from stretto.catalogue.figures import Curves, Points
from stretto.estimate.throughput import grad_s, step_s
from stretto.model.arrays import FloatArray, floats

GAMMA_PENALTY = 1e-3  # Pollux's published code
RATIO_PENALTY = 1e-2  # Pollux's published code
MULTI_NODE_MARGIN = 1.1  # Pollux's published code: across nodes takes at least so much longer than within one
LOWEST_S = 1e-8  # Pollux's published code: the least of any parameter
OUTLIER = 0.1  # chosen: errors beyond 10 % count linearly, so that odd measurements do not bend the rest
FIRST_GAMMAS = (1.1, 2.0, 4.0)  # chosen: starts of the search; the best of them is kept


@dataclass(frozen=True)
class StepFit:
    """Seven parameters, and how far the step times that they give are from those measured."""

    params: FloatArray  # (7,) in the order of `ThroughputModel`
    points: int
    mean_error: float  # mean of |predicted / measured - 1|
    worst_error: float
    across_nodes: bool  # whether steps on several nodes were measured


def fit_steps(points: Points) -> StepFit:
    """The model of `stretto.estimate.throughput` with least squares of log T_grad and log T_step.

    As in Pollux (OSDI 2021), with two changes: on one GPU a step is taken for T_grad where only
    steps were measured, and outliers count linearly. Without a measurement on several nodes, the parameters
    for them are their least (1.1 times those within a node).
    """
    within = (points.nodes == 1) & (points.gpus > 1)
    across = points.nodes > 1
    grad = np.where(np.isnan(points.grad_s) & (points.gpus == 1), points.step_s, points.grad_s)
    has_grad = ~np.isnan(grad)
    weight = 1 / np.sqrt(len(points))
    grad_weight = 1 / np.sqrt(max(int(has_grad.sum()), 1))

    def params_of(theta: FloatArray) -> FloatArray:
        alpha_c, beta_c, alpha_n, alpha_l = np.exp(theta[[0, 1, 2, 4]])
        if not across.any():
            alpha_n = MULTI_NODE_MARGIN * alpha_l
        ratio_n = theta[3] if across.any() else theta[5]
        return floats([alpha_c, beta_c, alpha_n, ratio_n * alpha_n, alpha_l, theta[5] * alpha_l, theta[6]])

    def misses(theta: FloatArray) -> FloatArray:
        params = params_of(theta)
        step = step_s(params, points.nodes, points.gpus, points.local_batch)
        return np.concatenate([
            weight * _softened(np.log(step / points.step_s)),
            grad_weight * _softened(np.log(grad_s(params, points.local_batch) / grad))[has_grad],
            [np.sqrt(GAMMA_PENALTY) * (theta[6] - 1)],
            np.sqrt(RATIO_PENALTY) * theta[[3, 5]] * [bool(across.any()), bool(within.any())],
        ])  # fmt: skip

    per_sample_s = float(np.min(points.step_s / points.local_batch))
    usual_s = float(np.median(points.step_s))
    low = [np.log(LOWEST_S)] * 3 + [0.0, np.log(LOWEST_S), 0.0, 1.0]
    high = [np.log(1e3)] * 3 + [10.0, np.log(1e3), 10.0, 10.0]
    fits = [
        least_squares(
            misses,
            [
                np.log(usual_s / 2),
                np.log(per_sample_s),
                np.log(usual_s / 4),
                0.01,
                np.log(usual_s / 8),
                0.01,
                gamma,
            ],
            bounds=(low, high),
            x_scale=[1, 1, 1, 0.1, 1, 0.1, 1],
        )
        for gamma in FIRST_GAMMAS
    ]
    params = params_of(min(fits, key=lambda result: float(result.cost)).x)
    error = np.abs(step_s(params, points.nodes, points.gpus, points.local_batch) / points.step_s - 1)
    return StepFit(params, len(points), float(error.mean()), float(error.max()), bool(across.any()))


@dataclass(frozen=True)
class NoiseFit:
    """The gradient noise scale at the start and the end of training, in samples, and how well it explains."""

    start: float
    end: float
    mean_error: float  # mean of |predicted / measured - 1| over batch sizes, of the steps of a whole training


def fit_noise(curves: Curves) -> NoiseFit:
    """The noise scale, growing geometrically with progress, that best explains the steps of each epoch.

    gain = (φ/M0 + 1) / (φ/M + 1)        Pollux (OSDI 2021), section 3.1

    is progress per step at batch size M in steps at M0. φ = start^(1-f) end^f at the fraction f of progress.
    """
    first = curves.batches[0]
    batch = floats(curves.batches[1:])[:, None]
    before = np.zeros((len(curves.batches), 1))
    progressed = np.diff(curves.progress, axis=1, prepend=before)[1:]
    stepped = np.diff(curves.steps, axis=1, prepend=before)[1:]
    fraction = ((curves.progress[1:] - progressed / 2) / curves.progress[1:, -1:]).clip(0, 1)
    measured = np.log(progressed / stepped)

    def gains(theta: FloatArray) -> FloatArray:
        noise = np.exp(theta[0] * (1 - fraction) + theta[1] * fraction)
        return np.asarray((noise / first + 1) / (noise / batch + 1))

    def misses(theta: FloatArray) -> FloatArray:
        return np.asarray((np.log(gains(theta)) - measured).ravel())

    largest = 100 * curves.batches[-1]  # beyond, every batch size here is as good as perfect
    solution = least_squares(
        misses,
        np.log([5.0 * first, 50.0 * first]),
        bounds=(np.log(first / 10), np.log(largest)),
    )
    predicted = (progressed / gains(solution.x)).sum(axis=1)
    error = float(np.abs(predicted / curves.steps[1:, -1] - 1).mean())
    start, end = np.exp(solution.x)
    return NoiseFit(float(start), float(end), error)


def _softened(error: FloatArray) -> FloatArray:
    """Errors whose square grows linearly beyond `OUTLIER`."""
    size = np.abs(error) / OUTLIER
    return np.asarray(np.sign(error) * OUTLIER * np.sqrt(2 * (np.sqrt(1 + size**2) - 1)))
