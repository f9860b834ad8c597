"""A bar per policy, split into parts: where time goes, which GPUs were used, which deadlines were met."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from stretto.model.arrays import FloatArray
from stretto.report.axes import Axis
from stretto.report.charts.figure import WIDTH, Figure, of_policy, room_for, shortened, svg
from stretto.report.content import ClusterFacts, RunSeries
from stretto.report.standings import Standing, Standings
from stretto.report.statistics import Estimate
from stretto.report.svg import element, joined, line, rect, text
from stretto.report.wording import digits, duration, plural, share, times

FEW = 8  # policies, before bars come closer


@dataclass(frozen=True, slots=True)
class Bar:
    """One policy's bar."""

    standing: Standing
    parts: tuple[tuple[float, str], ...]  # length and class of each
    label: str
    aside: str  # quieter, behind the label
    reading: str
    interval: tuple[float, float] = (np.nan, np.nan)


@dataclass(frozen=True, slots=True)
class Look:
    """Sizes of a chart of bars, in its pixels."""

    width: float = WIDTH
    row: float = 44.0
    reference: float = np.nan  # a length at which a line crosses all rows

    @property
    def bar(self) -> float:
        """Thickness of a bar."""
        return self.row * 0.56


def where_time_goes(standings: Standings) -> Figure | None:
    """Mean JCT of each policy as waiting and running.

    Beside each bar stands its multiple of the best and, as a line, the interval of that multiple. Means of
    whole workloads vary together, so their own intervals would hide what the pairs make certain.
    """
    best = standings.best.value("avg_jct_s")
    if not np.isfinite(best):
        return None
    ratios = {pairing.other.policy: pairing.ratio for pairing in standings.pairings}
    alone = len(standings.ranked) == 1
    bars = [_time_bar(standing, best, ratios.get(standing.policy), alone) for standing in standings.ranked]
    look = Look(width=540, row=32 if len(bars) > FEW else 46, reference=np.nan if alone else best)
    title = "Mean job completion time: waiting and running"
    note = "Pale: waiting without a GPU. Full: holding GPUs."
    if any(np.isfinite(bar.interval).all() for bar in bars):
        note += (
            " Thin line: 95 % interval of the mean."
            if alone
            else (
                " ×: multiple of the best; the thin line is its 95 % interval, from the same jobs or "
                "workloads under both."
            )
        )
    return Figure("where-time-goes", title, "", _rows("where-time-goes", title, bars, look), note=note)


def gpu_hours_by_type(standings: Standings, cluster: ClusterFacts) -> Figure | None:
    """GPU-hours that a job held, by GPU type."""
    bars, totals = [], []
    for standing in standings.ranked:
        hours = np.sum([gpu_hours(run) for run in standing.runs], axis=0)
        per_job = hours / max(1, sum(len(run.jobs) for run in standing.runs))
        total = float(per_job.sum())
        split = "".join(
            f"\n{name} {digits(value)} GPU·h ({share(value / total if total else np.nan)})"
            for name, value in zip(cluster.gpu_types, per_job.tolist(), strict=True)
        )
        parts = tuple((value, f"t{index % 8}") for index, value in enumerate(per_job.tolist()))
        totals.append((total, standing.policy))
        label = f"{digits(total)} GPU·h"
        bars.append(Bar(standing, parts, label, "", f"{standing.policy}\n{label} per job{split}"))
    if not any(part for bar in bars for part, _ in bar.parts):
        return None
    title = "GPU-hours per job, by GPU type"
    note = "All runs. GPUs held, whether or not the job made good use of them. Colours are GPU types."
    (least, frugal), (most, lavish) = min(totals), max(totals)
    lead = f"A job holds {digits(least)} GPU-hours under {frugal}"
    lead += f", {digits(most)} under {lavish}." if len(totals) > 1 else "."
    return Figure("gpu-hours", title, lead, _rows("gpu-hours", title, bars, _look(bars)), note=note)


def deadlines(standings: Standings) -> Figure | None:
    """Deadlines met and missed."""
    bars, missed = [], []
    for standing in standings.ranked:
        late = [run.lateness_s for run in standing.runs if run.lateness_s is not None]
        lateness = np.concatenate(late) if late else np.array([])
        lateness = lateness[~np.isnan(lateness)]
        if lateness.size:
            bars.append(_deadline_bar(standing, lateness))
            missed.append((float((lateness > 0).mean()), standing.policy))
    if not bars:
        return None
    title = "Deadlines met and missed"
    (least, strict), (most, lax) = min(missed), max(missed)
    lead = f"{strict} misses {share(least)} of the deadlines"
    lead += f", {lax} {share(most)}." if len(missed) > 1 else "."
    drawing = _rows("deadlines", title, bars, _look(bars))
    return Figure("deadlines", title, lead, drawing, note="Full: met. Pale: missed.")


def gpu_hours(run: RunSeries) -> FloatArray:
    """(gpu types,) GPUs held, integrated over the run."""
    held = run.busy_gpus[:-1] * np.diff(run.busy_times_s)[:, None]
    return np.asarray(held.sum(axis=0) / 3_600, dtype=np.float64)


def _time_bar(standing: Standing, best: float, ratio: Estimate | None, is_alone: bool) -> Bar:
    mean = standing.estimates["avg_jct_s"]
    if not np.isfinite(mean.value):
        return Bar(standing, (), "no job completed", "", f"{standing.policy}\nno job completed")
    queue, run = standing.mean_queue_s, standing.mean_run_s
    waiting = mean.value * queue / (queue + run) if queue + run > 0 else 0.0
    parts: tuple[tuple[float, str], ...] = ((mean.value, "full"),)
    reading = f"{standing.policy}\nmean JCT {duration(mean.value)}"
    if np.isfinite(waiting):
        parts = ((waiting, "soft"), (mean.value - waiting, "full"))
        reading += f"\nwaiting {duration(waiting)}\nrunning {duration(mean.value - waiting)}"
    if np.isfinite(mean.low):
        reading += f"\n95 % interval of the mean {duration(mean.low)} to {duration(mean.high)}"
    if ratio is None:
        interval = (mean.low, mean.high) if is_alone else (np.nan, np.nan)
        return Bar(standing, parts, duration(mean.value), "", reading, interval)
    aside = times(mean.value / best) if best > 0 else ""
    if np.isfinite(ratio.low):
        reading += f"\n95 % interval of the multiple {times(ratio.low)} to {times(ratio.high)}"
    # The interval of the multiple, laid around the bar's end.
    around = mean.value / ratio.value if ratio.value > 0 else np.nan
    return Bar(
        standing, parts, duration(mean.value), aside, reading, (ratio.low * around, ratio.high * around)
    )


def _deadline_bar(standing: Standing, lateness: FloatArray) -> Bar:
    missed = lateness > 0
    part = float(missed.mean())
    by = duration(float(np.median(lateness[missed]))) if missed.any() else ""
    how = (
        "none late"
        if not by
        else "half of the late ones never finished"
        if by == "∞"
        else f"late by {by} in the median"
    )
    reading = f"{standing.policy}\n{missed.sum()} of {plural(lateness.size, 'deadline')} missed\n{how}"
    return Bar(standing, ((1 - part, "full"), (part, "soft")), f"{share(part)} missed", "", reading)


def _look(bars: Sequence[Bar]) -> Look:
    return Look(row=32.0 if len(bars) > FEW else 44.0)


def _rows(id_: str, title: str, bars: Sequence[Bar], look: Look) -> Markup:
    lengths = [sum(part for part, _ in bar.parts) for bar in bars]
    highest = max([*lengths, *(bar.interval[1] for bar in bars if np.isfinite(bar.interval[1]))])
    room = 14 + 7.6 * max(len(bar.label) + len(bar.aside) + bool(bar.aside) for bar in bars)
    axis = Axis(
        0.0, highest or 1.0, room_for([bar.standing.policy for bar in bars]), look.width - min(room, 200)
    )
    height = look.row * len(bars) + 8
    rows = [
        _row(bar, axis, 4 + look.row * index, look, shown_best=index == 0) for index, bar in enumerate(bars)
    ]
    guide = Markup()
    if np.isfinite(look.reference):
        reference_px = axis.px(look.reference)
        guide = line(reference_px, 2, reference_px, height - 2, "guide", aria_hidden="true")
    description = "; ".join(bar.reading.replace("\n", ", ") for bar in bars)
    return svg(id_, look.width, height, title, description, joined(rows), guide)


def _row(bar: Bar, axis: Axis, top: float, look: Look, shown_best: bool) -> Markup:
    middle = top + look.row / 2
    end = 0.0
    drawn = [text(0, middle + 4.5, shortened(bar.standing.policy), "name strong" if shown_best else "name")]
    for length, class_ in bar.parts:
        start_px, end_px = axis.px(end), axis.px(end + length)
        drawn.append(rect(start_px, middle - look.bar / 2, end_px - start_px, look.bar, class_))
        end += length
    label_px = axis.px(end)
    if np.isfinite(bar.interval).all():
        low, high = (axis.px(max(0.0, edge)) for edge in bar.interval)
        drawn.append(line(low, middle, high, middle, "whisker"))
        drawn.extend(line(edge, middle - 4, edge, middle + 4, "whisker") for edge in (low, high))
        label_px = max(label_px, high)
    aside = element("tspan", f"\u00a0{bar.aside}", class_="aside") if bar.aside else Markup()
    drawn.append(element("text", bar.label, aside, x=label_px + 8, y=middle + 4.5, class_="value"))
    return of_policy(bar.standing.colour, *drawn, data_t=bar.reading)
