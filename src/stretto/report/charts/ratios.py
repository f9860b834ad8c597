"""Ours over the paper's, row by row, one chart for each metric: 1× is where the paper is."""

from collections.abc import Sequence
from math import ceil, floor, isfinite, log2

import numpy as np
from markupsafe import Markup

from stretto.report.axes import Axis, Frame, draw_axes
from stretto.report.charts.figure import WIDTH, Figure, shortened, svg
from stretto.report.reproduction import (
    NEARNESS,
    Published,
    metrics_of,
    number,
    published,
    spread_of,
    title_of,
    unit_of,
)
from stretto.report.svg import element, group, joined, line, rect, text
from stretto.report.wording import digits, times

ROW, HEAD, FOOT = 24.0, 30.0, 42.0
MOST_LETTERS = 30
WIDEST = 3  # chosen: the axis ends at 8 times at most; what is farther off stands at its end, as an arrow
COVERED = 95  # chosen: per cent of the figures for which the axis is wide enough, if that is less
MOST_ROWS = 60


def ratio_charts(figures: Sequence[Published]) -> tuple[Figure, ...]:
    """A chart for each metric that can be compared, all with the same axis."""
    by_metric = metrics_of(figures)
    factors = [figure.factor for ones in by_metric.values() for figure in ones if figure.factor is not None]
    finite = [factor for factor in factors if isfinite(factor)]
    widest = float(np.percentile(finite, COVERED)) if finite else 2.0
    powers = min(WIDEST, max(1, ceil(log2(widest) - 1e-9)))
    return tuple(
        _figure(f"ratio-{position}", metric, ones, powers)
        for position, (metric, ones) in enumerate(by_metric.items())
    )


def _figure(id_: str, metric: str, figures: Sequence[Published], powers: int) -> Figure:
    drawn = figures[:MOST_ROWS]
    names = 14 + 7.4 * max(len(shortened(figure.row, MOST_LETTERS)) for figure in drawn)
    values = 20 + 7.0 * max(len(_values(figure)) for figure in drawn)
    x = Axis(2.0**-powers, 2.0**powers, max(names, 70.0), WIDTH - max(values, 92.0), is_log=True)
    bottom = HEAD + ROW * len(drawn)
    frame = Frame(x, Axis(0.0, 1.0, bottom, HEAD - 8))
    unit = unit_of(metric)
    title = title_of(metric) + (f", {unit}" if unit else "")
    drawing = svg(
        id_,
        WIDTH,
        bottom + FOOT,
        f"{title}: ours over the paper's",
        "; ".join(_said(figure) for figure in figures),
        _near_band(frame),
        draw_axes(frame, _ticks(powers, x), [], "ours / paper's, log scale"),
        line(x.px(1.0), frame.top, x.px(1.0), frame.bottom, "one"),
        text(WIDTH - 4, HEAD - 14, "ours / paper's", "tick end"),
        joined(_row(figure, HEAD + ROW * (index + 0.5), x) for index, figure in enumerate(drawn)),
    )
    left_out = len(figures) - len(drawn)
    note = f"{left_out} further rows are in the table." if left_out else ""
    return Figure(id_, title, spread_of(figures), drawing, note=note)


def _row(figure: Published, y: float, x: Axis) -> Markup:
    if figure.factor is None or figure.ratio is None or figure.nearness is None:
        return Markup()
    beyond = figure.factor > x.high
    high = figure.ratio > 1
    mark_px = (x.end_px if high else x.start_px) if beyond else x.px(figure.ratio)
    mark = (
        element("path", d=_arrow(mark_px, y, 1 if high else -1), class_="mark")
        if beyond
        else element("circle", cx=mark_px, cy=y, r=5, class_="mark")
    )
    return group(
        element("title", _said(figure)),
        text(0, y + 4, shortened(figure.row, MOST_LETTERS), "name"),
        line(x.px(1.0), y, mark_px, y, "stem"),
        mark,
        text(WIDTH - 4, y + 4, _values(figure), "end values"),
        class_=f"near{figure.nearness}",
    )


def _near_band(frame: Frame) -> Markup:
    """Where a figure counts as near."""
    most = NEARNESS[0][0]
    left, right = frame.x.px(1 / most), frame.x.px(most)
    return rect(left, frame.top, right - left, frame.bottom - frame.top, "near-band", aria_hidden="true")


def _arrow(x: float, y: float, way: int) -> str:
    return f"M{x - way * 4:.1f} {y - 5:.1f}L{x + way * 5:.1f} {y:.1f}L{x - way * 4:.1f} {y + 5:.1f}Z"


def _ticks(powers: int, x: Axis) -> list[tuple[float, str]]:
    """Powers of two, as many as have room."""
    room = (x.end_px - x.start_px) / (2 * powers)
    step = max(1, ceil(44 / room))
    last = floor(powers / step) * step
    return [(2.0**power, _multiple(power)) for power in range(-last, last + 1, step)]


def _multiple(power: int) -> str:
    return f"{2**power}×" if power >= 0 else f"1/{2**-power}×"


def _values(one: Published) -> str:
    return f"{number(one.ours)} / {published(one.paper)}"


def _said(one: Published) -> str:
    ratio = times(one.ratio) if one.ratio is not None else digits(float("nan"))
    return f"{one.row}: ours {number(one.ours)}, the paper's {published(one.paper)}, {ratio}"
