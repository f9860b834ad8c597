"""The fit as Pollux's authors published it, for worlds that follow Sia's published simulator.

The objective and what is held fixed are those of `fit`; the method is L-BFGS-B from one fixed start to a
loose tolerance. It often stops short of the optimum. Predictions of placements that were never measured then
differ from those of `fit`, which is why a faithful comparison needs it. Its gradient is written out.
"""

from functools import lru_cache
from math import sqrt

import numpy as np

from stretto.estimate.fit import GAMMA_PENALTY, MULTI_NODE_MARGIN, RATIO_PENALTY
from stretto.estimate.throughput import NO_SYNC_S, ThroughputModel
from stretto.model import FloatArray, InputError, Observations

START = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001)  # published code
LOWEST, MOST_GAMMA, TOLERANCE = 1e-8, 10.0, 1e-5  # published code
REMEMBERED = 16_384  # chosen


@lru_cache(maxsize=REMEMBERED)
def published_fit(observations: Observations) -> ThroughputModel:
    """The model at which the published search stops; remembered by content. InputError without points."""
    from scipy.optimize import Bounds, minimize  # takes a tenth of a second to import

    if not observations:
        raise InputError("a fit needs at least one observation, got none")
    nodes, gpus, local_batch, grad_s, step_s = np.array(observations.points, dtype=np.float64).T
    several, alone = nodes > 1, gpus <= 1
    start, low = np.array(START), np.full(7, LOWEST)
    high = np.full(7, np.inf)
    low[6], high[6] = 1.0, MOST_GAMMA
    # Parameters that nothing measured depends on are held, as the published code does.
    fixed: dict[int, float] = {}
    if (local_batch == local_batch[0]).all():
        fixed[0] = float(grad_s.mean()) / 2
    if not several.any():
        fixed |= {2: LOWEST, 3: LOWEST}
    if not (~several & ~alone).any():
        fixed |= {4: LOWEST, 5: LOWEST}
    if not (gpus > 2).any():
        fixed |= {3: LOWEST, 5: LOWEST}
    for index, value in fixed.items():
        start[index] = low[index] = high[index] = value
    measured = (local_batch, np.maximum(gpus - 2, 0.0), several, alone, np.log(grad_s), np.log(step_s))
    fitted = minimize(
        _objective,
        start,
        args=measured,
        jac=True,
        bounds=Bounds(low, high),
        method="L-BFGS-B",
        tol=TOLERANCE,
    ).x
    # Several nodes were never seen: they are taken to be a little slower than one.
    if not several.any():
        fitted[2] = max(fitted[2], MULTI_NODE_MARGIN * fitted[4])
        fitted[3] = max(fitted[3], MULTI_NODE_MARGIN * fitted[5])
    return ThroughputModel(*fitted.tolist())


def _objective(
    x: FloatArray,
    local_batch: FloatArray,
    beyond_two: FloatArray,
    several: FloatArray,
    alone: FloatArray,
    log_grad_s: FloatArray,
    log_step_s: FloatArray,
) -> tuple[float, FloatArray]:
    """The objective of `fit` and its gradient, with T_step in logarithms so that no power overflows."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_l, beta_l, gamma = x.tolist()
    grad = alpha_c + beta_c * local_batch
    sync = np.where(several, alpha_n + beta_n * beyond_two, alpha_l + beta_l * beyond_two)
    sync = np.where(alone, NO_SYNC_S, sync)
    # T_step = (T_grad^γ + T_sync^γ)^(1/γ), with the larger one taken out of the sum.
    log_grad, log_sync = np.log(grad), np.log(sync)
    largest = np.maximum(log_grad, log_sync)
    grad_part, sync_part = np.exp(gamma * (log_grad - largest)), np.exp(gamma * (log_sync - largest))
    total = grad_part + sync_part
    grad_part, sync_part, log_total = grad_part / total, sync_part / total, np.log(total)

    grad_error = log_grad - log_grad_s
    step_error = largest + log_total / gamma - log_step_s
    count = len(local_batch)
    grad_rms, step_rms = sqrt(grad_error @ grad_error / count), sqrt(step_error @ step_error / count)
    # The published penalties: γ near 1, and little cost for each further node or GPU.
    across, within = beta_n / alpha_n, beta_l / alpha_l
    value = grad_rms + step_rms + GAMMA_PENALTY * (gamma - 1) ** 2 + RATIO_PENALTY * (across**2 + within**2)

    # The gradient by the chain rule: first of both errors, then of T_grad and T_sync, then of parameters.
    by_grad = grad_error / (count * grad_rms) if grad_rms > 0 else np.zeros(count)
    by_step = step_error / (count * step_rms) if step_rms > 0 else np.zeros(count)
    of_grad = (by_grad + by_step * grad_part) / grad
    of_sync = np.where(alone, 0.0, by_step * sync_part / sync)
    mixed = grad_part * (log_grad - largest) + sync_part * (log_sync - largest) - log_total / gamma
    of_across, of_within = np.where(several, of_sync, 0.0), np.where(several, 0.0, of_sync)
    return value, np.array(
        [
            of_grad.sum(),
            of_grad @ local_batch,
            of_across.sum() - 2 * RATIO_PENALTY * across**2 / alpha_n,
            of_across @ beyond_two + 2 * RATIO_PENALTY * across / alpha_n,
            of_within.sum() - 2 * RATIO_PENALTY * within**2 / alpha_l,
            of_within @ beyond_two + 2 * RATIO_PENALTY * within / alpha_l,
            by_step @ mixed / gamma + 2 * GAMMA_PENALTY * (gamma - 1),
        ]
    )
