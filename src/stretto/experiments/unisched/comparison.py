"""UniSched beside other policies: table III, figures 6 and 12."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nan

import numpy as np

from stretto.experiments.reproduction import Bound, Input, Made, Request, Row, rows_over_seeds
from stretto.experiments.unisched.runs import (
    CHRONUS_PROFILES_ON,
    CLUSTERS,
    DEADLINE_AWARE,
    HELIOS,
    LEARNERS,
    NODE_GPUS,
    PHILLY,
    TESTBED,
    Case,
    Figure,
    Settings,
    best_effort_jct_s,
    figures_of,
    inputs_of,
    mean_of,
    miss_rate,
    notes_of,
    policies,
    run_cases,
    run_draws,
    workloads_of,
)
from stretto.sim.result import Result

MIXES = ("H_MIX1", "H_MIX2", "P_MIX1", "P_MIX2")
DENSITIES = (0.8, 1.0, 1.2, 1.4, 1.6)  # section V-B
MINUTE_S = 60.0
TESTBED_GPUS, TESTBED_ARRIVALS_S = 64, 8 * 3_600.0
# Table III: R_slo in percent and mean JCT in minutes of the paper's simulator, by jobs in eight hours.
TESTBED_FIGURES = {360: (4.97, 266.39), 720: (13.52, 253.98)}
FEWER_JOBS = (180, 270)  # chosen: what the paper's sample asks for is not known, so other loads are shown
SEEDS = range(5)  # of made samples; chosen
PER_CENT = 100.0

# Ranges that the text of section V-B states: R_slo and best-effort JCT of others over UniSched's.
SLO_RATIO = (1.17, 4.82)  # of the deadline-aware, workloads of strict deadlines only
MIX_RATIO = (0.95, 2.77)  # of the same, mixed workloads
LEARNERS_RATIO = (2.01, 6.84)
JCT_RATIO = (1.18, 4.02)
DENSITY_RATIO = (1.18, 2.67)

# Section VI-C, in parts of one: by how much R_slo is below that of Chronus at most, and on which workload.
BELOW_CHRONUS: Mapping[str, tuple[float, str]] = {
    "unisched": (0.052, ""),  # on which is not said
    "chronus + estimator": (0.042, "H_MIX1"),
    "chronus + selector": (0.015, "P_MIX1"),
}
ESTIMATOR_SPEEDUP = 1.73  # at most, of best effort on Helios, beside Chronus; the same section
SELECTOR_SPEEDUP = (1.04, 1.66)  # of the same, over the workloads


def figure6(request: Request) -> Made:
    """Weighted deadline miss rates and best-effort completion times: six workloads on both clusters."""
    cases = [
        Case(f"{cluster} {workload}: {policy}", workload, policy, {}, cluster)
        for cluster in CLUSTERS
        for workload in workloads_of(request, (*HELIOS, *PHILLY))
        for policy in policies()
    ]
    results = run_draws(request, cases)
    rows = [row for case, draws in results.items() for row in figures_of(case.name, draws)]
    by_key = {(case.cluster, case.workload, case.policy): draws for case, draws in results.items()}
    rows += _ratios("R_slo, SLO workloads", by_key, DEADLINE_AWARE, miss_rate, SLO_RATIO, ("SLO",))
    rows += _ratios("R_slo, MIX workloads", by_key, DEADLINE_AWARE, miss_rate, MIX_RATIO, ("MIX1", "MIX2"))
    rows += _ratios("R_slo, MIX workloads", by_key, LEARNERS, miss_rate, LEARNERS_RATIO, ("MIX1", "MIX2"))
    baselines = (*DEADLINE_AWARE, *LEARNERS)
    rows += _ratios("best-effort JCT", by_key, baselines, best_effort_jct_s, JCT_RATIO, ("MIX1", "MIX2"))
    return inputs_of(request), rows, notes_of(request)


def table3(request: Request) -> Made:
    """Weighted deadline miss rates and mean completion times on the testbed's 64 GPUs, over made samples."""
    runs = [(jobs, policy) for jobs in TESTBED_FIGURES for policy in policies()]
    runs += [(jobs, "unisched") for jobs in FEWER_JOBS]
    cases = [
        Case(f"T[{jobs}]: {policy}", f"helios-testbed:jobs={jobs},seed={seed}", policy, {}, TESTBED)
        for jobs, policy in runs
        for seed in SEEDS
    ]
    results = run_cases(request, cases)
    rows = []
    for jobs, policy in runs:
        name = f"T[{jobs}]: {policy}"
        of_seeds = [result for case, result in results.items() if case.name == name]
        figures = TESTBED_FIGURES.get(jobs) if policy == "unisched" else None
        missed_percent, jct_min = figures or (None, None)
        missed = [PER_CENT * (miss_rate(result) or 0.0) for result in of_seeds]
        took_min = [float(result.jct_s.mean()) / MINUTE_S for result in of_seeds]
        rows += [
            *rows_over_seeds(name, "R_slo_percent", missed_percent, missed),
            *rows_over_seeds(name, "avg_jct_min", jct_min, took_min),
            Row(name, "load", None, float(np.mean([load_of(result) for result in of_seeds]))),
            Row(name, "restarts_a_job", None, float(np.mean([r.restarts.mean() for r in of_seeds]))),
        ]
    made = Input(
        "jobs",
        False,
        "drawn from what is published of Venus, within the bounds of section IV-C. Run times are 5 to 180 "
        "min, requests below 16 GPUs, arrivals within 8 h. Nothing is calibrated on the table's own figures. "
        "What the paper's sample asks for in all is not known",
    )
    notes = [
        note
        for note in notes_of(request, TESTBED)
        if not note.startswith(("scale ", "H_*: ", "the clusters fill"))
    ]
    return [made, *inputs_of(request)[2:]], rows, (f"{len(SEEDS)} made samples of each size", *notes)


def load_of(result: Result) -> float:
    """GPU time that all jobs held over what the testbed has while they arrive."""
    return float(result.attained_gpu_s.sum()) / (TESTBED_GPUS * TESTBED_ARRIVALS_S)


def figure6_density(request: Request) -> Made:
    """The same on H_MIX2 with jobs left out, and with jobs that come twice (figures 6c and 6d)."""
    cases = [
        Case(f"{density:.0%}: {policy}", "H_MIX2", policy, {}, recipe=f"density={density:g}")
        for density in DENSITIES
        for policy in policies()
    ]
    results = run_draws(request, cases)
    rows = [row for case, draws in results.items() for row in figures_of(case.name, draws)]
    by_key = {(case.recipe, case.workload, case.policy): draws for case, draws in results.items()}
    baselines = (*DEADLINE_AWARE, *LEARNERS)
    rows += _ratios("R_slo", by_key, baselines, miss_rate, DENSITY_RATIO, ("MIX2",))
    return inputs_of(request), rows, notes_of(request)


def variants_of_chronus() -> Mapping[str, tuple[str, Settings]]:
    """Policy and settings of UniSched, of Chronus, and of Chronus with one of UniSched's two parts."""
    static: Settings = {
        "policy.profiling": "static",
        "policy.profile_nodes": CHRONUS_PROFILES_ON // NODE_GPUS,  # as many GPUs as chronus has
        "policy.iterations": False,
        "policy.suspensions": False,
    }
    return {
        "unisched": ("unisched", {}),
        "chronus": ("chronus", {}),
        "chronus + estimator": ("chronus", {"policy.estimator": True}),
        "chronus + selector": ("unisched", static),
    }


def figure12(request: Request) -> Made:
    """What each part of UniSched does to Chronus."""
    cases = [
        Case(f"{workload}: {name}", workload, policy, settings)
        for workload in workloads_of(request, MIXES)
        for name, (policy, settings) in variants_of_chronus().items()
    ]
    results = run_draws(request, cases)
    rows = [row for case, draws in results.items() for row in figures_of(case.name, draws)]
    by_key = {(case.workload, case.name.partition(": ")[2]): draws for case, draws in results.items()}
    rows += beside_chronus(
        {key: [miss_rate(result) or 0.0 for result in draws] for key, draws in by_key.items()},
        {key: mean_of(best_effort_jct_s, draws) or nan for key, draws in by_key.items()},
    )
    stated = (
        "5.2, 4.2 and 1.5 % of section VI-C are read as points of R_slo, and are the most over workloads. "
        "The estimator's is on H_MIX1, the selector's on P_MIX1, so there they are figures and no limits",
        "speedup is the mean completion time of best effort under chronus over that of the other",
        f"chronus + selector is unisched's programme with {CHRONUS_PROFILES_ON} GPUs set aside for profiles, "
        "as for chronus, without learning curves and without expected suspensions",
    )
    return inputs_of(request), rows, (*notes_of(request), *stated)


def beside_chronus(
    missed: Mapping[tuple[str, str], Sequence[float]], jct_s: Mapping[tuple[str, str], float]
) -> list[Row]:
    """What section VI-C says of each variant beside Chronus.

    By workload and variant: missed is R_slo of each draw, in parts of one, and jct_s the mean completion
    time of best effort.
    """
    rows: list[Row] = []
    workloads = list(dict.fromkeys(workload for workload, _ in missed))
    for name, (most, named) in BELOW_CHRONUS.items():
        below = {
            workload: [
                theirs - ours
                for theirs, ours in zip(missed[workload, "chronus"], missed[workload, name], strict=True)
            ]
            for workload in workloads
        }
        means = [float(np.mean(each)) for each in below.values()]
        words = f"{name}: most over the workloads"
        rows.append(Row(words, "R_slo_below_chronus", most, max(means, default=None), "at most"))
        if named in below:
            rows += rows_over_seeds(f"{named}/{name}", "R_slo_below_chronus", most, below[named])

    def faster(name: str, on: Sequence[str]) -> list[float]:
        ratios = [jct_s[workload, "chronus"] / jct_s[workload, name] for workload in on]
        return [ratio for ratio in ratios if isfinite(ratio)]

    helios = faster("chronus + estimator", [workload for workload in workloads if workload in HELIOS])
    selector = faster("chronus + selector", workloads)
    least, most = SELECTOR_SPEEDUP
    limits: list[tuple[str, float, float | None, Bound]] = [
        ("chronus + estimator: most on Helios", ESTIMATOR_SPEEDUP, max(helios, default=None), "at most"),
        ("chronus + selector: least over the workloads", least, min(selector, default=None), "at least"),
        ("chronus + selector: most over the workloads", most, max(selector, default=None), "at most"),
    ]
    rows += [Row(name, "best_effort_speedup", paper, ours, bound) for name, paper, ours, bound in limits]
    return rows


def _ratios(
    what: str,
    by_key: Mapping[tuple[str, str, str], Sequence[Result]],
    others: Sequence[str],
    figure: Figure,
    stated: tuple[float, float],
    mixes: Sequence[str],
) -> list[Row]:
    """Least and most of others' figures over UniSched's, means over draws, over these mixes' workloads."""
    ratios = []
    for (where, workload, policy), draws in by_key.items():
        ours, theirs = (mean_of(figure, each) for each in (by_key[where, workload, "unisched"], draws))
        if (
            policy in others
            and workload.partition("_")[2] in mixes
            and ours is not None
            and theirs is not None
        ):
            ratios.append(theirs / ours if ours > 0 else inf)
    names = f"{what}: {', '.join(others)} over unisched"
    finite = [ratio for ratio in ratios if ratio < inf]
    return [
        Row(names, "least", stated[0], min(finite, default=None)),
        Row(names, "most", stated[1], max(finite, default=None)),
    ]
