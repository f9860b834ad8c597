"""What the marks of a chart stand for, above it: series, the paper's values and limits, intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stretto.report.charts.figure import COLOURS, WIDTH, policy_class
from stretto.report.svg import element, group, joined, line, rect, text
from stretto.report.value_charts import Chart

LINE, LETTER = 19.0, 6.9  # pixels: of a line, and of a letter on average
SWATCH, APART = 22.0, 18.0
PAPERS = "the paper's"


@dataclass(frozen=True, slots=True)
class Entry:
    """A mark and its word."""

    word: str
    mark: Callable[[float, float], Markup]  # drawn at the left edge and the middle of its line
    colour: int | None = None  # of a series; None: no series

    @property
    def width(self) -> float:
        """Pixels with the gap behind it."""
        return SWATCH + LETTER * len(self.word) + APART


def legend(chart: Chart, series_mark: Callable[[float, float, int], Markup]) -> tuple[Markup, float]:
    """The legend and its height; empty where nothing needs a word."""
    entries = _entries(chart, series_mark)
    if not entries:
        return Markup(), 0.0
    x, y, drawn = 0.0, 10.0, []
    for entry in entries:
        if x > 0 and x + entry.width - APART > WIDTH:
            x, y = 0.0, y + LINE
        parts = (entry.mark(x, y), text(x + SWATCH, y + 4, entry.word, "key"))
        class_ = "p7" if entry.colour is None else policy_class(entry.colour)
        drawn.append(group(*parts, class_=class_))
        x += entry.width
    return group(joined(drawn), aria_hidden="true"), y + LINE


def swatch(x: float, y: float, colour: int) -> Markup:
    """A square of a series."""
    return rect(x, y - 5.5, 14, 11, fill_class(colour))


def fill_class(colour: int) -> str:
    """Past the palette colours are pale, as lines are dashed."""
    return "full" if colour < COLOURS else "soft"


def diamond(x: float, y: float, of: str = "", size: float = 5.0) -> Markup:
    """A value of the paper; of: a further class, "own" in the colour of its series."""
    path = f"M{x - size:.1f} {y:.1f}L{x:.1f} {y - size:.1f}L{x + size:.1f} {y:.1f}L{x:.1f} {y + size:.1f}Z"
    return element("path", d=path, class_=f"papers {of}".strip())


def limit(x: float, y: float, across: tuple[float, float], way: tuple[float, float]) -> Markup:
    """A limit of the paper's text: a stroke to both sides, and an arrow to where values keep it."""
    (dx, dy), (wx, wy) = across, way
    tip_x, tip_y = x + 9 * wx, y + 9 * wy
    stroke = f"M{x - dx:.1f} {y - dy:.1f}L{x + dx:.1f} {y + dy:.1f}M{x:.1f} {y:.1f}L{tip_x:.1f} {tip_y:.1f}"
    head = "".join(
        f"M{tip_x:.1f} {tip_y:.1f}L{tip_x - 4 * wx + side * wy:.1f} {tip_y - 4 * wy + side * wx:.1f}"
        for side in (-3, 3)
    )
    return element("path", d=stroke + head, class_="limit")


def _entries(chart: Chart, series_mark: Callable[[float, float, int], Markup]) -> Sequence[Entry]:
    has_series = len(chart.colours) > 1
    printed = [point for point in chart.points if point.paper is not None]
    has_values, has_limits = any(not point.bound for point in printed), any(point.bound for point in printed)
    entries: list[Entry] = []
    for name, colour in chart.colours.items():
        if has_series or has_values or has_limits:
            entries.append(Entry(name or "ours", _of_series(series_mark, colour), colour))
    if any(point.half for point in chart.points):
        entries.append(Entry("95 % interval", lambda x, y: line(x + 1, y, x + 15, y, "whisker")))
    if has_values:
        entries.append(Entry(PAPERS, lambda x, y: diamond(x + 7, y)))
    if has_limits:
        entries.append(
            Entry("limit in the paper's text", lambda x, y: limit(x + 7, y - 5, (7.0, 0.0), (0.0, 1.0)))
        )
    return entries


def _of_series(
    series_mark: Callable[[float, float, int], Markup], colour: int
) -> Callable[[float, float], Markup]:
    return lambda x, y: series_mark(x, y, colour)
