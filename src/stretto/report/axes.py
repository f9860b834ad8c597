"""From seconds, shares and counts to pixels, with ticks where people expect them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np
from markupsafe import Markup

from stretto.model.arrays import FloatArray, floats
from stretto.report.svg import group, joined, line, text
from stretto.report.wording import DAY_S, HOUR_S, MINUTE_S, duration, plain

# Round times in the order in which a log axis would like to show them.
ROUND_TIMES_S = (
    HOUR_S, MINUTE_S, 1.0, DAY_S, 10 * MINUTE_S, 10.0, 10 * HOUR_S, 10 * DAY_S, 0.1, 0.01, 1e-3, 1e-4,
    100 * DAY_S, 30.0, 30 * MINUTE_S, 3 * HOUR_S, 3 * MINUTE_S, 3.0, 3 * DAY_S, 30 * DAY_S, 0.3, 0.03, 3e-3,
    2 * HOUR_S, 2 * MINUTE_S, 5 * HOUR_S, 5 * MINUTE_S, 20 * MINUTE_S, 20 * HOUR_S, 2 * DAY_S, 5 * DAY_S,
)  # fmt: skip
ROUND_HOURS = (1 / 60, 1 / 12, 0.25, 0.5, 1, 2, 3, 4, 6, 12, 24, 48, 96, 168, 336, 720, 1440, 2880, 8760)


@dataclass(frozen=True, slots=True)
class Axis:
    """A stretch of values laid over a stretch of pixels; `low` < `high`, and `low` > 0 on a log axis."""

    low: float
    high: float
    start_px: float  # where `low` is
    end_px: float  # where `high` is
    is_log: bool = False

    def at(self, values: FloatArray) -> FloatArray:
        """Pixels of values, kept within the axis."""
        low, high = self._scaled(floats([self.low, self.high]))
        part = (self._scaled(np.maximum(values, self.low if self.is_log else -np.inf)) - low) / (high - low)
        return np.asarray(self.start_px + np.clip(part, 0, 1) * (self.end_px - self.start_px))

    def px(self, value: float) -> float:
        """Pixel of one value."""
        return float(self.at(floats([value]))[0])

    def grid(self, points: int) -> FloatArray:
        """(points,) values evenly spaced on the paper."""
        low, high = self._scaled(floats([self.low, self.high]))
        even = np.linspace(low, high, points)
        return np.asarray(np.exp(even) if self.is_log else even)

    def _scaled(self, values: FloatArray) -> FloatArray:
        return np.log(values) if self.is_log else values


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area of a chart with its two axes, in the pixels of the drawing."""

    x: Axis
    y: Axis

    @property
    def left(self) -> float:
        """Left edge."""
        return self.x.start_px

    @property
    def right(self) -> float:
        """Right edge."""
        return self.x.end_px

    @property
    def top(self) -> float:
        """Upper edge: the y axis grows upwards."""
        return self.y.end_px

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.y.start_px


def log_axis(values: FloatArray, start_px: float, end_px: float, floor_at: float = 1.0) -> Axis:
    """A log axis over the positive finite values, with a little air, from `floor_at` or above."""
    known = values[np.isfinite(values) & (values >= floor_at)]
    low, high = (float(known.min()), float(known.max())) if known.size else (floor_at, 10 * floor_at)
    low, high = low / 1.15, high * 1.15
    if high / low < 2:
        low, high = low / 1.4, high * 1.4
    return Axis(max(floor_at, low), high, start_px, end_px, is_log=True)


def time_ticks(axis: Axis, apart_px: float = 46.0) -> list[tuple[float, str]]:
    """Round times on a log axis, the most natural first, none closer than `apart_px`."""
    chosen: list[float] = []
    for value in ROUND_TIMES_S:
        if axis.low <= value <= axis.high and all(
            abs(axis.px(value) - axis.px(other)) >= apart_px for other in chosen
        ):
            chosen.append(value)
    return [(value, _round_time(value)) for value in sorted(chosen)]


def clock_ticks(axis: Axis, count: int = 6) -> list[tuple[float, str]]:
    """Even times on a linear axis of seconds, in hours or days."""
    hours = (axis.high - axis.low) / HOUR_S
    step = next((step for step in ROUND_HOURS if hours / step <= count), ceil(hours / count / 8760) * 8760)
    unit, name = (24, "d") if step >= 24 else (1, "h") if step >= 0.25 else (1 / 60, "min")
    first, last = ceil(axis.low / HOUR_S / step - 1e-9), floor(axis.high / HOUR_S / step + 1e-9)
    values = [n * step for n in range(first, last + 1)]
    return [(v * HOUR_S, f"{plain(round(v / unit, 2))} {name}" if v else "0") for v in values]


def even_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round, evenly spaced values within [low, high]: steps of 1, 2 or 5 times a power of ten."""
    span = max(high - low, 1e-12)
    power = 10 ** floor(log10(span / count))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= count)
    return [n * step for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def draw_axes(
    frame: Frame,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
    x_title: str = "",
    y_title: str = "",
) -> Markup:
    """Grid lines, tick labels and titles; the y title stands above the axis, where it reads level."""
    across = joined(
        line(frame.left, frame.y.px(value), frame.right, frame.y.px(value), "grid")
        + text(frame.left - 6, frame.y.px(value) + 4, label, "tick end")
        for value, label in y_ticks
    )
    down = joined(
        line(frame.x.px(value), frame.top, frame.x.px(value), frame.bottom, "grid v")
        + text(frame.x.px(value), frame.bottom + 16, label, "tick mid")
        for value, label in x_ticks
    )
    base = line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")
    titles = joined(
        [
            text((frame.left + frame.right) / 2, frame.bottom + 34, x_title, "label mid")
            if x_title
            else Markup(),
            text(2, frame.top - 10, y_title, "label") if y_title else Markup(),
        ]
    )
    return group(across, down, base, titles, class_="axes", aria_hidden="true")


def labelled(values: Sequence[float], words: Callable[[float], str]) -> list[tuple[float, str]]:
    """Ticks from values and a way to word them."""
    return [(value, words(value)) for value in values]


def _round_time(seconds: float) -> str:
    for size, name in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return duration(seconds, 1)
