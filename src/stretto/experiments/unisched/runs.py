"""Simulations of UniSched's evaluation: workloads, what each policy is told, and what is reported."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.clusters import read_cluster
from stretto.experiments.draws import draws_words, seeds_of
from stretto.experiments.reproduction import Input, Request, Row, data_set, rows_over_seeds
from stretto.experiments.spec import RunSpec
from stretto.policies.chronus.policy import most_set_aside
from stretto.policies.registry import policy_names
from stretto.sim import metrics
from stretto.sim.result import Result

DEADLINE_AWARE = ("3sigma", "genie", "hydra")  # section IV-D
LEARNERS = ("optimus", "themis")  # the paper's "deep learning schedulers"
OTHERS = (*DEADLINE_AWARE, *LEARNERS, "chronus")
CHANGE_SIZES = ("genie", "optimus")  # these may run jobs on other counts than were asked for
HELIOS, PHILLY = ("H_SLO", "H_MIX1", "H_MIX2"), ("P_SLO", "P_MIX1", "P_MIX2")
CLUSTERS = {"C96": "gpu8-768", "C120": "gpu8-960"}  # nodes of 8 GPUs, section IV-B
NODE_GPUS = 8
USUAL = "C120"
RESTART_S, MORE_PER_GPU_S = 20.0, 1.0  # of a suspension and resumption: about as figure 3 shows
CHRONUS_PROFILES_ON = 16  # "up to 16" GPUs are set aside [section II-B]
# Standard deviation of estimated over true durations, for all that are told durations: figure 7 has errors of
# 5 % on average and up to 16.3 %, which are the mean and the 95th percentile of a normal one of so much.
ESTIMATE_ERROR = 0.08
# These reckon with steps that are left; they are told no more than the other baselines.
TOLD_ESTIMATES: Mapping[str, Mapping[str, object]] = {
    "themis": {"policy.estimated": True},
    "optimus": {"policy.remaining": "estimate"},
}
TESTBED = "ones-64"  # 16 nodes of 4 V100, as section IV-C has them
LEAST_JOBS = 100  # chosen: about so many arrivals are kept, however small the scale
JOBS = {"H": 10_993, "P": 30_740}  # about so many in each workload
SHOWN = (  # what each policy knows, beside every table
    f"told durations with an error of {ESTIMATE_ERROR:.0%} (one standard deviation): 3sigma, genie, hydra, "
    "optimus and themis at arrival; unisched and chronus once a job was profiled",
    "of jobs that stop by performance unisched predicts the end, chronus believes the owner's maximum, all "
    "others are told the end with that error",
)

Settings = Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Case:
    """One simulation under a name; a key by itself, however alike two are."""

    name: str
    workload: str
    policy: str
    settings: Settings
    cluster: str = USUAL
    recipe: str = ""  # parameters of the recipe
    seed: int = 0  # of a made workload


# ── which simulations ─────────────────────────────────────────────────────────────────────────────


def policies() -> list[str]:
    """UniSched and those of the others that there are."""
    known = policy_names()
    return ["unisched", *(name for name in OTHERS if name in known)]


def workloads_of(request: Request, names: Sequence[str]) -> list[str]:
    """Those that can be had: Philly's need its files, Helios's are made."""
    return [name for name in names if request.data is not None or name in HELIOS]


def spec_of(request: Request, case: Case) -> RunSpec:
    """The simulation of one case."""
    family, _, mix = case.workload.partition("_")
    testbed = case.cluster == TESTBED
    words = [case.recipe] if case.recipe else []
    if case.policy in CHANGE_SIZES:
        words.append("elastic=yes")
    recipe = "unisched" + (":" + ",".join(words) if words else "")
    base = case.workload if testbed else f"helios-{mix.lower()}:seed={case.seed}"
    if family == "P":
        assert request.data is not None
        base = str(data_set(request.data, "chronus", f"trace_job_Philly_{mix}.csv.gz"))
    settings: dict[str, object] = {
        "sim.scaling": "catalogue",
        "sim.restart_s": RESTART_S,
        "sim.restart_per_gpu_s": MORE_PER_GPU_S,
        "sim.duration_error": ESTIMATE_ERROR,
    }
    settings |= case.settings
    settings = {**TOLD_ESTIMATES.get(case.policy, {}), **settings}
    if case.policy == "chronus":
        settings = {"policy.profiling_gpus": CHRONUS_PROFILES_ON} | settings
    return RunSpec(
        CLUSTERS.get(case.cluster, case.cluster),
        f"{base}@{recipe}",
        case.policy,
        settings={key: _text(value) for key, value in settings.items()},
        window=1.0 if testbed else min(1.0, max(request.scale, LEAST_JOBS / JOBS[family])),
    )


def _text(value: object) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def rows_of(request: Request, cases: Sequence[Case]) -> list[Row]:
    """The rows of all cases."""
    return [
        row for case, results in run_draws(request, cases).items() for row in figures_of(case.name, results)
    ]


def run_draws(request: Request, cases: Sequence[Case]) -> dict[Case, list[Result]]:
    """The results of every case: of several draws of a workload that is made, one of a real one."""
    drawn = {case: draws_of(request, case) for case in cases}
    results = run_cases(request, [draw for draws in drawn.values() for draw in draws])
    return {case: [results[draw] for draw in draws] for case, draws in drawn.items()}


def draws_of(request: Request, case: Case) -> list[Case]:
    """The case with each seed of its made workload, as many as the scale leaves; a real one has no other."""
    if case.workload not in HELIOS:
        return [case]
    return [replace(case, seed=seed) for seed in seeds_of(request)]


def run_cases(request: Request, cases: Sequence[Case]) -> dict[Case, Result]:
    """The result of every case; equal simulations run once."""
    specs = [spec_of(request, case) for case in cases]
    different = list({repr(spec): spec for spec in specs}.values())
    results = dict(zip(map(repr, different), request.run(different), strict=True))
    return {case: results[repr(spec)] for case, spec in zip(cases, specs, strict=True)}


# ── what came of them ─────────────────────────────────────────────────────────────────────────────


def miss_rate(result: Result) -> float | None:
    """R_slo: one minus the mean share of its reward that a job with deadlines earned."""
    return _miss_rate(result, range(len(result.requests.jobs)))


def miss_rate_of_goals(result: Result) -> float | None:
    """The same of the jobs that stop by performance."""
    jobs = result.requests.jobs
    return _miss_rate(result, [row for row, job in enumerate(jobs) if job.goal is not None])


def _miss_rate(result: Result, rows: Sequence[int]) -> float | None:
    jobs = [result.requests.jobs[row] for row in rows]
    shares = metrics.share_of_rewards(jobs, result.completed_s[rows])
    return metrics.weighted_deadline_miss_rate(shares, most=1.0) if len(shares) else None


def best_effort_jct_s(result: Result) -> float | None:
    """Mean completion time of the jobs without a deadline."""
    mine = np.isinf(result.requests.deadline_s) & result.done
    jct_s = result.completed_s[mine] - result.requests.submitted_s[mine]
    return float(jct_s.mean()) if len(jct_s) else None


Figure = Callable[[Result], float | None]


def mean_of(figure: Figure, results: Sequence[Result]) -> float | None:
    """A figure's mean over the draws that have it."""
    values = _known(figure, results)
    return float(np.mean(values)) if values else None


def rows_of_draws(name: str, metric: str, figure: Figure, results: Sequence[Result]) -> list[Row]:
    """A figure's mean over draws, with its interval where there are several."""
    values = _known(figure, results)
    return rows_over_seeds(name, metric, None, values) if values else [Row(name, metric, None, None)]


def _known(figure: Figure, results: Sequence[Result]) -> list[float]:
    return [value for value in map(figure, results) if value is not None]


def figures_of(name: str, results: Sequence[Result]) -> list[Row]:
    """The rows of one case, over its draws."""
    decisions_ms = np.concatenate([result.decision_ms for result in results])
    rows = [
        *rows_of_draws(name, "R_slo", miss_rate, results),
        *rows_of_draws(name, "best_effort_jct_s", best_effort_jct_s, results),
        Row(name, "policy_ms_p50", None, metrics.percentile(decisions_ms, 50)),
    ]
    # The longest decision of several simulations would say what else the machine did.
    if len(results) == 1:
        rows.append(Row(name, "policy_ms_max", None, float(decisions_ms.max())))
    return rows


def chronus_profiles_on(cluster: str) -> int:
    """GPUs that Chronus sets aside there for profiling runs: a small cluster has fewer of them."""
    gpus = int(read_cluster(CLUSTERS.get(cluster, cluster)).capacity.sum())
    return most_set_aside(CHRONUS_PROFILES_ON, gpus)


def inputs_of(request: Request) -> list[Input]:
    """What the tables are made of."""
    real = request.data is not None
    philly = "jobs of Philly as published with Chronus" if real else "left out: the files are not there"
    deadlines = (
        "drawn as the paper says: 1.1 to 2 durations from submission, soft steps at 1.1, 1.2, 1.5 times that"
    )
    return [
        Input("P_*: arrivals, requests, durations, classes", real, philly),
        Input(
            "H_*: all of it", False, "made after figures of Venus; confirms nothing about the paper's draw"
        ),
        Input("deadlines and rewards", False, deadlines),
        Input("learning curves of a fifth of the jobs", False, "made; the paper chose jobs by name"),
        Input("speed by number of GPUs and nodes", False, "the built-in catalogue of models"),
    ]


def notes_of(request: Request, cluster: str = USUAL) -> tuple[str, ...]:
    """What a reader of the figures has to know of how they were made.

    cluster: the smallest that the table has, as `Case.cluster` calls it.
    """
    absent = [name for name in OTHERS if name not in policy_names()]
    notes = [
        f"scale {request.scale:g}: that share of the time over which jobs arrive",
        f"H_*: {draws_words(len(seeds_of(request)))}",
        "the paper's figures are drawn without numbers; ranges beside ours are those of its text",
        "R_slo is one minus equation 15, which prints the attainment and calls it a miss rate",
        f"a suspension and resumption costs {RESTART_S:g} s and {MORE_PER_GPU_S:g} s for each further GPU. "
        "Genie and optimus choose sizes: they may run jobs on 1 to twice the GPUs asked for, the others on "
        "exactly those",
        f"chronus profiles on {chronus_profiles_on(cluster)} GPUs set aside (the paper's text: up to "
        f"{CHRONUS_PROFILES_ON}), where bursts of jobs wait",
        *SHOWN,
    ]
    if request.scale < 1:
        notes.append(
            "the clusters fill up only after days. Of a small share of the arrivals nearly all deadlines are "
            "kept, except by policies that wait for a profile and the next tick"
        )
    if absent:
        notes.append(f"not there yet, and left out: {', '.join(absent)}")
    return tuple(notes)
