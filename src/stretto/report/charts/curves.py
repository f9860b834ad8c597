"""Values of a table over a number that its rows differ by: a curve for each series."""

from collections.abc import Sequence
from math import ceil, floor, log10

import numpy as np
from markupsafe import Markup

from stretto.model.arrays import FloatArray, floats
from stretto.report.axes import Axis, Frame, draw_axes, even_ticks, labelled
from stretto.report.charts.figure import WIDTH, Figure, policy_class, svg
from stretto.report.charts.legend import diamond, legend, limit
from stretto.report.svg import element, group, joined, line, polyline
from stretto.report.value_charts import Chart, Point
from stretto.report.wording import plain

HEIGHT, FOOT = 250.0, 42.0  # of the plotting area, and below it
TICKS_APART = 40.0  # pixels between numbers below the axis
LINE_PX = 14.0  # pixels between numbers beside the axis at least
MOST_DOTS = 24  # chosen: of a curve; with more they are small
WIDE_RANGE = 100.0  # chosen: over more than two powers of ten the axis is a log axis


def curves(id_: str, chart: Chart) -> Figure:
    """The chart as curves, the paper's values as diamonds."""
    key, top = legend(chart, _line_swatch)
    top += 28
    y = _values_axis(chart, top + HEIGHT, top)
    zeros = y.is_log and any(value <= 0 for value in chart.known)
    ticks = _log_ticks(y, zeros) if y.is_log else labelled(even_ticks(y.low, y.high), plain)
    left = 14 + 6.8 * max((len(words) for _, words in ticks), default=0)
    x = _numbers_axis(sorted({point.spot.x for point in chart.points}), max(left, 34.0), WIDTH - 18)
    frame = Frame(x, y)
    axes = draw_axes(frame, _x_ticks(chart, x), ticks, chart.axis, _y_title(chart, y))
    drawn = [
        group(
            *_series(frame, [point for point in chart.points if point.spot.series == name]),
            class_=policy_class(colour),
        )
        for name, colour in chart.colours.items()
    ]
    return Figure(
        id_,
        chart.title,
        chart.lead,
        svg(id_, WIDTH, top + HEIGHT + FOOT, chart.title, chart.description, key, axes, joined(drawn)),
        note=chart.note_with("Zero stands at the foot of the log axis." if zeros else ""),
    )


def _series(frame: Frame, points: Sequence[Point]) -> list[Markup]:
    known = [point for point in points if point.ours is not None]
    radius = 4.0 if len(points) <= MOST_DOTS else 2.2
    numbers = floats([point.spot.x for point in known])
    ours = floats([point.ours or 0.0 for point in known])
    drawn = [element("path", d=polyline(frame.x.at(numbers), frame.y.at(ours)), class_="curve")]
    for point in points:
        x = frame.x.px(point.spot.x)
        parts: list[Markup] = [element("title", point.words)]
        if point.ours is not None and point.half:
            low, high = frame.y.px(point.ours - point.half), frame.y.px(point.ours + point.half)
            parts += [line(x, low, x, high, "reach")]
            ends = (high, low) if point.ours - point.half > frame.y.low else (high,)
            parts += [line(x - 3.5, end, x + 3.5, end, "reach") for end in ends]
        if point.ours is not None:
            parts.append(element("circle", cx=x, cy=frame.y.px(point.ours), r=radius, class_="dot"))
        if point.paper is not None:
            y = frame.y.px(point.paper)
            down = 1.0 if point.bound == "at most" else -1.0
            parts.append(limit(x, y, (8.0, 0.0), (0.0, down)) if point.bound else diamond(x, y, "own"))
        drawn.append(group(*parts))
    return drawn


def _values_axis(chart: Chart, start_px: float, end_px: float) -> Axis:
    """A log axis where values differ by much; else from zero, unless that would flatten them."""
    values = [value for point in chart.points for value in point.values]
    bare = chart.known
    positive = [value for value in bare if value > 0]
    if positive and min(bare) >= 0 and max(positive) > WIDE_RANGE * min(positive):
        low = min(positive) / (1.3 if min(bare) > 0 else 4.0)  # with room for what is zero, at the foot
        return Axis(low, max(values) * 1.3, start_px, end_px, is_log=True)
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high == 0.0:
        return Axis(0.0, 1.0, start_px, end_px)
    low = max(low, 0.0) if min(bare, default=0.0) >= 0 else low  # an interval may reach below what can be
    low = 0.0 if 0 <= low < 0.6 * high else low - 0.08 * ((high - low) or abs(low) or 1.0)
    return Axis(low, high + 0.06 * ((high - low) or 1.0), start_px, end_px)


def _numbers_axis(values: Sequence[float], start_px: float, end_px: float) -> Axis:
    """Over the numbers of the rows: a log axis where these are more even on it, such as 1, 2, 4 and 8."""
    low, high = values[0], values[-1]
    if low > 0 and _unevenness(floats(np.log(values))) < _unevenness(floats(values)):
        air = (high / low) ** 0.04
        return Axis(low / air, high * air, start_px, end_px, is_log=True)
    air = 0.04 * ((high - low) or 1.0)
    return Axis(low - air, high + air, start_px, end_px)


def _unevenness(values: FloatArray) -> float:
    gaps = np.diff(values)
    return float(gaps.max() / gaps.min()) if gaps.size else 1.0


def _x_ticks(chart: Chart, x: Axis) -> list[tuple[float, str]]:
    """The numbers of the rows, as many as have room."""
    chosen: list[tuple[float, str]] = []
    for value in sorted({point.spot.x for point in chart.points}):
        room = TICKS_APART if len(plain(value)) > 3 else 0.6 * TICKS_APART
        if not chosen or x.px(value) - x.px(chosen[-1][0]) >= room:
            chosen.append((value, plain(value)))
    return chosen


def _log_ticks(y: Axis, zeros: bool) -> list[tuple[float, str]]:
    """Powers of ten, as many as have room, and zero at the foot where there is one."""
    first, last = ceil(log10(y.low) - 1e-9), floor(log10(y.high) + 1e-9)
    step = max(1, ceil((last - first) / 7))
    powers = [(10.0**power, plain(float(f"1e{power}"))) for power in range(first, last + 1, step)]
    if not zeros:
        return powers
    return [(y.low, "0")] + [tick for tick in powers if y.start_px - y.px(tick[0]) >= LINE_PX]


def _y_title(chart: Chart, y: Axis) -> str:
    return ", ".join(part for part in (chart.unit, "log scale" if y.is_log else "") if part)


def _line_swatch(x: float, y: float, colour: int) -> Markup:
    stroke = element("path", d=f"M{x:.1f} {y:.1f}H{x + 16:.1f}", class_="curve")
    dot = element("circle", cx=x + 8, cy=y, r=4, class_="dot")
    return group(stroke, dot, class_=policy_class(colour))
