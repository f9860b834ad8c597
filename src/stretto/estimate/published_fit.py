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
    points = np.array(observations.points, dtype=np.float64).T
    nodes, gpus, local_batch, grad_s, _ = points
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
    objective = Objective(points)
    fitted = minimize(
        objective,
        start,
        jac=objective.gradient,
        bounds=Bounds(low, high),
        method="L-BFGS-B",
        tol=TOLERANCE,
    ).x
    # Several nodes were never seen: they are taken to be a little slower than one.
    if not several.any():
        fitted[2] = max(fitted[2], MULTI_NODE_MARGIN * fitted[4])
        fitted[3] = max(fitted[3], MULTI_NODE_MARGIN * fitted[5])
    return ThroughputModel(*fitted.tolist())


class Objective:
    """The objective of `fit` and its gradient, with T_step in logarithms so that no power overflows.

    The search asks for both at a point, one after the other; they are worked out together. T_grad and T_sync
    are two rows of one array, since that takes half as many calls for the few points that there are. For
    those `dot` is twice as quick as `@`, and the same to the last bit.
    """

    def __init__(self, points: FloatArray) -> None:
        """points: (5, points) as of `Point`."""
        nodes, gpus, self.local_batch, grad_s, step_s = points
        self.count = len(gpus)
        self.beyond_two = np.maximum(gpus - 2, 0.0)
        self.sizes = np.stack((self.local_batch, self.beyond_two))  # (2, points) what the slopes multiply
        self.several, self.alone = nodes > 1, gpus <= 1
        self.across = (self.several & ~self.alone).astype(np.float64)  # 1 where it counts, to multiply with
        self.within = (~self.several & ~self.alone).astype(np.float64)
        self.spans_nodes = bool(self.several.any())
        self.log_grad_s, self.log_step_s = np.log(grad_s), np.log(step_s)
        self._at: list[float] = []  # where the gradient was worked out last
        self._gradient = np.zeros(7)

    def gradient(self, x: FloatArray) -> FloatArray:
        """At the point that was asked about last, or another one."""
        if x.tolist() != self._at:
            self(x)
        return self._gradient

    def __call__(self, x: FloatArray) -> float:
        """The value."""
        _, _, alpha_n, beta_n, alpha_l, beta_l, gamma = self._at = x.tolist()
        count, local_batch, beyond_two = self.count, self.local_batch, self.beyond_two
        times = x[0:5:4, None] + x[1:6:4, None] * self.sizes  # α_c and α_l, β_c and β_l
        grad, sync = times
        if self.spans_nodes:
            np.copyto(sync, alpha_n + beta_n * beyond_two, where=self.several)
        np.copyto(sync, NO_SYNC_S, where=self.alone)
        # T_step = (T_grad^γ + T_sync^γ)^(1/γ), with the larger one taken out of the sum.
        logs = np.log(times)
        log_grad, log_sync = logs
        largest = np.maximum(log_grad, log_sync)
        grad_error = log_grad - self.log_grad_s
        logs -= largest
        parts = np.exp(gamma * logs)
        of_total, rest_of_total = parts
        total = of_total + rest_of_total
        parts /= total
        log_total = np.log(total) / gamma
        step_error = largest + log_total - self.log_step_s
        grad_rms = sqrt(grad_error.dot(grad_error) / count)
        step_rms = sqrt(step_error.dot(step_error) / count)
        # The published penalties: γ near 1, and little cost for each further node or GPU.
        across, within = beta_n / alpha_n, beta_l / alpha_l
        penalty = GAMMA_PENALTY * (gamma - 1) ** 2
        value: float = grad_rms + step_rms + penalty + RATIO_PENALTY * (across**2 + within**2)

        # The gradient by the chain rule: first of both errors, then of T_grad and T_sync, then of parameters.
        by_grad = grad_error / (count * grad_rms) if grad_rms > 0 else np.zeros(count)
        by_step = step_error / (count * step_rms) if step_rms > 0 else np.zeros(count)
        of_grad = (by_grad + by_step * of_total) / grad
        of_sync = by_step * rest_of_total / sync
        parts *= logs
        of_within = of_sync * self.within
        of_alpha_n = of_beta_n = 0.0
        if self.spans_nodes:
            of_across = of_sync * self.across
            of_alpha_n, of_beta_n = np.add.reduce(of_across), of_across.dot(beyond_two)
        self._gradient = np.array(
            [
                np.add.reduce(of_grad),
                of_grad.dot(local_batch),
                of_alpha_n - 2 * RATIO_PENALTY * across**2 / alpha_n,
                of_beta_n + 2 * RATIO_PENALTY * across / alpha_n,
                np.add.reduce(of_within) - 2 * RATIO_PENALTY * within**2 / alpha_l,
                of_within.dot(beyond_two) + 2 * RATIO_PENALTY * within / alpha_l,
                by_step.dot(of_total + rest_of_total - log_total) / gamma + 2 * GAMMA_PENALTY * (gamma - 1),
            ]
        )
        return value
