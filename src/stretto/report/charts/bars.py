"""Values of a table as bars from zero, those that belong together as a group."""

from collections.abc import Sequence
from math import ceil, floor, log10
from textwrap import wrap

from markupsafe import Markup

from stretto.report.axes import Axis, Frame, draw_axes, even_ticks, labelled
from stretto.report.charts.figure import WIDTH, Figure, policy_class, shortened, svg
from stretto.report.charts.legend import diamond, fill_class, legend, limit, swatch
from stretto.report.reproduction import number, title_of
from stretto.report.svg import element, group, joined, line, rect, text
from stretto.report.value_charts import Chart, Point
from stretto.report.wording import plain

FOOT = 42.0  # below the plotting area
MOST_LETTERS = 30  # of a line of a name beside bars; a name has two lines at most
LETTER = 8.2  # pixels of a name's letter at most, on average
THICK = ((1, 16.0), (2, 13.0), (4, 12.0))  # of a bar by how many stand together at most, in pixels
THIN = 7.0  # of a bar of still more; then their values do not fit beside them
BETWEEN = 10.0  # groups of bars
UNSEEN = 50.0  # times the longest bar of a group: the group is not seen beside one so long
MOST_OF_LOG = 1e5  # times the least value on a log axis; what is less counts as zero


def bars(id_: str, chart: Chart) -> Figure:
    """The chart as bars from zero, those of one name together, the paper's values as diamonds."""
    key, top = legend(chart, swatch)
    top += 8
    groups: dict[str, list[Point]] = {}
    for point in chart.points:
        groups.setdefault(point.spot.category, []).append(point)
    together = max(len(points) for points in groups.values())
    thick = next((px for most, px in THICK if together <= most), THIN)
    room = 24 + 6.6 * max(len(number(point.ours)) for point in chart.points) if thick > THIN else 14.0
    names = 12 + LETTER * max(len(words) for name in groups for words in _lines(name))
    x = _values_axis(chart, list(groups.values()), thick > THIN, names, WIDTH - room)
    bottom = top + sum(thick * len(points) + BETWEEN for points in groups.values())
    title = (chart.unit or title_of(chart.name)) + (", log scale" if x.is_log else "")
    from_zero = x.is_log and min(chart.known) < x.low
    ticks = _x_powers(x, from_zero) if x.is_log else _x_even(x)
    axes = draw_axes(Frame(x, Axis(0.0, 1.0, bottom, top)), ticks, [], title)
    drawn, y = [], top + BETWEEN / 2
    for name, points in groups.items():
        middle = y + thick * len(points) / 2
        drawn += _name(name, middle)
        for point in points:
            drawn.append(_bar(point, chart.colours[point.spot.series], x, y + thick / 2, thick))
            y += thick
        y += BETWEEN
    zero = line(x.px(0.0), top, x.px(0.0), bottom, "axis")
    return Figure(
        id_,
        chart.title,
        chart.lead,
        svg(id_, WIDTH, bottom + FOOT, chart.title, chart.description, key, axes, joined(drawn), zero),
        note=chart.note_with("What has no bar is next to zero." if from_zero else ""),
    )


def _values_axis(
    chart: Chart, groups: Sequence[Sequence[Point]], has_words: bool, start_px: float, end_px: float
) -> Axis:
    """From zero; a log axis where whole groups would not be seen, and no bar has its value in words."""
    values = [value for point in chart.points for value in point.values]
    low, high = min(0.0, *chart.known, 0.0), max(0.0, *values, 0.0)
    longest = [max((value for point in points for value in point.values), default=0.0) for points in groups]
    if not has_words and low == 0 and min(longest) > 0 and high > UNSEEN * min(longest):
        least = max(min(value for value in chart.known if value > 0), high / MOST_OF_LOG)
        return Axis(10.0 ** floor(log10(least)), high, start_px, end_px, is_log=True)
    return Axis(low * 1.02, high or (1.0 if low == 0 else 0.0), start_px, end_px)


def _name(name: str, middle: float) -> list[Markup]:
    lines = _lines(name)
    first = middle + 4.5 - 6.5 * (len(lines) - 1)
    return [text(0, first + 13 * place, words, "name") for place, words in enumerate(lines)]


def _lines(name: str) -> list[str]:
    """A name in at most two lines; what is longer ends in an ellipsis."""
    first, *rest = wrap(name, MOST_LETTERS) or [""]
    return [first, shortened(" ".join(rest), MOST_LETTERS)] if rest else [first]


def _bar(point: Point, colour: int, x: Axis, y: float, thick: float) -> Markup:
    parts: list[Markup] = [element("title", point.words)]
    ends = [x.px(0.0)]
    gap = 1.0 if thick <= THIN else 1.5
    if point.ours is not None:
        start, end = sorted((x.px(0.0), x.px(point.ours)))
        parts.append(rect(start, y - thick / 2 + gap / 2, end - start, thick - gap, fill_class(colour)))
        ends.append(end)
        if point.half:
            low, high = x.px(point.ours - point.half), x.px(point.ours + point.half)
            parts.append(line(low, y, high, y, "whisker"))
            edges = (low, high) if point.ours - point.half >= x.low else (high,)  # elsewhere it goes on
            parts += [line(edge, y - thick / 5, edge, y + thick / 5, "whisker") for edge in edges]
            ends.append(high)
    if point.paper is not None:
        papers_px = x.px(point.paper)
        way = -1.0 if point.bound == "at most" else 1.0
        mark = limit(papers_px, y, (0.0, thick / 2), (way, 0.0)) if point.bound else diamond(papers_px, y)
        parts.append(mark)
        ends.append(papers_px + (10.0 if point.bound == "at least" else 5.0))
    if thick > THIN:
        parts.append(text(max(ends) + 6, y + 4, number(point.ours), "values"))
    return group(*parts, class_=policy_class(colour))


def _x_even(x: Axis) -> list[tuple[float, str]]:
    """Round values, as many as have room."""
    ticks = labelled(even_ticks(x.low, x.high), plain)
    longest = max(len(words) for _, words in ticks)
    apart = (x.end_px - x.start_px) / max(len(ticks) - 1, 1)
    return ticks[:: max(1, ceil((7.0 * longest + 10) / apart))]


def _x_powers(x: Axis, from_zero: bool) -> list[tuple[float, str]]:
    """Powers of ten; the first stands for all that is less where bars begin at zero."""
    first, last = round(log10(x.low)), floor(log10(x.high))
    ticks = labelled([10.0**power for power in range(first, last + 1)], plain)
    return [(x.low, "0"), *ticks[1:]] if from_zero else ticks
