"""Optimus' two models: how many epochs are left, and how fast a job is on g GPUs.

Optimus (Peng et al., EuroSys 2018), section 3. Both are fitted by non-negative least squares.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from stretto.model import FloatArray
from stretto.policies.common.speed_curves import Curve

LINE_SEARCH = 50  # values of β2 tried; chosen
SPEED_SAMPLES = 5  # counts to which a curve is fitted; chosen: a short profiling run
WINDOW = 3  # losses on either side that bound an outlier; chosen


class LossCurve(NamedTuple):
    """loss(k) = 1 / (β0 k + β1) + β2 after k epochs, as parts of the largest loss seen."""

    decay: float  # β0
    start: float  # β1
    floor: float  # β2
    unit: float  # the largest loss

    def at(self, epoch: FloatArray) -> FloatArray:
        """Losses, in parts of `unit`."""
        return 1.0 / np.maximum(self.decay * epoch + self.start, 1e-12) + self.floor


def fit_losses(losses: FloatArray) -> LossCurve:
    """The curve through the losses after epochs 1, 2, …; at least two are needed.

    β2 by line search below the smallest loss; β0 and β1 for each by non-negative least squares on
    1 / (loss - β2). The best is that with the least squared error of the loss itself.
    """
    unit = float(np.abs(losses).max()) or 1.0
    seen = _without_outliers(losses / unit)
    epoch = np.arange(1, len(seen) + 1, dtype=np.float64)
    terms = np.stack((epoch, np.ones_like(epoch)), axis=1)
    best, least = LossCurve(0.0, 1.0, 0.0, unit), np.inf
    for floor in np.linspace(0.0, max(float(seen.min()), 0.0), LINE_SEARCH, endpoint=False).tolist():
        (decay, start), _ = nnls(terms, 1.0 / np.maximum(seen - floor, 1e-9))
        if decay + start <= 0:
            continue
        tried = LossCurve(float(decay), float(start), floor, unit)
        error = float(((tried.at(epoch) - seen) ** 2).sum())
        if error < least:
            best, least = tried, error
    return best


def epochs_to_converge(curve: LossCurve, least_decrease: float, most: int, patience: int = 3) -> int:
    """The first epoch from which on the loss falls by less than that in each of `patience` epochs."""
    loss = curve.at(np.arange(1, most + patience + 1, dtype=np.float64))
    slow = loss[:-1] - loss[1:] < least_decrease
    lasting = np.convolve(slow, np.ones(patience), mode="valid") >= patience
    return int(lasting.argmax()) + 1 if lasting.any() else most


@lru_cache(maxsize=16_384)
def expected_epochs(losses: tuple[float, ...], least_decrease: float, most: int) -> int:
    """In how many epochs a job with these losses so far converges."""
    return epochs_to_converge(fit_losses(np.array(losses)), least_decrease, most)


def _without_outliers(seen: FloatArray) -> FloatArray:
    """Each loss brought between the least and the largest of its neighbours."""
    bounded = seen.copy()
    for at in range(1, len(seen) - 1):
        around = np.delete(seen[max(at - WINDOW, 0) : at + WINDOW + 1], min(at, WINDOW))
        bounded[at] = np.clip(seen[at], around.min(), around.max())
    return bounded


def seconds_per_step(gpus: FloatArray, step_s: FloatArray) -> FloatArray:
    """θ0, θ1, θ2 ≥ 0 of step_s(g) = θ0 / g + θ1 + θ2 g, fitted to steps seen on some counts.

    The all-reduce form of the paper's synchronous model: computing shrinks with g, synchronising grows.
    """
    terms = np.stack((1.0 / gpus, np.ones_like(gpus), gpus), axis=1)
    weight = 1.0 / step_s  # relative errors count, not seconds
    found, _ = nnls(terms * weight[:, None], step_s * weight)
    return np.asarray(found, dtype=np.float64)


@lru_cache(maxsize=65_536)
def fitted_curve(curve: Curve) -> Curve:
    """The same counts at the speeds of a model fitted to a few of them, spread geometrically."""
    if len(curve.gpus) < 2:
        return curve
    spread = np.geomspace(1, len(curve.gpus), min(SPEED_SAMPLES, len(curve.gpus)))
    sampled = np.unique(np.round(spread).astype(np.int64)) - 1
    gpus, per_s = np.array(curve.gpus, dtype=np.float64), np.array(curve.per_s)
    theta = seconds_per_step(gpus[sampled], 1.0 / per_s[sampled])
    step_s = theta[0] / gpus + theta[1] + theta[2] * gpus
    return Curve(curve.gpus, tuple((1.0 / step_s).tolist()))
