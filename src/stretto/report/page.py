"""The one self-contained page: everything inline, nothing fetched, the same bytes for the same runs."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from markupsafe import Markup

from stretto.errors import InputError
from stretto.report.charts.cdf import jct_cdf, queue_cdf
from stretto.report.charts.decisions import decision_times
from stretto.report.charts.dots import by_label, by_workload
from stretto.report.charts.fairness import sorted_fairness
from stretto.report.charts.figure import Figure, Panels
from stretto.report.charts.over_time import contention, utilisation
from stretto.report.charts.rows import deadlines, gpu_hours_by_type, where_time_goes
from stretto.report.charts.timeline import timelines
from stretto.report.content import ClusterFacts, Comparison, Note, RunSeries
from stretto.report.findings import caution, verdict
from stretto.report.html import asset, environment, style_of
from stretto.report.standings import Standings, standings_of
from stretto.report.tables import columns_of, faster_words, main_lines, pair_lines, run_lines, settings_of
from stretto.report.wording import plain, plural
from stretto.whole_files import write_whole

INTERVALS = {
    "traces": "A mean is over runs. Its ± is Student's 95 % interval over traces; seeds of one trace are "
    "averaged first, because they share its jobs.",
    "seeds": "A mean is over runs. Its ± is Student's 95 % interval over seeds of the one trace: it says how "
    "much chance within this trace matters, nothing about other traces.",
    "jobs": "There is one run per policy. The ranges under mean JCT and mean queuing are 95 % bootstrap "
    "intervals: the run's jobs are drawn again with replacement. Jobs of one run influence one another, so "
    "the true uncertainty is larger, and nothing is said about other traces or seeds.",
    "none": "",
}
RATIOS = {
    "jobs": "The ratio is that of the mean JCTs of the jobs that completed under both; its interval is a "
    "bootstrap over these jobs, kept in pairs.",
    "runs": "The ratio is that of the two mean JCTs over these workloads; its interval is Student's for a "
    "ratio of two means, so that what makes a workload hard for both does not blur it.",
}


def notes_on_method(comparison: Comparison, standings: Standings) -> tuple[Note, ...]:
    """The report's own method first, then what the caller adds."""
    own = (
        Note(
            "Ranking",
            "By mean job completion time over all runs. Colours follow the order in which policies were "
            "given.",
        ),
        Note("Intervals", INTERVALS[standings.basis]),
        Note(
            "Pairs",
            "The policy with the lowest mean JCT is compared with each other one on the workloads that both "
            f"ran. {RATIOS['jobs' if standings.basis == 'jobs' else 'runs']}",
        ),
        Note(
            "Jobs sooner or later",
            "A job is sooner when its completion time is smaller under the best policy; within a millionth "
            "it counts as alike. p is the one-sided Wilcoxon signed-rank test that the best policy's times "
            "are smaller; it takes jobs as independent, which they are not quite.",
        ),
        Note(
            "Distributions",
            "Over all submitted jobs, all runs pooled; a job that never completed keeps its curve below "
            "100 %.",
        ),
        Note(
            "Over time",
            "Means over equal stretches of the time axis, weighted by time. The workload shown first is the "
            "one on which the best policy's mean JCT is nearest to its median over workloads.",
        ),
        Note(
            "Waiting and running",
            "Waiting is time without any GPU, running is the rest of the completion time, restarts included; "
            "jobs that completed, all runs pooled.",
        ),
    )
    return (*own, *comparison.notes)


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


MOST_RUNS = 300  # lines in the table of every run
MOST_SCENES = 12  # workloads whose timelines can be chosen from
SCENES_BYTES = 900_000  # the first workload is always there; others while they fit into this


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One workload over time, under every policy that ran it."""

    id: str
    name: str
    use: Panels | None
    jobs: Figure | None
    timelines: Panels | None

    @property
    def is_empty(self) -> bool:
        """No series to draw."""
        return self.use is None and self.jobs is None and self.timelines is None

    @property
    def size(self) -> int:
        """Characters that its drawings take."""
        panels = [panel.drawing for part in (self.use, self.timelines) if part for panel in part.panels]
        return sum(map(len, panels)) + (len(self.jobs.drawing) if self.jobs else 0)


def write_report(comparison: Comparison, path: Path) -> None:
    """Write the page as UTF-8."""
    write_whole(path, render(comparison))


def render(comparison: Comparison) -> str:
    """The page as one HTML document."""
    if not comparison.runs:
        raise InputError("a report needs at least one run, got none")
    standings = standings_of(comparison)
    columns = columns_of(standings)
    every_column = columns_of(standings, main_only=False)
    script = asset("report.js")
    scenes = scenes_of(comparison, standings)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            comparison=comparison,
            cluster=comparison.cluster,
            standings=standings,
            facts=facts_of(comparison),
            verdict=verdict(standings),
            cautions=caution(comparison, standings),
            hero=where_time_goes(standings),
            columns=columns,
            lines=main_lines(standings, columns),
            pairs=[(line, faster_words(line)) for line in pair_lines(standings)],
            durations=_present(
                jct_cdf(standings),
                queue_cdf(standings),
                by_workload(comparison, standings),
                by_label(standings),
            ),
            scenes=scenes,
            left_out=len(comparison.workloads) - len(scenes),
            hours=gpu_hours_by_type(standings, comparison.cluster),
            fairness=_present(sorted_fairness(standings), deadlines(standings)),
            deciding=decision_times(standings),
            every_column=every_column,
            runs=run_lines(comparison, every_column, MOST_RUNS),
            runs_left_out=max(0, len(comparison.runs) - MOST_RUNS),
            definitions=standings.present(),
            method=notes_on_method(comparison, standings),
            settings=settings_of(standings),
            style=style_of("report.css"),
            script=Markup(script),
            script_hash=b64encode(sha256(script.encode()).digest()).decode(),
            names={"policies": comparison.policies, "types": comparison.cluster.gpu_types},
        )
    )


def scenes_of(comparison: Comparison, standings: Standings, most: int = MOST_SCENES) -> tuple[Scene, ...]:
    """Workloads to show over time: the most typical first, then the others in order while they fit."""
    scenes: list[Scene] = []
    used = 0
    for workload in _typical_first(comparison, standings)[:most]:
        scene = _scene(f"s{len(scenes)}", workload, comparison, standings)
        if scene.is_empty:
            continue
        used += scene.size
        if scenes and used > SCENES_BYTES:
            break
        scenes.append(scene)
    return tuple(scenes)


def _typical_first(comparison: Comparison, standings: Standings) -> list[tuple[str, int]]:
    """Workloads, first the one on which the best policy's mean JCT is nearest to its median over them."""
    means = {run.workload: run.metric("avg_jct_s") for run in standings.best.runs}
    finite = [mean for mean in means.values() if np.isfinite(mean)]
    if not finite:
        return list(comparison.workloads)
    middle = float(np.median(finite))
    distance = {workload: abs(means.get(workload, np.inf) - middle) for workload in comparison.workloads}
    typical = min(comparison.workloads, key=lambda w: float(np.nan_to_num(distance[w], nan=np.inf)))
    return [typical, *(workload for workload in comparison.workloads if workload != typical)]


def _scene(id_: str, workload: tuple[str, int], comparison: Comparison, standings: Standings) -> Scene:
    runs: list[tuple[int, RunSeries]] = [
        (standing.colour, run)
        for standing in standings.ranked
        for run in standing.runs
        if run.workload == workload
    ]
    trace, seed = workload
    return Scene(
        id_,
        f"{trace}, seed {seed}",
        utilisation(id_, runs, comparison.cluster),
        contention(id_, runs, standings.best.colour),
        timelines(id_, runs, comparison.cluster),
    )


def facts_of(comparison: Comparison) -> list[str]:
    """The line under the title: what was compared on what."""
    cluster = comparison.cluster
    jobs = sorted({len(run.jobs) for run in comparison.runs})
    many = plural(jobs[0], "job") if len(jobs) == 1 else f"{plain(jobs[0])} to {plural(jobs[-1], 'job')}"
    if len(comparison.runs) == 1:
        return [_machines(cluster), many, f"seed {comparison.runs[0].seed}"]
    traces = plural(len({run.trace for run in comparison.runs}), "trace")
    seeds = plural(len({run.seed for run in comparison.runs}), "seed")
    return [
        _machines(cluster),
        f"{traces}, {seeds}, {many} each",
        plural(len(comparison.policies), "policy", "policies"),
    ]


def _machines(cluster: ClusterFacts) -> str:
    gpus = ", ".join(f"{count} {name}" for name, count in zip(cluster.gpu_types, cluster.gpus, strict=True))
    return f"{cluster.name}: {plural(cluster.total_gpus, 'GPU')} ({gpus}) on {plural(cluster.nodes, 'node')}"


def _present(*figures: Figure | None) -> Sequence[Figure]:
    return [figure for figure in figures if figure is not None]
