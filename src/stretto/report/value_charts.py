"""The values of a table, ours and the paper's, as charts: which there are, of what, and in which colours."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from stretto.report.reproduction import Published, number, published, title_of, unit_of
from stretto.report.row_names import FEWEST_POINTS, Layout, Spot, layouts_of
from stretto.report.wording import digits

PLUS_MINUS = "_plus_minus"  # ends the metric of half an interval over seeds
RATIO = "ratio"  # the unit where each row is one over another
_NUMBERED = re.compile(r"^(.*)_([a-z]+)_(\d+)_?(h|min|s|ms)?$")  # 'usage_hour_07', 'share_over_600s'


@dataclass(frozen=True, slots=True)
class Point:
    """One row: where it stands, and its values."""

    spot: Spot
    metric: str
    ours: float | None  # None: not known, or it does not apply
    half: float  # of the 95 % interval over seeds; 0 without one
    paper: float | None  # None: not printed
    bound: str  # "at most", "at least": what the paper's value is a limit of

    @property
    def values(self) -> tuple[float, ...]:
        """All that the axis has to reach."""
        around = () if self.ours is None else (self.ours - self.half, self.ours + self.half)
        return (*around, *(() if self.paper is None else (self.paper,)))

    @property
    def words(self) -> str:
        """Its row and values."""
        within = f" ± {digits(self.half)}" if self.half else ""
        limited = f"{self.bound} " if self.bound else ""
        papers = "" if self.paper is None else f", the paper's {limited}{published(self.paper)}"
        return f"{self.spot.row}: ours {number(self.ours)}{within}{papers}"


@dataclass(frozen=True, slots=True)
class Chart:
    """The rows of one metric that stand in one chart."""

    name: str  # of the metric, or of several that differ by a number
    about: str  # what its rows have in common; may be empty
    axis: str  # of curves: what their x is; "" for bars
    unit: str  # of the values; may be empty
    points: tuple[Point, ...]
    colours: Mapping[str, int]  # by series, in the order of the legend

    @property
    def title(self) -> str:
        """The metric with its unit, and what the rows have in common."""
        words = title_of(self.name) + (f", {self.unit}" if self.unit else "")
        return words + (f": {self.about}" if self.about else "")

    @property
    def lead(self) -> str:
        """How many of the values the paper prints or limits; empty where it does neither."""
        printed = sum(point.paper is not None and not point.bound for point in self.points)
        limited = sum(point.paper is not None and bool(point.bound) for point in self.points)
        counts = ((printed, "prints"), (limited, "states a limit of"))
        phrases = [f"{verb} {self._share_of(count)}" for count, verb in counts if count]
        return f"The paper {' and '.join(phrases)}." if phrases else ""

    @property
    def known(self) -> list[float]:
        """All values, ours and the paper's, without intervals."""
        return [value for point in self.points for value in (point.ours, point.paper) if value is not None]

    @property
    def description(self) -> str:
        """All of it in words."""
        return "; ".join(point.words for point in self.points)

    def note_with(self, more: str = "") -> str:
        """What is missing from the drawing, and something more."""
        missing = sum(point.ours is None for point in self.points)
        is_ = "is" if missing == 1 else "are"
        words = f"{missing} of ours {is_} not known, or not applicable." if missing else ""
        return " ".join(part for part in (words, more) if part)

    def _share_of(self, count: int) -> str:
        if len(self.points) == 1:
            return "this value"
        return f"{'all' if count == len(self.points) else count} of these {len(self.points)} values"


def charts_of(figures: Sequence[Published], policies: Collection[str] = ()) -> tuple[Chart, ...]:
    """A chart for each metric and each kind of its rows, but for a single value of which the paper has none.

    policies: the names that have a colour, where parts of the rows' names could be either.
    """
    halves = {
        (figure.row, figure.metric.removesuffix(PLUS_MINUS)): figure.ours
        for figure in figures
        if figure.metric.endswith(PLUS_MINUS) and figure.ours is not None
    }
    points = [
        _point(figure, halves.get((figure.row, figure.metric), 0.0))
        for figure in figures
        if not figure.metric.endswith(PLUS_MINUS)
    ]
    by_metric: dict[str, list[Point]] = {}
    for point in points:
        by_metric.setdefault(point.metric, []).append(point)
    charts: list[Chart] = []
    series = _series_of_metrics(list(by_metric))
    for metric, ones in by_metric.items():
        if metric not in series:
            charts += _of_metric(metric, ones, policies)
        elif series[metric][0] == metric:
            charts += _over_metrics([by_metric[each] for each in series[metric]], policies)
    drawn = [chart for chart in charts if _says_something(chart)]
    return tuple(_coloured(drawn))


def _point(one: Published, half: float) -> Point:
    ours = one.ours if one.ours is not None and isfinite(one.ours) else None
    paper = one.paper if one.paper is not None and isfinite(one.paper) else None
    return Point(Spot(one.row, ""), one.metric, ours, half if isfinite(half) else 0.0, paper, one.bound)


def _says_something(chart: Chart) -> bool:
    known = [point for point in chart.points if point.ours is not None]
    return len(known) > 1 or any(point.paper is not None for point in known)


def _of_metric(metric: str, points: Sequence[Point], policies: Collection[str]) -> list[Chart]:
    by_row = {point.spot.row: point for point in points}
    return [
        _chart(metric, layout, [replace(by_row[spot.row], spot=spot) for spot in layout.spots])
        for layout in layouts_of(list(by_row), policies)
    ]


def _chart(metric: str, layout: Layout, points: Sequence[Point]) -> Chart:
    unit = RATIO if layout.is_ratio else unit_of(metric)
    return Chart(metric, layout.about, layout.axis, unit, tuple(points), {})


def _series_of_metrics(metrics: Sequence[str]) -> dict[str, list[str]]:
    """Metrics that differ by a number alone: of each of them, all in the order of their numbers."""
    alike: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for metric in metrics:
        if match := _NUMBERED.match(metric):
            alike.setdefault((match[1], match[2], match[4] or ""), []).append((int(match[3]), metric))
    found = [[metric for _, metric in sorted(ones)] for ones in alike.values() if len(ones) >= FEWEST_POINTS]
    return {metric: ones for ones in found for metric in ones}


def _over_metrics(by_metric: Sequence[Sequence[Point]], policies: Collection[str]) -> list[Chart]:
    """Metrics such as 'usage_hour_07' as curves over their number: each row is a curve."""
    charts = []
    for layout in layouts_of([point.spot.row for point in by_metric[0]], policies):
        names = {spot.row: spot for spot in layout.spots}
        points, stem, axis = [], "", ""
        for ones in by_metric:
            match = _NUMBERED.match(ones[0].metric)
            assert match is not None  # as they were chosen by it
            stem, axis = match[1], ", ".join(word for word in (match[2], match[4]) if word)
            for point in ones:
                if spot := names.get(point.spot.row):
                    series = ", ".join(word for word in (spot.category, spot.series) if word)
                    points.append(replace(point, spot=Spot(spot.row, series, x=float(match[3]))))
        charts.append(Chart(stem, layout.about, axis, "", tuple(points), {}))
    return charts


def _coloured(charts: Sequence[Chart]) -> list[Chart]:
    """Each series with the same colour in all charts, as far as none has one colour twice."""
    usual: dict[str, int] = {}
    made = []
    for chart in charts:
        names = list(dict.fromkeys(point.spot.series for point in chart.points))
        own: dict[str, int] = {}
        for name in sorted(names, key=lambda name: name not in usual):  # those with a colour first
            if name not in usual or usual[name] in own.values():
                own[name] = min(set(range(len(names) + 1)) - set(own.values()))
                usual.setdefault(name, own[name])
            else:
                own[name] = usual[name]
        made.append(replace(chart, colours={name: own[name] for name in names}))
    return made
