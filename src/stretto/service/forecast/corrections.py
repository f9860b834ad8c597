"""Intervals corrected by what became of earlier ones: which share of what happens is to lie inside.

Simulated futures know what is known of single jobs. They do not know that jobs that come together tend to
last alike, that others come, or how far a policy strays from its forecast. The record of a service knows by
how much its intervals were missed. So each bound is moved to where it would have been missed seldom enough.

This is split conformal prediction (Vovk et al. 2005), one side at a time, of quantiles (Romano et al.,
NeurIPS 2019), with scores in logarithms of the time ahead. If the next forecast were exchangeable with those
of the record, each bound would be missed as often as is aimed at. It is not: jobs that wait in one queue are
early or late together, and queues differ. So the quantile that is taken follows what is missed, by a small
step after each forecast that has come true. That is adaptive conformal inference (Gibbs and Candès, NeurIPS
2021). In the long run each bound is then missed as often as is aimed at, however forecasts come. That needs
bounds to hold that are moved furthest. Deviations: a quantile stays between the largest of the record and
its middle, where theirs becomes infinite. And a miss is known long after the forecast, not at the next step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, isfinite, log

import numpy as np

from stretto.model import FloatArray

MISSED = 0.1  # of all, on either side: eight of ten are to hold
# Chosen, all three, on the training traces of `benchmarks/forecast_intervals.py`.
MOST_KEPT = 1_000  # forecasts of each kind, those that came true last
LEAST_KNOWN = 20  # of a kind, before its intervals are corrected
STEP = 1e-3  # of a level, for each forecast: it follows about as many as are kept

MOST_MISSED = 0.5  # of the record, on either side: an interval may shrink to the middle of what happened
JUST_S = 1.0  # beside an interval that still counts as inside; chosen
AT_ONCE_S = 60.0  # added to a time ahead before its logarithm is taken: seconds more or less do not count


@dataclass(frozen=True)
class Interval:
    """A time with how sure it is: the middle of the draws, and where most of them lie. Infinite: never."""

    middle_s: float
    low_s: float
    high_s: float

    @property
    def plus_minus_s(self) -> float:
        """Half of the distance."""
        return (self.high_s - self.low_s) / 2

    def side_of(self, at_s: float) -> str:
        """Where something has happened: "early", "late" or "inside"."""
        if at_s < self.low_s - JUST_S:
            return "early"
        return "late" if at_s > self.high_s + JUST_S else "inside"


@dataclass(frozen=True)
class DrawnInterval:
    """An interval as it was drawn, and when."""

    made_s: float
    span: Interval

    def early(self, at_s: float) -> float:
        """By how much `at_s` lies before it, in logarithms of the time ahead; negative: it does not."""
        return ahead(self.span.low_s - self.made_s) - ahead(at_s - self.made_s)

    def late(self, at_s: float) -> float:
        """By how much it lies behind it."""
        return ahead(at_s - self.made_s) - ahead(self.span.high_s - self.made_s)


def ahead(seconds: float) -> float:
    """The logarithm of a time ahead."""
    return log(max(seconds, 0.0) + AT_ONCE_S)


@dataclass(frozen=True)
class Correction:
    """By how much bounds are moved outwards, in logarithms of the time ahead; negative: inwards."""

    low: float
    high: float
    longest: float  # logarithm of the longest time ahead in the record: no bound is moved beyond it

    def of(self, span: Interval, now_s: float) -> Interval:
        """The corrected interval of something that has not happened yet. Its middle stays inside."""
        low = ahead(span.low_s - now_s) - self.low
        low_s = min(now_s + max(exp(low) - AT_ONCE_S, 0.0), span.middle_s)
        if not isfinite(span.high_s):
            return Interval(span.middle_s, low_s, span.high_s)
        drawn = ahead(span.high_s - now_s)
        high = min(drawn + self.high, max(drawn, self.longest))
        return Interval(span.middle_s, low_s, max(now_s + exp(high) - AT_ONCE_S, span.middle_s))


Corrections = Mapping[str, Correction]  # by kind, "start" or "end"; one that is not there is not corrected


def corrected(corrections: Corrections, kind: str, span: Interval, now_s: float) -> Interval:
    """An interval of the kind, corrected where enough is known; what was never reached stays so."""
    correction = corrections.get(kind)
    return span if correction is None or not isfinite(span.low_s) else correction.of(span, now_s)


@dataclass
class ForecastRecord:
    """What became of the first forecasts of jobs: columns early, late and ahead, for each kind.

    Levels say which share of these a bound is to leave outside, early and late. They follow what is missed.
    """

    rows: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    levels: dict[str, tuple[float, float]] = field(default_factory=dict)

    def note(self, kind: str, drawn: DrawnInterval, told: Interval, at_s: float) -> None:
        """What was foreseen has happened at `at_s`. told: the interval as it was corrected."""
        early, late = self.levels.get(kind, (MISSED, MISSED))
        side = told.side_of(at_s)
        self.levels[kind] = followed(early, side == "early"), followed(late, side == "late")
        rows = self.rows.setdefault(kind, [])
        rows.append((drawn.early(at_s), drawn.late(at_s), ahead(at_s - drawn.made_s)))
        del rows[:-MOST_KEPT]

    def corrections(self, waits: Iterable[tuple[str, DrawnInterval]], now_s: float) -> dict[str, Correction]:
        """Of each kind of which enough is known. waits: forecasts of what has not happened by `now_s`."""
        still: dict[str, list[DrawnInterval]] = {}
        for kind, drawn in waits:
            still.setdefault(kind, []).append(drawn)
        by_kind: dict[str, Correction] = {}
        for kind, rows in self.rows.items():
            if len(rows) < LEAST_KNOWN:
                continue
            early, late, reached = np.array(rows).T
            miss_early, miss_late = self.levels[kind]
            others = still.get(kind, ())
            open_early = np.array([drawn.early(now_s) for drawn in others])
            open_late = np.array([drawn.late(now_s) for drawn in others])
            bounded, open_bounded = late[np.isfinite(late)], open_late[np.isfinite(open_late)]
            by_kind[kind] = Correction(
                # What has not happened will be later: less early than now, and later than now.
                low=-quantile(-early, -open_early, miss_early),
                high=quantile(bounded, open_bounded, 1.0 - miss_late) if bounded.size else 0.0,
                longest=max([reached.max(), *(ahead(now_s - drawn.made_s) for drawn in others)]),
            )
        return by_kind


def followed(level: float, is_missed: bool) -> float:
    """A level after one more forecast: less is left outside after a miss, a little more after the others.

    alpha <- alpha + gamma (alpha_aim - err)    Gibbs and Candès (NeurIPS 2021), equation 2
    """
    return min(max(level + STEP * (MISSED - is_missed), 0.0), MOST_MISSED)


def quantile(seen: FloatArray, at_least: FloatArray, share: float) -> float:
    """The least value that a share of all do not exceed, as Kaplan and Meier estimate it (JASA 1958).

    seen: (values,) that are known. at_least: (others,) bounds of values that are larger than these. Where so
    many are unknown that none is known to be large enough, the largest of all.
    """
    values = np.concatenate([seen, at_least])
    is_seen = np.concatenate([np.ones(len(seen), np.bool_), np.zeros(len(at_least), np.bool_)])
    order = np.lexsort((~is_seen, values))
    at_risk = np.arange(len(values), 0, -1)
    beyond = np.cumprod(1.0 - is_seen[order] / at_risk)
    enough = np.flatnonzero(beyond <= 1.0 - share + 1e-12)
    return float(values[order[enough[0] if len(enough) else -1]])
