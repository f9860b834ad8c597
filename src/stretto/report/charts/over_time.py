"""The cluster over time: GPUs held by type, policy by policy, and the jobs in the system."""

from collections.abc import Sequence

import numpy as np

from stretto.model.arrays import FloatArray
from stretto.report.axes import Axis, Frame, clock_ticks, draw_axes, even_ticks, labelled
from stretto.report.charts.figure import WIDTH, Figure, Panel, Panels, curve, readings, svg
from stretto.report.content import ClusterFacts, RunSeries
from stretto.report.statistics import binned_mean
from stretto.report.svg import element, line, polyline, staircase
from stretto.report.wording import duration, plain, share

PANEL_WIDTH, PANEL_HEIGHT = 400.0, 190.0
HEIGHT = 300.0
BINS = 240


def last_moment_s(runs: Sequence[RunSeries]) -> float:
    """When the last of the runs ends: the end of every time axis."""
    ends = [series[-1] for run in runs for series in (run.busy_times_s, run.active_times_s) if series.size]
    ends.extend(run.intervals.end_s.max() for run in runs if run.intervals.end_s.size)
    return float(max(ends, default=0.0)) or 1.0


def utilisation(prefix: str, runs: Sequence[tuple[int, RunSeries]], cluster: ClusterFacts) -> Panels | None:
    """GPUs held by jobs, stacked by type, one panel per policy over one time axis."""
    drawn = [(colour, run) for colour, run in runs if run.busy_times_s.size > 1]
    if not drawn or not cluster.total_gpus:
        return None
    end_s = last_moment_s([run for _, run in runs])
    panels = [
        _utilisation_panel(f"{prefix}-use-{colour}", colour, run, cluster, end_s) for colour, run in drawn
    ]
    means = sorted(((_mean_use(run, cluster), run.policy) for _, run in drawn), reverse=True)
    lead = f"Until its last job is done, {means[0][1]} keeps {share(means[0][0])} of the GPUs in use"
    lead += f", {means[-1][1]} {share(means[-1][0])}." if len(means) > 1 else "."
    return Panels(
        f"{prefix}-utilisation",
        "GPUs in use over time",
        lead,
        tuple(panels),
        (
            f"Each point is the mean over {duration(end_s / BINS)}; the dashed line is all "
            f"{cluster.total_gpus} GPUs.",
            "The small mark on the time axis is where the run's last job ends.",
        ),
    )


def contention(prefix: str, runs: Sequence[tuple[int, RunSeries]], best: int) -> Figure | None:
    """Jobs waiting or running over time, all policies in one chart."""
    drawn = [(colour, run) for colour, run in runs if run.active_times_s.size > 1]
    if not drawn:
        return None
    end_s = last_moment_s([run for _, run in runs])
    edges = np.linspace(0, end_s, BINS + 1)
    lines = [
        (c, run, binned_mean(run.active_times_s, run.active_jobs[:, None], edges)[:, 0]) for c, run in drawn
    ]
    highest = max(float(values.max()) for _, _, values in lines) or 1.0
    frame = Frame(Axis(0, end_s, 46, WIDTH - 12), Axis(0, highest * 1.05, HEIGHT - 44, 30))
    axes = draw_axes(
        frame,
        clock_ticks(frame.x),
        labelled(even_ticks(0, highest * 1.05), plain),
        "time since the run began",
        "jobs waiting or running",
    )
    curves = [
        curve(c, staircase(frame.x.at(edges), frame.y.at(np.append(v, v[-1]))), is_best=c == best)
        for c, _, v in sorted(lines, key=lambda entry: entry[0] == best)
    ]
    peaks = sorted((float(run.active_jobs.max()), run.policy) for _, run, _ in lines)
    lead = f"At its fullest the system holds {plain(peaks[0][0])} jobs under {peaks[0][1]}"
    lead += f" and {plain(peaks[-1][0])} under {peaks[-1][1]}." if len(peaks) > 1 else "."
    id_, title = f"{prefix}-contention", "Jobs in the system over time"
    description = "; ".join(
        f"{run.policy}: at most {plain(float(run.active_jobs.max()))}" for _, run, _ in lines
    )
    hover = readings(
        frame, [("p", c, values) for c, _, values in lines], "clock", "count", sync=f"{prefix}-time"
    )
    return Figure(id_, title, lead, svg(id_, WIDTH, HEIGHT, title, description, axes, *curves), hover)


def _utilisation_panel(id_: str, colour: int, run: RunSeries, cluster: ClusterFacts, end_s: float) -> Panel:
    edges = np.linspace(0, end_s, BINS + 1)
    busy = binned_mean(run.busy_times_s, run.busy_gpus, edges)
    total = cluster.total_gpus
    frame = Frame(Axis(0, end_s, 34, PANEL_WIDTH - 8), Axis(0, total * 1.06, PANEL_HEIGHT - 26, 12))
    axes = draw_axes(
        frame, clock_ticks(frame.x, 5), [(0, "0"), (total / 2, plain(total / 2)), (total, str(total))]
    )
    stacked = np.column_stack([np.zeros(BINS), np.cumsum(busy, axis=1)])
    areas = [
        element(
            "path",
            d=_band(edges, stacked[:, index], stacked[:, index + 1], frame),
            class_=f"area t{index % 8}",
        )
        for index in range(len(cluster.gpu_types))
    ]
    done_s = float(run.busy_times_s[-1])
    marks = [
        line(frame.left, frame.y.px(total), frame.right, frame.y.px(total), "capacity"),
        element("path", d=f"M{frame.x.px(done_s):.1f} {frame.bottom - 4:.1f}v8", class_="done"),
    ]
    mean = _mean_use(run, cluster)
    says = f"{share(mean)} in use, {duration(done_s)}"
    hover = readings(
        frame,
        [("t", index, column) for index, column in enumerate(busy.T)],
        "clock",
        "count",
        sync=f"{id_.rsplit('-', 2)[0]}-time",
        of=total,
    )
    drawing = svg(
        id_,
        PANEL_WIDTH,
        PANEL_HEIGHT,
        f"GPUs in use under {run.policy}",
        f"On average {share(mean)} of {total} GPUs.",
        axes,
        *areas,
        *marks,
    )
    return Panel(run.policy, colour, says, drawing, hover)


def _mean_use(run: RunSeries, cluster: ClusterFacts) -> float:
    whole = np.array([run.busy_times_s[0], run.busy_times_s[-1]], dtype=np.float64)
    return float(binned_mean(run.busy_times_s, run.busy_gpus, whole).sum() / cluster.total_gpus)


def _band(edges: FloatArray, low: FloatArray, high: FloatArray, frame: Frame) -> str:
    """Path data of the area between two staircases over the bins."""
    if not (high > low).any():
        return ""
    middles = (edges[:-1] + edges[1:]) / 2
    there = polyline(frame.x.at(middles), frame.y.at(high))
    back = polyline(frame.x.at(middles[::-1]), frame.y.at(low[::-1]))
    return f"{there}L{back[1:]}Z"
