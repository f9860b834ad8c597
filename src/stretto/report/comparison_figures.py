"""Every figure of a comparison with the sheet that it is drawn from, and the sheets of its standings."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from stretto.report.charts.cdf import jct_cdf, queue_cdf
from stretto.report.charts.decisions import decision_times
from stretto.report.charts.dots import by_label, by_workload
from stretto.report.charts.fairness import sorted_fairness
from stretto.report.charts.figure import Figure, Panels
from stretto.report.charts.rows import deadlines, gpu_hours_by_type, where_time_goes
from stretto.report.content import Comparison
from stretto.report.export import Drawn
from stretto.report.figure_file import Names
from stretto.report.page import scenes_of
from stretto.report.sheet import Sheet, sheet_of
from stretto.report.standings import Standings
from stretto.sim.summary import METRICS

JOBS, ROUNDS, ALLOCATIONS, POLICIES, PAIRS = "jobs", "rounds", "allocations", "policies", "pairs"
OF_SCENE = re.compile(r"^s\d+-")


def drawn_of(comparison: Comparison, standings: Standings) -> list[Drawn]:
    """What the page shows, in its order."""
    figures: list[tuple[Figure | Panels | None, str, str, str]] = [
        (where_time_goes(standings), JOBS, "", ""),
        (jct_cdf(standings), JOBS, "", ""),
        (queue_cdf(standings), JOBS, "", ""),
        (by_workload(comparison, standings), JOBS, "", ""),
        (by_label(standings), JOBS, "", ""),
        *_over_time(comparison, standings),
        (gpu_hours_by_type(standings, comparison.cluster), ROUNDS, "", ""),
        (sorted_fairness(standings), JOBS, "", ""),
        (deadlines(standings), JOBS, "", ""),
        (decision_times(standings), ROUNDS, "", ""),
    ]
    return [
        Drawn(f"{OF_SCENE.sub('', figure.id)}{number}", figure, data, about)
        for figure, data, about, number in figures
        if figure is not None
    ]


def names_of(comparison: Comparison) -> Names:
    """What the colours stand for."""
    parts = [*(f"{name} {version}" for name, version in comparison.versions.items()), comparison.made]
    return Names(
        comparison.policies,
        comparison.cluster.gpu_types,
        " · ".join([comparison.title, *(part for part in parts if part)]),
    )


def standings_sheets(standings: Standings) -> list[Sheet]:
    """The table of the page, and the best policy beside each other one."""
    of_pair = ("best", "other", "workloads", "ahead", "ratio", "ratio_low", "ratio_high")
    pairs = [
        (
            *(pair.ours.policy, pair.other.policy, pair.workloads, pair.ahead),
            *(pair.ratio.value, pair.ratio.low, pair.ratio.high),
            *(pair.jobs.jobs, pair.jobs.faster, pair.jobs.slower, pair.jobs.median_ratio, pair.jobs.p_value),
        )
        for pair in standings.pairings
    ]
    of_jobs = ("jobs", "jobs_sooner", "jobs_later", "median_job_ratio", "p_value")
    return [sheet_of(POLICIES, policy_columns(standings)), Sheet(PAIRS, (*of_pair, *of_jobs), pairs)]


def policy_columns(standings: Standings) -> dict[str, list[Any]]:
    """A row for each policy, the best first: means over its runs, and 95 % intervals where there are any."""
    ranked = standings.ranked
    columns: dict[str, list[Any]] = {
        "policy": [standing.policy for standing in ranked],
        "runs": [len(standing.runs) for standing in ranked],
    }
    for metric in standings.present(METRICS):
        estimates = [standing.estimates[metric.key] for standing in ranked]
        columns[metric.key] = [estimate.value for estimate in estimates]
        if any(estimate.half_width > 0 for estimate in estimates):
            columns[f"{metric.key}_low"] = [estimate.low for estimate in estimates]
            columns[f"{metric.key}_high"] = [estimate.high for estimate in estimates]
    return columns


def _over_time(
    comparison: Comparison, standings: Standings
) -> Iterator[tuple[Figure | Panels | None, str, str, str]]:
    """Of each workload that is shown; they are numbered where there are several."""
    scenes = scenes_of(comparison, standings)
    for number, scene in enumerate(scenes, start=1):
        figures: Sequence[tuple[Figure | Panels | None, str]] = (
            (scene.use, ROUNDS),
            (scene.timelines, ALLOCATIONS),
            (scene.jobs, ROUNDS),
        )
        for figure, data in figures:
            yield figure, data, scene.name, f"-{number}" if len(scenes) > 1 else ""
