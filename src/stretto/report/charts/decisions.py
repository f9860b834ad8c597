"""How long decisions take: the distribution for each policy on a log axis."""

import numpy as np
from markupsafe import Markup

from stretto.model.arrays import FloatArray
from stretto.report.axes import Axis, Frame, draw_axes, log_axis, time_ticks
from stretto.report.charts.figure import WIDTH, Figure, of_policy, room_for, shortened, svg
from stretto.report.standings import Standing, Standings
from stretto.report.svg import element, joined, line, polyline, text
from stretto.report.wording import milliseconds, plural

ROW = 46.0
BINS = 72
FASTEST_S = 1e-5  # a timer's resolution: what is quicker is drawn here


def decision_times(standings: Standings) -> Figure | None:
    """A ridge per policy: height is the share of decisions that took about so long."""
    measured = [(standing, _times_s(standing)) for standing in standings.ranked]
    measured = [(standing, times_s) for standing, times_s in measured if times_s.size]
    if not measured:
        return None
    names = room_for([standing.policy for standing, _ in measured])
    x = log_axis(np.concatenate([times_s for _, times_s in measured]), names, WIDTH - 12, floor_at=FASTEST_S)
    height = 14 + ROW * len(measured) + 44
    frame = Frame(x, Axis(0.0, 1.0, height - 44, 6))
    axes = draw_axes(frame, time_ticks(x), [], "wall time of one decision, log scale")
    rows = [
        _ridge(standing, times_s, x, 14 + ROW * (index + 1))
        for index, (standing, times_s) in enumerate(measured)
    ]
    medians = sorted((float(np.median(times_s)), standing.policy) for standing, times_s in measured)
    lead = f"The median decision takes {milliseconds(medians[0][0] * 1e3)} under {medians[0][1]}"
    lead += f" and {milliseconds(medians[-1][0] * 1e3)} under {medians[-1][1]}." if len(medians) > 1 else "."
    description = "; ".join(_said(standing, times_s) for standing, times_s in measured)
    title = "How long decisions take"
    return Figure(
        "decision-times",
        title,
        lead,
        svg("decision-times", WIDTH, height, title, description, axes, joined(rows)),
        note="The long tick is the median, the short one the 95th percentile. Measured on the machine that "
        "ran the simulation; other work on it shows.",
    )


def _ridge(standing: Standing, times_s: FloatArray, x: Axis, base: float) -> Markup:
    edges = x.grid(BINS + 1)
    counts, _ = np.histogram(np.clip(times_s, edges[0], edges[-1]), edges)
    smooth = np.convolve(counts, [0.25, 0.5, 0.25], mode="same")
    heights = smooth / smooth.max() * (ROW - 12)
    middles = np.sqrt(edges[:-1] * edges[1:])
    outline = polyline(x.at(middles), base - heights)
    area = f"{outline}L{x.end_px:.1f} {base:.1f}L{x.start_px:.1f} {base:.1f}Z"
    median, late = (x.px(float(edge)) for edge in np.quantile(times_s, [0.5, 0.95]))
    return of_policy(
        standing.colour,
        text(0, base - 5, shortened(standing.policy), "name"),
        element("path", d=area, class_="ridge"),
        element("path", d=outline, class_="ridge-line"),
        line(median, base, median, base - ROW + 12, "median"),
        line(late, base, late, base - 12, "median"),
        data_t=_said(standing, times_s).replace(": ", "\n", 1).replace(", ", "\n"),
    )


def _said(standing: Standing, times_s: FloatArray) -> str:
    p50, p95 = (milliseconds(float(edge) * 1e3) for edge in np.quantile(times_s, [0.5, 0.95]))
    worst = milliseconds(float(times_s.max()) * 1e3)
    return f"{standing.policy}: {plural(times_s.size, 'decision')}, median {p50}, p95 {p95}, longest {worst}"


def _times_s(standing: Standing) -> FloatArray:
    times_s = standing.pooled(lambda run: run.decisions_ms) / 1e3
    return np.maximum(times_s[np.isfinite(times_s)], FASTEST_S)
