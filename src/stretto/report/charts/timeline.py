"""Which job held what when: a row per job, coloured by GPU type, stronger with more GPUs."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from stretto.model.arrays import FloatArray, IntArray, ints
from stretto.report.axes import Axis, Frame, clock_ticks, draw_axes
from stretto.report.charts.figure import Panel, Panels, svg
from stretto.report.charts.over_time import PANEL_WIDTH, last_moment_s
from stretto.report.content import ClusterFacts, Intervals, RunSeries
from stretto.report.svg import element, group, joined, numbers
from stretto.report.wording import duration, plural

MOST_ROWS = 160
FINEST = 120  # entries of one row before changes within a pixel are drawn as one
STRENGTHS = 5  # steps of opacity from one GPU to the most that any job holds


def timelines(prefix: str, runs: Sequence[tuple[int, RunSeries]], cluster: ClusterFacts) -> Panels | None:
    """Allocations of the same jobs under each policy, one panel per policy over one time axis."""
    drawn = [(colour, run) for colour, run in runs if run.intervals.job.size]
    if not drawn:
        return None
    end_s = last_moment_s([run for _, run in runs])
    most = max(int(run.intervals.gpus.max()) for _, run in drawn)
    jobs = max(len(run.jobs) for _, run in drawn)
    panels = [_panel(f"{prefix}-jobs-{colour}", colour, run, end_s, most) for colour, run in drawn]
    rows = f"A row is a job, the earliest submitted on top; all {jobs} are shown."
    if jobs > MOST_ROWS:
        rows = (
            f"A row is a job, the earliest submitted on top. Of {plural(jobs, 'job')} every panel shows the "
            f"same {MOST_ROWS}, evenly spaced by submission."
        )
    key = (
        rows,
        "The thin grey line runs from submission to completion; where it is bare, the job waits.",
        f"Colour is the GPU type; the stronger, the more GPUs, from 1 to {most}.",
    )
    pointing = "Point at a job to see it under every policy."
    return Panels(
        f"{prefix}-timelines",
        "Who held what, when",
        "",
        tuple(panels),
        key,
        counts_have_opacity=True,
        pointing=pointing,
    )


def _panel(id_: str, colour: int, run: RunSeries, end_s: float, most: int) -> Panel:
    chosen = evenly_chosen(len(run.jobs), MOST_ROWS)
    row_px = float(np.clip(352 / max(1, chosen.size), 2.2, 16))
    top, height = 6.0, 6 + row_px * chosen.size + 24
    frame = Frame(Axis(0, end_s, 4, PANEL_WIDTH - 8), Axis(0, 1, top + row_px * chosen.size, top))
    order = np.argsort(run.intervals.job, kind="stable")
    bounds = np.searchsorted(run.intervals.job[order], np.arange(len(run.jobs) + 1))
    rows = [
        _row(run, job, order[bounds[job] : bounds[job + 1]], frame.x, top + row_px * place, row_px, most)
        for place, job in enumerate(chosen.tolist())
    ]
    hover = {
        "box": [frame.left, frame.right, frame.top, round(frame.bottom, 1)],
        "domain": [0, end_s],
        "log": False,
        "x": "clock",
        "rows": [top, row_px],
        "sync": f"{id_.rsplit('-', 2)[0]}-time",
    }
    axes = draw_axes(frame, clock_ticks(frame.x, 5), [])
    description = f"{plural(chosen.size, 'job')} from submission to completion, over {duration(end_s)}."
    title = f"Allocations over time under {run.policy}"
    drawing = svg(id_, PANEL_WIDTH, height, title, description, axes, group(*rows, class_="rows"))
    done = int(np.isfinite(run.jct_s).sum())
    says = "" if done == len(run.jobs) else f"{done} of {len(run.jobs)} jobs completed"
    return Panel(run.policy, colour, says, drawing, hover)


def evenly_chosen(count: int, most: int) -> IntArray:
    """At most `most` of `count` positions, evenly spaced, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _row(
    run: RunSeries, job: int, stretches: IntArray, x: Axis, top: float, row_px: float, most: int
) -> Markup:
    """One job: a thin line for its life, and a bar for each stretch of an allocation."""
    begin_s = float(run.submitted_s[job])
    jct_s = float(run.jct_s[job])
    end_px = x.px(begin_s + jct_s) if np.isfinite(jct_s) else x.end_px
    life = element("path", d=f"M{x.px(begin_s):.1f} {top + row_px / 2:.1f}H{end_px:.1f}", class_="life")
    done = f"done after {duration(jct_s)}" if np.isfinite(jct_s) else "never done"
    waited = f", waited {duration(float(run.queue_s[job]))}" if np.isfinite(run.queue_s[job]) else ""
    reading = f"{run.jobs[job]}\nsubmitted at {duration(begin_s)}\n{done}{waited}"
    return group(life, _bars(run.intervals, stretches, x, top, row_px, most), data_t=reading)


def _bars(intervals: Intervals, stretches: IntArray, x: Axis, top: float, row_px: float, most: int) -> Markup:
    paths = []
    thick = max(1.4, row_px * 0.82)
    for gpu_type in np.unique(intervals.gpu_type[stretches]).tolist():
        of_type = stretches[intervals.gpu_type[stretches] == gpu_type]
        start, end, gpus = merged(
            x.at(intervals.start_s[of_type]), x.at(intervals.end_s[of_type]), intervals.gpus[of_type]
        )
        strength = _strength(gpus, most)
        for level in np.unique(strength).tolist():
            of_level = strength == level
            left, width = numbers(start[of_level]), numbers(np.maximum(0.4, end[of_level] - start[of_level]))
            y = f"{top + (row_px - thick) / 2:.1f}"
            data = "".join(f"M{a} {y}h{w}v{thick:.1f}h-{w}z" for a, w in zip(left, width, strict=True))
            counts = " ".join(str(count) for count in gpus[of_level].tolist())
            paths.append(element("path", d=data, class_=f"t{gpu_type % 8} o{level}", data_g=counts))
    return joined(paths)


def merged(
    start_px: FloatArray, end_px: FloatArray, gpus: IntArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Stretches with like neighbours joined; in a crowded row only the longest of each pixel is kept."""
    order = np.argsort(start_px, kind="stable")
    start, end, gpus = start_px[order], end_px[order], gpus[order]
    begins = np.ones(start.size, dtype=np.bool_)
    begins[1:] = (gpus[1:] != gpus[:-1]) | (start[1:] - end[:-1] > 0.5)
    first = np.flatnonzero(begins)
    start, end, gpus = start[first], np.maximum.reduceat(end, first), gpus[first]
    if start.size <= FINEST:
        return start, end, gpus
    pixel = np.floor(start).astype(np.int64)
    longest = np.lexsort((-(end - start), pixel))
    longest_of_pixel = np.sort(longest[np.unique(pixel[longest], return_index=True)[1]])
    return (
        start[longest_of_pixel],
        np.maximum(
            end[longest_of_pixel],
            np.minimum(start[longest_of_pixel] + 1, np.append(start[longest_of_pixel][1:], np.inf)),
        ),
        gpus[longest_of_pixel],
    )


def _strength(gpus: IntArray, most: int) -> IntArray:
    """0 for one GPU to `STRENGTHS` - 1 for `most`, by doublings."""
    if most <= 1:
        return np.full(gpus.size, STRENGTHS - 1, dtype=np.int64)
    return ints(np.round(np.log2(gpus) / np.log2(most) * (STRENGTHS - 1)))
