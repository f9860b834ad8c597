"""Mean JCT of every policy row by row: one row for each workload, or for each class of jobs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from stretto.model.arrays import floats
from stretto.report.axes import Axis, Frame, draw_axes, log_axis, time_ticks
from stretto.report.charts.figure import WIDTH, Figure, of_policy, room_for, shortened, svg
from stretto.report.content import Comparison, RunSeries
from stretto.report.standings import Standing, Standings
from stretto.report.svg import element, joined, line, text
from stretto.report.wording import duration, plural, share, times

ROW = 26.0
MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its name, a word on it, and the mean of each policy by colour."""

    name: str
    aside: str
    means_s: Mapping[int, float]


def by_workload(comparison: Comparison, standings: Standings) -> Figure | None:
    """Mean JCT trace by trace (seeds averaged), or seed by seed where there is one trace."""
    if len(comparison.workloads) < 2:
        return None
    of_trace = standings.basis == "traces"
    key: Callable[[RunSeries], str] = (
        (lambda run: run.trace) if of_trace else (lambda run: f"seed {run.seed}")
    )
    names = list(dict.fromkeys(key(run) for run in comparison.runs))
    rows = [
        Row(
            name,
            "",
            {
                s.colour: _mean([r.metric("avg_jct_s") for r in s.runs if key(r) == name])
                for s in standings.ranked
            },
        )
        for name in names
    ]
    best = standings.best
    contested = [row for row in rows if np.isfinite(list(row.means_s.values())).sum() > 1]
    won = sum(row.means_s[best.colour] <= np.nanmin(list(row.means_s.values())) for row in contested)
    what = "traces" if of_trace else "seeds"
    lead = f"{best.policy} has the lowest mean on {won} of {len(contested)} {what}." if contested else ""
    drawn = rows[: MOST_ROWS * 2]
    note = (
        f"The first {len(drawn)} of {len(rows)} {what}; all are in the table of every run."
        if drawn != rows
        else ""
    )
    title = "Mean JCT, trace by trace" if of_trace else "Mean JCT, seed by seed"
    return _figure("by-workload", title, lead, drawn, standings.ranked, note)


def by_label(standings: Standings) -> Figure | None:
    """Mean JCT of each label (model or size class), the most frequent ones, all runs pooled."""
    labelled = [run for standing in standings.ranked for run in standing.runs if run.labels is not None]
    if not labelled:
        return None
    counts = Counter(label for run in standings.best.runs for label in run.labels or ())
    total = sum(counts.values())
    common = [label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_ROWS]]
    rows = [
        Row(
            label,
            share(counts[label] / total),
            {s.colour: _mean_of_label(s, label) for s in standings.ranked},
        )
        for label in common
    ]
    rows.sort(key=lambda row: float(np.nan_to_num(np.nanmax([0.0, *row.means_s.values()]))))
    note = "Beside each name: its share of the jobs."
    if len(counts) > len(common):
        note += f" The {len(common)} most frequent of {plural(len(counts), 'class', 'classes')}."
    return _figure(
        "by-label", "Mean JCT, class by class", _largest_gain(rows, standings), rows, standings.ranked, note
    )


def _largest_gain(rows: Sequence[Row], standings: Standings) -> str:
    if len(standings.ranked) < 2:
        return ""
    ours, other = standings.ranked[:2]
    gains = [
        (row.means_s[other.colour] / row.means_s[ours.colour], row.name)
        for row in rows
        if row.means_s[ours.colour] > 0
    ]
    gains = sorted((gain, name) for gain, name in gains if np.isfinite(gain))
    if len(gains) < 2:
        return ""
    (least, worst), (most, best) = gains[0], gains[-1]
    against = f"Against {other.policy}, {ours.policy} does best on {best} ({times(most)})"
    return f"{against} and least well on {worst} ({times(least)})."


def _figure(
    id_: str, title: str, lead: str, rows: Sequence[Row], standings: Sequence[Standing], note: str
) -> Figure | None:
    values = floats([mean for row in rows for mean in row.means_s.values()])
    if not np.isfinite(values).any():
        return None
    asides = 40 if any(row.aside for row in rows) else 0
    x = log_axis(values, room_for([row.name for row in rows]) + asides, WIDTH - 16, floor_at=1e-3)
    height = 26 + ROW * len(rows) + 42
    frame = Frame(x, Axis(0.0, 1.0, height - 42, 18))
    drawn = [_row(row, 18 + ROW * (index + 0.5), x, standings) for index, row in enumerate(rows)]
    axes = draw_axes(frame, time_ticks(x), [], "mean job completion time, log scale")
    description = "; ".join(f"{row.name}: " + ", ".join(_said(row, s) for s in standings) for row in rows)
    return Figure(
        id_, title, lead, svg(id_, WIDTH, height, title, description, axes, joined(drawn)), note=note
    )


def _row(row: Row, y: float, x: Axis, standings: Sequence[Standing]) -> Markup:
    means = [mean for mean in row.means_s.values() if np.isfinite(mean)]
    drawn = [text(0, y + 4, shortened(row.name), "name")]
    if row.aside:
        drawn.append(text(x.start_px - 12, y + 4, row.aside, "tick end"))
    if means:
        drawn.append(line(x.px(min(means)), y, x.px(max(means)), y, "range"))
    for standing in reversed(standings):
        mean = row.means_s[standing.colour]
        if np.isfinite(mean):
            dot = element("circle", cx=x.px(mean), cy=y, r=5, class_="dot")
            reading = f"{standing.policy}\n{row.name}: {duration(mean)}"
            drawn.append(of_policy(standing.colour, dot, data_t=reading))
    return joined(drawn)


def _said(row: Row, standing: Standing) -> str:
    return f"{standing.policy} {duration(row.means_s[standing.colour])}"


def _mean_of_label(standing: Standing, label: str) -> float:
    return _mean(
        np.concatenate(
            [run.jct_s[np.array(run.labels) == label] for run in standing.runs if run.labels] or [floats([])]
        )
    )


def _mean(values: object) -> float:
    known = floats(values)
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else float("nan")
