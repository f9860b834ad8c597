"""Which jobs would have been better off alone: finish-time fairness of every job, sorted."""

import numpy as np

from stretto.model.arrays import FloatArray
from stretto.report.axes import Axis, Frame, draw_axes, even_ticks, labelled
from stretto.report.charts.figure import WIDTH, Figure, curve, readings, svg
from stretto.report.standings import Standing, Standings
from stretto.report.svg import line, polyline, rect, text
from stretto.report.wording import digits, plain, share

HEIGHT = 330.0
POINTS = 300


def sorted_fairness(standings: Standings) -> Figure | None:
    """Finish-time fairness ρ of all jobs from best to worst treated, with the line at 1."""
    curves = [(standing, _known(standing)) for standing in standings.by_colour]
    curves = [(standing, rho) for standing, rho in curves if rho.size]
    if not curves:
        return None
    everything = np.concatenate([rho for _, rho in curves])
    low, high = min(0.5, float(everything.min())), max(2.0, float(everything.max()))
    frame = Frame(Axis(0.0, 1.0, 46, WIDTH - 12), Axis(low / 1.1, high * 1.15, HEIGHT - 44, 30, is_log=True))
    ticks = [
        v
        for v in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
        if frame.y.low <= v <= frame.y.high
    ]
    axes = draw_axes(
        frame,
        labelled(even_ticks(0, 1), share),
        labelled(ticks, plain),
        "share of jobs, best treated first",
        "finish-time fairness ρ, log scale",
    )
    bound_px = frame.y.px(1.0)
    worse = rect(frame.left, frame.top, frame.right - frame.left, bound_px - frame.top, "worse")
    bound = line(frame.left, bound_px, frame.right, bound_px, "bound")
    words = text(frame.left + 6, frame.top + 15, "better off alone", "hint")
    quantiles = np.linspace(0, 1, POINTS)
    sampled = [(standing, np.quantile(rho, quantiles)) for standing, rho in curves]
    lines = [
        curve(s.colour, polyline(frame.x.at(quantiles), frame.y.at(values)), is_best=s is standings.best)
        for s, values in sorted(sampled, key=lambda pair: pair[0] is standings.best)
    ]
    unfair = sorted((float((rho > 1).mean()), standing.policy) for standing, rho in curves)
    lead = f"{share(unfair[0][0])} of jobs would have been better off alone under {unfair[0][1]}"
    lead += f", {share(unfair[-1][0])} under {unfair[-1][1]}." if len(unfair) > 1 else "."
    description = "; ".join(
        f"{s.policy}: {share(float((rho > 1).mean()))} above 1, worst {digits(float(rho.max()))}"
        for s, rho in curves
    )
    title = "Finish-time fairness, job by job"
    drawing = svg("fairness", WIDTH, HEIGHT, title, description, worse, axes, bound, words, *lines)
    hover = readings(frame, [("p", s.colour, values) for s, values in sampled], "share", "ratio")
    return Figure(
        "fairness",
        title,
        lead,
        drawing,
        hover,
        "ρ is the completion time in the shared cluster over that alone on an equal share of it.",
    )


def _known(standing: Standing) -> FloatArray:
    columns = [run.fairness for run in standing.runs if run.fairness is not None]
    rho = np.concatenate(columns) if columns else np.array([])
    return np.asarray(rho[np.isfinite(rho) & (rho > 0)], dtype=np.float64)
