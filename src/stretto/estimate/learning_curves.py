"""When will a learning curve reach its target? An ensemble of parametric curves, fitted to what was seen.

UniSched (TPDS 2024), section III-B2, which takes the method of Domhan, Springenberg and Hutter (IJCAI
2015): fit many shapes y(x), x the epoch and y the metric (larger is better), and let them vote.

Deviation: in place of Markov chains over all parameters, each shape is fitted by least squares and weighted
by its error; cheap and deterministic, and what it costs is the width of the predicted spread. Every shape is
linear in its outer parameters once its inner ones are given, so that a fit is a search over a small grid of
inner parameters (which is narrowed a few times) with a closed form at each point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from stretto.model import FloatArray, frozen

FEWEST_EPOCHS = 4  # below these nothing is predicted [Domhan et al. stop no earlier]
GRID = 11  # points along each inner parameter; chosen
NARROWINGS = 4  # each shrinks the grid around the best point to a quarter; chosen
MOST_FITTED = 40  # epochs to which shapes are fitted; of more, as many evenly in the logarithm; chosen
SMALLEST_MSE = 1e-8  # of metrics between 0 and 1: the fourth digit is noise; chosen
MOST_FALL = 0.01  # of the range seen: a curve that falls further ahead is thrown out; chosen
EVENLY = np.linspace(0.0, 1.0, GRID)
MOST_POINTS = 4_096  # epochs ahead at which a curve is evaluated; beyond, evenly spaced; chosen
MEDIAN = 0.5  # probability at which the target counts as reached

Shape = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
"""The basis function of a family at (x, first inner parameter, second), which broadcast."""


@dataclass(frozen=True, slots=True)
class Family:
    """y(x) = offset + scale * shape(x; inner), in a transformed y where `link` says so.

    The grid of each inner parameter is geometric between its bounds.
    """

    name: str
    shape: Shape
    first: tuple[float, float]  # bounds of the first inner parameter
    second: tuple[float, float] = (1.0, 1.0)
    offset: bool = True  # False: no constant
    rises: float = 0.0  # sign that `scale` must have; 0: any
    limit: float | None = None  # of the shape as x grows; None: it has none
    link: str = "identity"  # "log", "exp": fitted to ln y, to e^y


def _pow(x: FloatArray, exponent: FloatArray, shift: FloatArray) -> FloatArray:
    return (x + shift - 1.0) ** -exponent


def _log_power(x: FloatArray, middle: FloatArray, slope: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + (x / middle) ** -slope)


def _weibull(x: FloatArray, kappa: FloatArray, delta: FloatArray) -> FloatArray:
    return np.exp(-((kappa * x) ** delta))


def _mmf(x: FloatArray, kappa: FloatArray, delta: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + (kappa * x) ** delta)


def _janoschek(x: FloatArray, kappa: FloatArray, delta: FloatArray) -> FloatArray:
    return np.exp(-kappa * x**delta)


def _ilog2(x: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    return 1.0 / np.log(x + first)


def _log(x: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    return np.log(x) * first


# Shapes of Domhan et al. (table 1), rewritten with inner and outer parameters apart; the original form in
# the comment. Bounds are chosen to hold the published starting points and two orders of magnitude around.
FAMILIES: tuple[Family, ...] = (
    Family("pow3", _pow, (0.01, 4.0), (1.0, 1.0), rises=-1.0, limit=0.0),  # c - a x^-alpha
    Family("pow4", _pow, (0.01, 4.0), (1.0, 100.0), rises=-1.0, limit=0.0),  # c - (a x + b)^-alpha
    Family("log power", _log_power, (0.1, 1e3), (0.05, 5.0), False, 1.0, 1.0),  # a / (1 + (x / e^b)^c)
    Family("weibull", _weibull, (1e-4, 10.0), (0.1, 4.0), rises=-1.0, limit=0.0),  # a - (a-b) e^-(kx)^d
    Family("mmf", _mmf, (1e-4, 10.0), (0.1, 6.0), rises=-1.0, limit=0.0),  # a - (a - b) / (1 + (k x)^d)
    Family("janoschek", _janoschek, (1e-3, 5.0), (0.1, 2.0), rises=-1.0, limit=0.0),  # a - (a-b) e^-(k x^d)
    Family("exp4", _janoschek, (0.05, 5.0), (0.05, 1.0), rises=-1.0, limit=0.0),  # c - e^(-a x^alpha + b)
    Family("ilog2", _ilog2, (1.0, 1.0), rises=-1.0, limit=0.0),  # c - a / ln(x + 1)
    Family("hill3", _log_power, (0.1, 1e4), (0.1, 3.0), False, 1.0, 1.0),  # t x^n / (k^n + x^n)
    Family("log-log linear", _log, (1.0, 1.0), rises=1.0, link="exp"),  # ln(a ln x + b)
)
VAPOR_PRESSURE = "vapor pressure"  # exp(a + b / x + c ln x): three outer parameters, no inner one


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One fitted shape."""

    family: str
    mse: float  # mean squared error over the epochs seen
    limit: float  # as x grows; NaN: it has none
    y: FloatArray  # (points,) at the epochs ahead


@dataclass(frozen=True, eq=False)
class Forecast:
    """What the ensemble expects at the epochs ahead; columns are (points,)."""

    x: FloatArray  # epochs, from the next on
    curves: tuple[Curve, ...]
    scale: float  # metrics were divided by this before they were fitted
    seen: int  # epochs to which the curves were fitted

    @cached_property
    def weights(self) -> FloatArray:
        """(curves,) likelihoods w ~ exp(-n MSE / (2 MSE_min)) of the n epochs seen, sum 1."""
        mse = np.array([curve.mse for curve in self.curves])
        weight = np.exp(-self.seen * (mse - mse.min()) / (2.0 * mse.min()))
        return frozen(weight / weight.sum())

    @cached_property
    def mean(self) -> FloatArray:
        """The weighted vote on the metric."""
        return frozen(self.scale * (self.weights @ np.array([curve.y for curve in self.curves])))

    @cached_property
    def spread(self) -> FloatArray:
        """Standard deviation: disagreement between curves, and the error of the best on what was seen."""
        apart = np.array([curve.y for curve in self.curves]) * self.scale - self.mean
        error = self.scale**2 * min(curve.mse for curve in self.curves)
        return frozen(np.sqrt(self.weights @ apart**2 + error))

    def probability(self, target: float) -> FloatArray:
        """(points,) how likely the metric is to be at `target` or above."""
        return np.asarray(ndtr((self.mean - target) / self.spread), dtype=np.float64)


def forecast(metric: FloatArray, most_epochs: int) -> Forecast | None:
    """The ensemble after some epochs, or None where nothing can be said: too few epochs, or no curve fits.

    metric: (epochs,) at the end of each finished epoch, larger is better; a loss comes negated. Curves with
    a limit outside [0, 1], or that leave [0, 1] before `most_epochs`, are thrown out where all that was seen
    lies in there. NaN epochs are left out.
    """
    x: FloatArray = np.flatnonzero(np.isfinite(metric)).astype(np.float64) + 1.0
    seen = metric[np.isfinite(metric)]
    # Long histories are thinned, evenly in the logarithm: early epochs bend the curve most.
    if len(seen) > MOST_FITTED:
        some = np.unique(np.geomspace(1, len(seen), MOST_FITTED).round().astype(np.int64)) - 1
        x, seen = x[some], seen[some]
    if len(seen) < FEWEST_EPOCHS or most_epochs <= len(metric):
        return None
    # A metric within [0, 1] stays there; anything else is scaled to about 1 for the fits.
    bounded = bool(seen.min() >= 0.0 and seen.max() <= 1.0)
    scale = 1.0 if bounded else float(np.abs(seen).max())
    points = min(most_epochs - len(metric), MOST_POINTS)
    ahead: FloatArray = np.linspace(len(metric) + 1, most_epochs, points, dtype=np.float64).round()
    fitted = [_fit(family, x, seen / scale, ahead) for family in FAMILIES]
    fitted.append(_fit_vapor_pressure(x, seen / scale, ahead))
    fall = MOST_FALL * float(np.ptp(seen)) / scale
    curves = tuple(curve for curve in fitted if curve and _is_plausible(curve, fall, bounded))
    return Forecast(frozen(ahead), curves, scale, len(seen)) if curves else None


def epochs_to_reach(metric: FloatArray, target: float, most_epochs: int, probability: float = MEDIAN) -> int:
    """The first epoch, not before the next, at which the target is reached; `most_epochs` where none is.

    `probability`: how sure one wants to be. 0.5 is where the ensemble's mean crosses the target; more gives
    later epochs. Without a forecast it is what the user allows at most.
    """
    ahead = forecast(metric, most_epochs)
    if ahead is None:
        return most_epochs
    reached = ahead.probability(target) >= probability
    return int(ahead.x[reached.argmax()]) if reached.any() else most_epochs


def _is_plausible(curve: Curve, fall: float, bounded: bool) -> bool:
    if not np.isfinite(curve.y).all():
        return False
    if (np.maximum.accumulate(curve.y) - curve.y).max() > fall:
        return False
    ends = np.array([curve.y[0], curve.y[-1], 0.0 if np.isnan(curve.limit) else curve.limit])
    return not bounded or bool((ends >= 0.0).all() and (ends <= 1.0).all())


def _fit(family: Family, x: FloatArray, y: FloatArray, ahead: FloatArray) -> Curve | None:
    """The member of a family with the least squared error; None where its scale has the wrong sign."""
    target = np.exp(y) if family.link == "exp" else y
    first, second = _axis(*family.first), _axis(*family.second)
    # A grid over the inner parameters, narrowed around the best; the outer two by least squares.
    for _ in range(NARROWINGS):
        p, q = first.repeat(second.size), np.tile(second, first.size)
        basis = family.shape(x[None, :], p[:, None], q[:, None])  # (grid, epochs)
        offset, slope, error = _outer(basis, target, family.offset)
        error = np.where(slope * family.rises < 0.0, np.inf, error)
        best = int(error.argmin())
        if not np.isfinite(error[best]):
            return None
        first, second = _around(first, p[best], family.first), _around(second, q[best], family.second)
    # The best curve at the epochs ahead, and where it ends up.
    epochs_ahead, zero = ahead[None, :], offset[best]
    y_ahead = (zero + slope[best] * family.shape(epochs_ahead, p[best : best + 1], q[best : best + 1]))[0]
    limit = np.nan if family.limit is None else float(zero + slope[best] * family.limit)
    if family.link == "exp":
        fitted = zero + slope[best] * basis[best]
        if min(fitted.min(), y_ahead.min()) <= 0.0:
            return None
        mse = float(((np.log(fitted) - y) ** 2).mean())
        return Curve(family.name, max(mse, SMALLEST_MSE), limit, np.log(y_ahead))
    return Curve(family.name, max(float(error[best]), SMALLEST_MSE), limit, y_ahead)


def _outer(basis: FloatArray, y: FloatArray, offset: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(grid,) offset, slope and mean squared error of the best straight line through (basis, y)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        middle = basis.mean(axis=1) if offset else np.zeros(len(basis))
        mean = float(y.mean()) if offset else 0.0
        centred = basis - middle[:, None]
        slope = (centred @ (y - mean)) / (centred**2).sum(axis=1)
        zero = mean - slope * middle
        error = ((zero[:, None] + slope[:, None] * basis - y) ** 2).mean(axis=1)
    return zero, slope, np.where(np.isfinite(error), error, np.inf)


def _axis(lowest: float, highest: float) -> FloatArray:
    """Points from one bound to the other, evenly in the logarithm; a single one where they are equal."""
    return lowest * (highest / lowest) ** EVENLY if lowest < highest else np.array([lowest])


def _around(axis: FloatArray, best: float, bounds: tuple[float, float]) -> FloatArray:
    """An axis a quarter as wide around the best point, within the bounds."""
    if axis.size == 1:
        return axis
    reach = float(axis[-1] / axis[0]) ** 0.125
    return _axis(max(best / reach, bounds[0]), min(best * reach, bounds[1]))


def _fit_vapor_pressure(x: FloatArray, y: FloatArray, ahead: FloatArray) -> Curve | None:
    """exp(a + b / x + c ln x), linear in ln y; errors are weighted by y, which makes them errors in y."""
    if y.min() <= 0.0:
        return None

    def columns(epochs: FloatArray) -> FloatArray:
        return np.stack((np.ones_like(epochs), 1.0 / epochs, np.log(epochs)), axis=1)

    coefficients = np.linalg.lstsq(columns(x) * y[:, None], np.log(y) * y, rcond=None)[0]
    with np.errstate(over="ignore"):
        fitted, y_ahead = np.exp(columns(x) @ coefficients), np.exp(columns(ahead) @ coefficients)
    mse = float(((fitted - y) ** 2).mean())
    return Curve(VAPOR_PRESSURE, max(mse, SMALLEST_MSE), np.nan, y_ahead) if np.isfinite(mse) else None
