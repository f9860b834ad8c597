"""How many jobs are done within a time, or waited no longer: cumulative distributions on a log axis."""

from collections.abc import Callable, Mapping

import numpy as np

from stretto.model.arrays import FloatArray
from stretto.report.axes import Axis, Frame, draw_axes, labelled, log_axis, time_ticks
from stretto.report.charts.figure import POINTS, WIDTH, Figure, curve, readings, svg
from stretto.report.content import RunSeries
from stretto.report.standings import Standing, Standings
from stretto.report.svg import line, staircase
from stretto.report.wording import duration, listed, plural, share

HEIGHT = 330.0


def jct_cdf(standings: Standings) -> Figure | None:
    """Share of submitted jobs completed within a time; jobs that never finish keep it below 100 %."""
    medians = [(s.value("p50_jct_s"), s.policy) for s in standings.ranked]
    reached = sorted((median_s, policy) for median_s, policy in medians if np.isfinite(median_s))
    lead = ""
    if reached:
        lead = f"The median JCT is {duration(reached[0][0])} under {reached[0][1]}"
        lead += f" and {duration(reached[-1][0])} under {reached[-1][1]}." if len(reached) > 1 else "."
    return _cdf(
        standings,
        "jct-cdf",
        "Job completion time",
        lead,
        lambda run: run.jct_s,
        {"median": "p50_jct_s", "p95": "p95_jct_s", "p99": "p99_jct_s"},
        "of jobs done within this time",
    )


def queue_cdf(standings: Standings) -> Figure | None:
    """Share of jobs that waited at most a time; the curve starts at the share that hardly waited."""
    soon = [(share(_within(s.pooled(lambda run: run.queue_s), 1.0)), s.policy) for s in standings.ranked]
    phrases = [f"{part} under {policy}" for part, policy in soon]
    ends = phrases[:1] + phrases[-1:] if len(phrases) > 1 else phrases
    lead = f"Started at once and never paused: {listed(ends)}."
    return _cdf(
        standings,
        "queue-cdf",
        "Queuing time",
        lead,
        lambda run: run.queue_s,
        {"median": "p50_queue_s", "p95": "p95_queue_s"},
        "of jobs waited no longer than this",
        note="The axis starts at one second: a curve begins at the share of jobs that waited less.",
    )


def _cdf(
    standings: Standings,
    id_: str,
    title: str,
    lead: str,
    column: Callable[[RunSeries], FloatArray],
    percentiles: Mapping[str, str],
    y_title: str,
    note: str = "",
) -> Figure | None:
    pooled = [(standing, standing.pooled(column)) for standing in standings.by_colour]
    everything = np.concatenate([values for _, values in pooled])
    if not np.isfinite(everything).any():
        return None
    x = log_axis(everything, 46, WIDTH - 12)
    frame = Frame(x, Axis(0.0, 1.0, HEIGHT - 44, 30))
    grid = x.grid(POINTS)
    heights = [(standing, _shares_within(values, grid)) for standing, values in pooled]
    axes = draw_axes(
        frame,
        time_ticks(x),
        labelled([0, 0.25, 0.5, 0.75, 1], share),
        f"{title.lower()}, log scale",
        f"share {y_title}",
    )
    half = line(frame.left, frame.y.px(0.5), frame.right, frame.y.px(0.5), "guide", aria_hidden="true")
    order = sorted(heights, key=lambda pair: pair[0] is standings.best)  # the best is drawn on top
    curves = [
        curve(s.colour, staircase(x.at(grid), frame.y.at(height)), is_best=s is standings.best)
        for s, height in order
    ]
    description = "; ".join(_said(standing, percentiles) for standing in standings.by_colour)
    drawing = svg(id_, WIDTH, HEIGHT, f"{title}: cumulative distribution", description, axes, half, *curves)
    series = [("p", standing.colour, height) for standing, height in heights]
    jobs = plural(max(values.size for _, values in pooled), "job")
    pooled_note = f"All runs pooled, {jobs} for a policy." if len(standings.best.runs) > 1 else ""
    hover = readings(frame, series, "time", "share")
    return Figure(id_, title, lead, drawing, hover, " ".join(part for part in (pooled_note, note) if part))


def _shares_within(values: FloatArray, limits: FloatArray) -> FloatArray:
    """(limits,) share of all values, unknown ones included, that are at most each limit."""
    known = np.sort(values[np.isfinite(values)])
    return np.searchsorted(known, limits, side="right") / max(1, values.size)


def _within(values: FloatArray, limit: float) -> float:
    return float(_shares_within(values, np.array([limit]))[0])


def _said(standing: Standing, percentiles: Mapping[str, str]) -> str:
    """The table's figures in words, so that a median is one thing everywhere. percentiles: keys by name."""
    known = {name: standing.value(key) for name, key in percentiles.items()}
    words = [f"{name} {duration(value_s)}" for name, value_s in known.items() if np.isfinite(value_s)]
    return f"{standing.policy}: {', '.join(words)}" if words else standing.policy
