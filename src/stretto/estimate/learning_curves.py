"""When will a learning curve reach its target? An ensemble of parametric curves, fitted to what was seen.

UniSched (TPDS 2024), section III-B2, takes the method of Domhan, Springenberg and Hutter (IJCAI 2015). Many
shapes y(x) are fitted, x the epoch and y the metric (larger is better), and they vote.

Deviation: in place of Markov chains over all parameters, each shape is fitted by least squares and weighted
by its error. That is cheap and deterministic, and what it costs is the width of the predicted spread. Every
shape is linear in its outer parameters once its inner ones are given. So a fit is a search over a small grid
of inner parameters, with a closed form at each point. The grid is narrowed a few times.

Curves of many jobs and families of equal grids are fitted side by side. A decision asks for several at once,
and one by one most of the time went into small calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from scipy.special import ndtr

from stretto.model import BoolArray, FloatArray, IntArray, frozen

FEWEST_EPOCHS = 4  # below these nothing is predicted [Domhan et al. stop no earlier]
GRID = 11  # points along each inner parameter; chosen
NARROWINGS = 4  # each shrinks the grid around the best point to a quarter; chosen
MOST_FITTED = 40  # epochs to which shapes are fitted; of more, as many evenly in the logarithm; chosen
SMALLEST_MSE = 1e-8  # of metrics between 0 and 1: the fourth digit is noise; chosen
MOST_FALL = 0.01  # of the range seen: a curve that falls further ahead is thrown out; chosen
EVENLY = np.linspace(0.0, 1.0, GRID)
MOST_POINTS = 4_096  # epochs ahead at which a curve is evaluated; beyond, evenly spaced; chosen
ROUNDING = float(np.finfo(np.float64).eps)
MEDIAN = 0.5  # probability at which the target counts as reached
SIDE_BY_SIDE = 16  # curves fitted at once: more do not fit into a core's cache; measured

Shape = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
"""The basis function of a family at (x, first inner parameter, second), which broadcast.

Each has its own axis in a fit, so what depends on two of them is worked out for these two only.
"""


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


# The largest arrays are overwritten where they stand: to make new ones takes longer than to fill them.


def _pow(x: FloatArray, exponent: FloatArray, shift: FloatArray) -> FloatArray:
    power = -exponent * np.log(x + shift - 1.0)
    return np.exp(power, out=power)


def _log_power(x: FloatArray, middle: FloatArray, slope: FloatArray) -> FloatArray:
    return _inverse_of_one_and(middle**slope * x**-slope)


def _weibull(x: FloatArray, kappa: FloatArray, delta: FloatArray) -> FloatArray:
    power = -(kappa**delta) * x**delta
    return np.exp(power, out=power)


def _mmf(x: FloatArray, kappa: FloatArray, delta: FloatArray) -> FloatArray:
    return _inverse_of_one_and(kappa**delta * x**delta)


def _janoschek(x: FloatArray, kappa: FloatArray, delta: FloatArray) -> FloatArray:
    power = -kappa * x**delta
    return np.exp(power, out=power)


def _inverse_of_one_and(array: FloatArray) -> FloatArray:
    array += 1.0
    return np.divide(1.0, array, out=array)


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


def _grid(family: Family) -> tuple[bool, bool]:
    """Which of the inner parameters vary."""
    return family.first[0] < family.first[1], family.second[0] < family.second[1]


FAMILIES_BY_GRID = tuple(tuple(group) for _, group in groupby(sorted(FAMILIES, key=_grid), key=_grid))


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
        y = np.array([curve.y for curve in self.curves])
        apart, error = y - self.weights @ y, min(curve.mse for curve in self.curves)
        return frozen(self.scale * np.sqrt(self.weights @ apart**2 + error))

    def probability(self, target: float) -> FloatArray:
        """(points,) how likely the metric is to be at `target` or above."""
        return np.asarray(ndtr((self.mean - target) / self.spread), dtype=np.float64)


def forecast(metric: FloatArray, most_epochs: int) -> Forecast | None:
    """The ensemble after some epochs, or None where nothing can be said: too few epochs, or no curve fits.

    metric: (epochs,) at the end of each finished epoch, larger is better; a loss comes negated. Curves with
    a limit outside [0, 1], or that leave [0, 1] before `most_epochs`, are thrown out where all that was seen
    lies in there. NaN epochs are left out.
    """
    return forecasts([metric], [most_epochs])[0]


def forecasts(metrics: Sequence[FloatArray], most_epochs: Sequence[int]) -> list[Forecast | None]:
    """`forecast` of each metric; the answer for one does not depend on the others by more than rounding."""
    answers: list[Forecast | None] = [None] * len(metrics)
    rows = [row for row, metric in enumerate(metrics) if _is_enough(metric, most_epochs[row])]
    for start in range(0, len(rows), SIDE_BY_SIDE):
        some = rows[start : start + SIDE_BY_SIDE]
        several = _Seen.of([metrics[row] for row in some], [most_epochs[row] for row in some])
        for row, ahead in zip(some, several.forecasts(), strict=True):
            answers[row] = ahead
    return answers


def epochs_to_reach(metric: FloatArray, target: float, most_epochs: int, probability: float = MEDIAN) -> int:
    """The first epoch, not before the next, at which the target is reached; `most_epochs` where none is.

    `probability`: how sure one wants to be. 0.5 is where the ensemble's mean crosses the target; more gives
    later epochs. Without a forecast it is what the user allows at most.
    """
    return all_epochs_to_reach([metric], [target], [most_epochs], probability)[0]


def all_epochs_to_reach(
    metrics: Sequence[FloatArray],
    targets: Sequence[float],
    most_epochs: Sequence[int],
    probability: float = MEDIAN,
) -> list[int]:
    """`epochs_to_reach` of each metric, fitted side by side."""
    epochs = list(most_epochs)
    for row, ahead in enumerate(forecasts(metrics, most_epochs)):
        if ahead is not None:
            reached = ahead.probability(targets[row]) >= probability
            epochs[row] = int(ahead.x[reached.argmax()]) if reached.any() else most_epochs[row]
    return epochs


def _is_enough(metric: FloatArray, most_epochs: int) -> bool:
    """Whether a curve can be fitted, and there are epochs ahead."""
    return int(np.isfinite(metric).sum()) >= FEWEST_EPOCHS and most_epochs > len(metric)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Several curves as they are fitted, in rows that are as long as the longest."""

    x: FloatArray  # (curves, epochs) from 1; the last again behind the end of a curve
    y: FloatArray  # (curves, epochs) metric over `scale`; 0 behind the end
    there: FloatArray  # (curves, epochs) 1, and 0 behind the end
    ahead: FloatArray  # (curves, points) epochs at which to forecast; the last again behind the end
    points: IntArray  # (curves,) of these, how many count
    scale: FloatArray  # (curves,)
    bounded: BoolArray  # (curves,) all metrics seen are within [0, 1]

    @classmethod
    def of(cls, metrics: Sequence[FloatArray], most_epochs: Sequence[int]) -> "_Seen":
        """Metrics of which each `_is_enough`."""
        rows = [_thinned(metric) for metric in metrics]
        count = np.array([len(seen) for _, seen in rows])
        x, y = np.zeros((2, len(rows), int(count.max())))
        for row, (epochs, seen) in enumerate(rows):
            x[row], y[row, : len(seen)] = epochs[-1], seen
            x[row, : len(seen)] = epochs
        # A metric within [0, 1] stays there; anything else is scaled to about 1 for the fits.
        bounded = np.array([seen.min() >= 0.0 and seen.max() <= 1.0 for _, seen in rows])
        scale = np.where(bounded, 1.0, np.abs(y).max(axis=1))
        # Epochs ahead, up to the most that are allowed.
        done = np.array([len(metric) for metric in metrics])
        most = np.array(most_epochs)
        points = np.minimum(most - done, MOST_POINTS)
        ahead = np.repeat(most[:, None].astype(np.float64), int(points.max()), axis=1)
        for row, number in enumerate(points.tolist()):
            ahead[row, :number] = np.linspace(done[row] + 1, most[row], number).round()
        there = (np.arange(x.shape[1]) < count[:, None]).astype(np.float64)
        return cls(x, y / scale[:, None], there, ahead, points, scale, bounded)

    def forecasts(self) -> list[Forecast | None]:
        """What the ensemble expects of each curve."""
        fitted = [fit for families in FAMILIES_BY_GRID for fit in _fit(families, self)]
        fitted.append(_fit_vapor_pressure(self))
        plausible = [fit.plausible(self) for fit in fitted]
        answers: list[Forecast | None] = []
        for row, points in enumerate(self.points.tolist()):
            curves = tuple(
                Curve(fit.family, float(fit.mse[row]), float(fit.limit[row]), fit.y[row, :points])
                for fit, fits in zip(fitted, plausible, strict=True)
                if fits[row]
            )
            x, count = frozen(self.ahead[row, :points]), int(self.there[row].sum())
            answers.append(Forecast(x, curves, float(self.scale[row]), count) if curves else None)
        return answers


def _thinned(metric: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Epochs and metrics to which shapes are fitted."""
    x: FloatArray = np.flatnonzero(np.isfinite(metric)).astype(np.float64) + 1.0
    seen = metric[np.isfinite(metric)]
    # Long histories are thinned, evenly in the logarithm: early epochs bend the curve most.
    if len(seen) > MOST_FITTED:
        some = np.unique(np.geomspace(1, len(seen), MOST_FITTED).round().astype(np.int64)) - 1
        x, seen = x[some], seen[some]
    return x, seen


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """The best member of one family for each of several curves."""

    family: str
    mse: FloatArray  # (curves,) not finite where none fits
    limit: FloatArray  # (curves,)
    y: FloatArray  # (curves, points) ahead

    def plausible(self, seen: _Seen) -> BoolArray:
        """(curves,) which fit, do not fall ahead, and stay within the bounds of what was seen."""
        with np.errstate(invalid="ignore", over="ignore"):
            fall = (np.maximum.accumulate(self.y, axis=1) - self.y).max(axis=1)
            highest = np.where(seen.there > 0, seen.y, -np.inf).max(axis=1)
            lowest = np.where(seen.there > 0, seen.y, np.inf).min(axis=1)
            ends = np.stack((self.y[:, 0], self.y[:, -1], np.nan_to_num(self.limit)))
            within = ((ends >= 0.0) & (ends <= 1.0)).all(axis=0)
            plausible: BoolArray = (
                np.isfinite(self.mse)
                & np.isfinite(self.y).all(axis=1)
                & (fall <= MOST_FALL * (highest - lowest))
                & (within | ~seen.bounded)
            )
        return plausible


def _fit(families: Sequence[Family], seen: _Seen) -> list[_Fitted]:
    """For each curve the member of each family with the least squared error. The families have equal grids.

    Axes are (family, curve, first inner parameter, second, epoch). A family whose scale has the wrong sign
    everywhere does not fit.
    """
    curves = len(seen.x)
    x = seen.x[:, None, None, :]
    target = np.stack([np.exp(seen.y) if family.link == "exp" else seen.y for family in families])
    offset = np.array([float(family.offset) for family in families])
    rises = np.array([family.rises for family in families])[:, None, None, None]
    first_bounds = np.array([family.first for family in families])[:, None, :]
    second_bounds = np.array([family.second for family in families])[:, None, :]
    first = np.repeat(_axis(first_bounds[..., 0], first_bounds[..., 1]), curves, axis=1)
    second = np.repeat(_axis(second_bounds[..., 0], second_bounds[..., 1]), curves, axis=1)
    each = np.indices((len(families), curves))

    # A grid over the inner parameters, narrowed around the best; the outer two by least squares.
    basis = np.empty((len(families), curves, first.shape[2], second.shape[2], x.shape[-1]))
    p, q = first[..., 0], second[..., 0]
    for narrowing in range(NARROWINGS):
        if narrowing > 0:
            first, second = _around(first, p, first_bounds), _around(second, q, second_bounds)
        for index, family in enumerate(families):
            inner = first[index][:, :, None, None], second[index][:, None, :, None]
            basis[index] = family.shape(x, *inner)
        zeros, slopes, errors = _outer(basis, target, seen.there, offset)
        errors = np.where(slopes * rises < 0.0, np.inf, errors)
        best = errors.reshape(len(families), curves, -1).argmin(axis=2)
        best_point = (*each, *np.unravel_index(best, errors.shape[2:]))
        family_row, curve, along_first, along_second = best_point
        p, q = first[family_row, curve, along_first], second[family_row, curve, along_second]

    # The best curve at the epochs ahead, and where it ends up.
    zero, slope, mse = zeros[best_point][..., None], slopes[best_point][..., None], errors[best_point]
    fits = []
    for index, family in enumerate(families):
        inner = p[index][:, None], q[index][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):  # of those that do not fit
            y_ahead = zero[index] + slope[index] * family.shape(seen.ahead, *inner)
            limit = (zero[index] + slope[index] * (np.nan if family.limit is None else family.limit))[:, 0]
            error = mse[index]
            if family.link == "exp":
                fitted = np.log(zero[index] + slope[index] * family.shape(seen.x, *inner))
                y_ahead = np.log(y_ahead)  # of what is negative: NaN, which is thrown out
                square = ((fitted - seen.y) ** 2 * seen.there).sum(axis=1) / seen.there.sum(axis=1)
                error = np.where(np.isfinite(error), square, np.inf)
        fits.append(_Fitted(family.name, np.maximum(error, SMALLEST_MSE), limit, y_ahead))
    return fits


def _outer(
    basis: FloatArray, y: FloatArray, there: FloatArray, offset: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Offset, slope and mean squared error of the best straight line through (basis, y), for each grid point.

    basis: (families, curves, first, second, epochs), which is overwritten; y: (families, curves, epochs);
    offset: (families,) 0 where the line goes through the origin. The error is inf where the basis is flat.
    """
    count = there.sum(axis=1)
    mean = (y * there).sum(axis=2) / count * offset[:, None]
    y_centred = (y - mean[..., None]) * there
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        middle = np.einsum("fcpqe,ce->fcpq", basis, there / count[:, None]) * offset[:, None, None, None]
        basis -= middle[..., None]
        basis *= there[:, None, None, :]
        both = np.einsum("fcpqe,fce->fcpq", basis, y_centred)
        slope = both / np.einsum("fcpqe,fcpqe->fcpq", basis, basis)
        zero = mean[..., None, None] - slope * middle
        # What the line leaves of the variance, without another look at every epoch; and what rounding adds,
        # where the basis is nearly flat and the slope enormous.
        total = np.einsum("fce,fce->fc", y_centred, y_centred)[..., None, None]
        error = np.maximum(total - slope * both, 0.0) / count[:, None, None]
        error += (ROUNDING * slope * middle) ** 2
    return zero, slope, np.where(np.isfinite(error), error, np.inf)


def _axis(lowest: FloatArray, highest: FloatArray) -> FloatArray:
    """Points from one bound to the other, evenly in the logarithm, in a last axis; one where they agree."""
    if (lowest == highest).all():
        return lowest[..., None]
    axis: FloatArray = lowest[..., None] * (highest / lowest)[..., None] ** EVENLY
    return axis


def _around(axis: FloatArray, best: FloatArray, bounds: FloatArray) -> FloatArray:
    """Axes a quarter as wide around the best points, within the bounds."""
    if axis.shape[-1] == 1:
        return axis
    reach = (axis[..., -1] / axis[..., 0]) ** 0.125
    return _axis(np.maximum(best / reach, bounds[..., 0]), np.minimum(best * reach, bounds[..., 1]))


def _fit_vapor_pressure(seen: _Seen) -> _Fitted:
    """exp(a + b / x + c ln x), linear in ln y; errors are weighted by y, which makes them errors in y."""

    def columns(epochs: FloatArray) -> FloatArray:
        return np.stack((np.ones_like(epochs), 1.0 / epochs, np.log(epochs)), axis=-1)

    positive = ((seen.y > 0.0) | (seen.there == 0.0)).all(axis=1)
    y = np.where((seen.there > 0.0) & positive[:, None], seen.y, 1.0)
    weight = y * seen.there
    known = columns(seen.x)
    inverse = np.linalg.pinv(known * weight[..., None])
    coefficients = (inverse @ (np.log(y) * weight)[..., None])[..., 0]
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = np.exp(np.einsum("cek,ck->ce", known, coefficients))
        y_ahead = np.exp(np.einsum("cek,ck->ce", columns(seen.ahead), coefficients))
        mse = ((fitted - y) ** 2 * seen.there).sum(axis=1) / seen.there.sum(axis=1)
    mse = np.where(positive & np.isfinite(mse), np.maximum(mse, SMALLEST_MSE), np.inf)
    return _Fitted(VAPOR_PRESSURE, mse, np.full(len(mse), np.nan), y_ahead)
