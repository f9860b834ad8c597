"""Simulations of UniSched's evaluation: workloads, what each policy is told, and what is reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.experiments.reproduction import Input, Request, Row, data_set, rows_over_seeds
from stretto.experiments.spec import RunSpec
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
        row for case, result in run_cases(request, cases).items() for row in figures_of(case.name, result)
    ]


def run_cases(request: Request, cases: Sequence[Case]) -> dict[Case, Result]:
    """The result of every case; equal simulations run once."""
    specs = [spec_of(request, case) for case in cases]
    different = list({repr(spec): spec for spec in specs}.values())
    results = dict(zip(map(repr, different), request.run(different), strict=True))
    return {case: results[repr(spec)] for case, spec in zip(cases, specs, strict=True)}


# ── what came of them ─────────────────────────────────────────────────────────────────────────────


def miss_rate(result: Result, goals_only: bool = False) -> float | None:
    """R_slo: one minus the mean share of its reward that a job with deadlines earned."""
    jobs = result.requests.jobs
    rows = [row for row, job in enumerate(jobs) if job.goal is not None or not goals_only]
    shares = metrics.share_of_rewards([jobs[row] for row in rows], result.completed_s[rows])
    return metrics.weighted_deadline_miss_rate(shares, most=1.0) if len(shares) else None


def best_effort_jct_s(result: Result) -> float | None:
    """Mean completion time of the jobs without a deadline."""
    mine = np.isinf(result.requests.deadline_s) & result.done
    jct_s = result.completed_s[mine] - result.requests.submitted_s[mine]
    return float(jct_s.mean()) if len(jct_s) else None


def figures_over_seeds(name: str, results: Sequence[Result]) -> list[Row]:
    """The rows of simulations of several made workloads, with the interval of their mean."""
    missed = [miss_rate(result) for result in results]
    took_s = [best_effort_jct_s(result) for result in results]
    decisions_ms = [result.decision_ms for result in results]
    return [
        *rows_over_seeds(name, "R_slo", None, [each for each in missed if each is not None]),
        *rows_over_seeds(name, "best_effort_jct_s", None, [each for each in took_s if each is not None]),
        # The longest of so many decisions would say what else the machine did.
        Row(name, "policy_ms_p50", None, metrics.percentile(np.concatenate(decisions_ms), 50)),
    ]


def figures_of(name: str, result: Result) -> list[Row]:
    """The rows of one simulation."""
    return [
        Row(name, "R_slo", None, miss_rate(result)),
        Row(name, "best_effort_jct_s", None, best_effort_jct_s(result)),
        Row(name, "policy_ms_p50", None, metrics.percentile(result.decision_ms, 50)),
        Row(name, "policy_ms_max", None, float(result.decision_ms.max())),
    ]


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


def notes_of(request: Request) -> tuple[str, ...]:
    """What a reader of the figures has to know of how they were made."""
    absent = [name for name in OTHERS if name not in policy_names()]
    notes = [
        f"scale {request.scale:g}: that share of the time over which jobs arrive",
        "the paper's figures are drawn without numbers; ranges beside ours are those of its text",
        "R_slo is one minus equation 15, which prints the attainment and calls it a miss rate",
        f"a suspension and resumption costs {RESTART_S:g} s and {MORE_PER_GPU_S:g} s for each further GPU. "
        "Genie and optimus choose sizes: they may run jobs on 1 to twice the GPUs asked for, the others on "
        "exactly those",
        f"chronus profiles on {CHRONUS_PROFILES_ON} GPUs set aside, as the paper's text has it: bursts of "
        "these workloads wait there for hours",
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
