"""What GPUs were held for: a bar for each row, a column for each period, and what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stretto.report.axes import Axis, Frame, draw_axes, even_ticks, labelled
from stretto.report.charts.figure import WIDTH, Figure, shortened, svg
from stretto.report.svg import element, group, joined, rect, text
from stretto.report.usage import USES, UsageReport, Use
from stretto.report.wording import digits, plain, plural, share

ROW, BAR = 30.0, 17.0
MOST_ROWS = 40
MOST_LETTERS = 28
HEIGHT = 300.0
MOST_COLUMNS = 400
WIDEST_PX = 72.0  # of a column
LABEL_PX = 74.0  # that a date below a column takes


def usage_figures(report: UsageReport) -> tuple[Figure, ...]:
    """Those that apply."""
    groups, periods = report.groups, report.periods
    figures = [
        _held("held", "What GPUs were held for", groups),
        _over_time(periods, report.period),
        _charged(groups or periods),
    ]
    return tuple(figure for figure in figures if figure is not None)


def _held(id_: str, title: str, uses: Mapping[str, Use]) -> Figure | None:
    rows = {name: use for name, use in uses.items() if use.held_h}
    if not rows:
        return None
    bars = [
        _Bar(name, [(use.hours[each], each) for each in USES], f"{digits(use.held_h)} GPU·h", _said(use))
        for name, use in rows.items()
    ]
    worst = max(rows.items(), key=lambda item: item[1].hours["lost"] + item[1].hours["idle"])
    wasted = worst[1].hours["lost"] + worst[1].hours["idle"]
    lead = f"Most was lost or idle for {worst[0]}: {digits(wasted)} GPU-hours." if wasted else ""
    return _bars(id_, title, lead, bars)


def _charged(uses: Mapping[str, Use]) -> Figure | None:
    """What each is charged for, in money where there are prices."""
    is_priced = any(use.cost is not None for use in uses.values())
    charged = {name: (use.cost or 0.0) if is_priced else use.charged_h for name, use in uses.items()}
    if not any(charged.values()):
        return None
    unit = "" if is_priced else " GPU·h"
    bars = [
        _Bar(name, [(value, "charged")], f"{digits(value)}{unit}", f"charged {digits(value)}{unit}")
        for name, value in sorted(charged.items(), key=lambda item: (-item[1], item[0]))
    ]
    total = sum(charged.values())
    first = bars[0]
    lead = f"{first.name} is charged {first.label}, {share(first.parts[0][0] / total)} of all."
    unpriced = sum(use.unpriced_h for use in uses.values())
    note = f"{digits(unpriced)} GPU-hours of it have no price." if is_priced and unpriced else ""
    return _bars("cost" if is_priced else "charged", "Cost" if is_priced else "Charged", lead, bars, note)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One row: its name, its parts by class, and the words beside it."""

    name: str
    parts: list[tuple[float, str]]
    label: str
    words: str

    @property
    def length(self) -> float:
        return sum(part for part, _ in self.parts)


def _bars(id_: str, title: str, lead: str, bars: Sequence[_Bar], note: str = "") -> Figure:
    drawn = bars[:MOST_ROWS]
    room = 16 + 7.6 * max(len(bar.label) for bar in drawn)
    start = 22 + 7.9 * max(len(shortened(bar.name, MOST_LETTERS)) for bar in drawn)
    axis = Axis(0.0, max(bar.length for bar in drawn) or 1.0, start, WIDTH - room)
    height = ROW * len(drawn) + 8
    rows = [_row(bar, axis, 4 + ROW * (index + 0.5)) for index, bar in enumerate(drawn)]
    description = "; ".join(f"{bar.name}: {bar.words}" for bar in drawn)
    notes = [f"{plural(len(bars) - len(drawn), 'further row')} are in the table."] if drawn != bars else []
    notes += [note] if note else []
    return Figure(
        id_,
        title,
        lead,
        svg(id_, WIDTH, height, title, description, joined(rows)),
        note=" ".join(notes),
    )


def _row(bar: _Bar, axis: Axis, middle: float) -> Markup:
    drawn = [
        element("title", f"{bar.name}: {bar.words}"),
        text(0, middle + 4.5, shortened(bar.name, MOST_LETTERS), "name"),
    ]
    end = 0.0
    for length, class_ in bar.parts:
        start_px, end_px = axis.px(end), axis.px(end + length)
        if length:
            drawn.append(rect(start_px, middle - BAR / 2, end_px - start_px, BAR, class_))
        end += length
    drawn.append(text(axis.px(end) + 8, middle + 4.5, bar.label, "value"))
    return group(*drawn)


def _over_time(periods: Mapping[str, Use], period: str) -> Figure | None:
    if not any(use.held_h for use in periods.values()):
        return None
    shown = list(periods.items())[-MOST_COLUMNS:]
    highest = max(use.held_h for _, use in shown)
    frame = Frame(Axis(0, len(shown), 52, WIDTH - 8), Axis(0, highest * 1.05, HEIGHT - 44, 30))
    step = max(1, round(LABEL_PX / (frame.right - frame.left) * len(shown) + 0.499))
    ticks = [(index + 0.5, name) for index, (name, _) in enumerate(shown) if index % step == 0]
    axes = draw_axes(frame, ticks, labelled(even_ticks(0, highest * 1.05), plain), "", "GPU-hours")
    gap = 0.12 if len(shown) < 120 else 0.0
    columns = []
    for index, (name, use) in enumerate(shown):
        middle = frame.x.px(index + 0.5)
        half = min(frame.x.px(index + 1 - gap) - middle, WIDEST_PX / 2)
        parts, base = [element("title", f"{name}: {_said(use)}")], 0.0
        for each in USES:
            top = base + use.hours[each]
            if use.hours[each]:
                low_px, high_px = frame.y.px(base), frame.y.px(top)
                parts.append(rect(middle - half, high_px, 2 * half, low_px - high_px, each))
            base = top
        columns.append(group(*parts))
    peak = max(shown, key=lambda item: item[1].held_h)
    lead = f"The {period} with the most is {peak[0]}: {digits(peak[1].held_h)} GPU-hours."
    description = "; ".join(f"{name}: {_said(use)}" for name, use in shown)
    note = (
        f"The last {len(shown)} of {len(periods)}; all are in the table." if len(shown) < len(periods) else ""
    )
    title = f"GPU-hours by {period}"
    drawing = svg("over-time", WIDTH, HEIGHT, title, description, axes, joined(columns))
    return Figure("over-time", title, lead, drawing, note=note)


def _said(use: Use) -> str:
    parts = ", ".join(f"{each} {digits(hours)}" for each, hours in use.hours.items() if hours)
    return f"{digits(use.held_h)} GPU-hours ({parts or 'none'})"
