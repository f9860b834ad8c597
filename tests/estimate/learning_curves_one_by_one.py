"""The fits of `stretto.estimate.learning_curves`, one family of one curve at a time: slow and plain.

What is fitted side by side is compared with this.
"""

import numpy as np

from stretto.estimate import learning_curves as tested
from stretto.estimate.learning_curves import FAMILIES, Family, Shape
from stretto.model import FloatArray

Fit = tuple[float, FloatArray]
"""Mean squared error over what was seen, and the curve at the epochs ahead."""

SHAPES: dict[str, Shape] = {  # at (x, first inner parameter, second), as Domhan et al. (table 1) write them
    "pow3": lambda x, exponent, shift: (x + shift - 1.0) ** -exponent,
    "pow4": lambda x, exponent, shift: (x + shift - 1.0) ** -exponent,
    "log power": lambda x, middle, slope: 1.0 / (1.0 + (x / middle) ** -slope),
    "weibull": lambda x, kappa, delta: np.exp(-((kappa * x) ** delta)),
    "mmf": lambda x, kappa, delta: 1.0 / (1.0 + (kappa * x) ** delta),
    "janoschek": lambda x, kappa, delta: np.exp(-kappa * x**delta),
    "exp4": lambda x, kappa, delta: np.exp(-kappa * x**delta),
    "ilog2": lambda x, first, second: 1.0 / np.log(x + first),
    "log-log linear": lambda x, first, second: np.log(x) * first,
    "hill3": lambda x, middle, slope: 1.0 / (1.0 + (x / middle) ** -slope),
}


def fit(family: Family, y: FloatArray, ahead: FloatArray) -> Fit | None:
    """The member of a family with the least squared error, of metrics at epochs 1, 2, …; None: none fits."""
    x = np.arange(1, len(y) + 1, dtype=np.float64)
    shape = SHAPES[family.name]
    target = np.exp(y) if family.link == "exp" else y
    first, second = _axis(*family.first), _axis(*family.second)
    best = None
    for _ in range(tested.NARROWINGS):
        best = None
        for p in first.tolist():
            for q in second.tolist():
                line = _line(shape(x, p, q), target, family.offset)
                wrong = line is None or line[1] * family.rises < 0.0
                if line is not None and not wrong and (best is None or line[2] < best[2]):
                    best = (*line, p, q)
        if best is None:
            return None
        first, second = _around(first, best[3], family.first), _around(second, best[4], family.second)
    assert best is not None
    zero, slope, error, p, q = best
    y_ahead = zero + slope * shape(ahead, p, q)
    if family.link != "exp":
        return max(error, tested.SMALLEST_MSE), y_ahead
    fitted = zero + slope * shape(x, p, q)
    if min(fitted.min(), y_ahead.min()) <= 0.0:
        return None
    return max(float(((np.log(fitted) - y) ** 2).mean()), tested.SMALLEST_MSE), np.log(y_ahead)


def fits(y: FloatArray, ahead: FloatArray) -> dict[str, Fit]:
    """Of every family that fits, by name."""
    each = {family.name: fit(family, y, ahead) for family in FAMILIES}
    return {name: fitted for name, fitted in each.items() if fitted is not None}


def _line(basis: FloatArray, y: FloatArray, offset: bool) -> tuple[float, float, float] | None:
    """Offset, slope and mean squared error of the best straight line; None where the basis is flat."""
    middle, mean = (float(basis.mean()), float(y.mean())) if offset else (0.0, 0.0)
    square = float(((basis - middle) ** 2).sum())
    if square == 0.0:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        slope = float((basis - middle) @ (y - mean)) / square
        zero = mean - slope * middle
        error = float(((zero + slope * basis - y) ** 2).mean())
    return (zero, slope, error) if np.isfinite(error) else None


def _axis(lowest: float, highest: float) -> FloatArray:
    return lowest * (highest / lowest) ** tested.EVENLY if lowest < highest else np.array([lowest])


def _around(axis: FloatArray, best: float, bounds: tuple[float, float]) -> FloatArray:
    if axis.size == 1:
        return axis
    reach = float(axis[-1] / axis[0]) ** 0.125
    return _axis(max(best / reach, bounds[0]), min(best * reach, bounds[1]))
