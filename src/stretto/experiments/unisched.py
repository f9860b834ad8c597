"""Figures of UniSched (TPDS 2024): deadlines kept, best-effort completion times, what each part adds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from stretto.experiments.reproduction import Input, Made, Request, Row, data_set, rows_over_seeds
from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import Plan, Snapshot
from stretto.policies.registry import policy_names
from stretto.sim import metrics
from stretto.sim.result import Result

DEADLINE_AWARE = ("3sigma", "genie", "hydra")  # section IV-D
LEARNERS = ("optimus", "themis")  # the paper's "deep learning schedulers"
OTHERS = (*DEADLINE_AWARE, *LEARNERS, "chronus")
CHANGE_SIZES = ("genie", "optimus")  # these may run jobs on other counts than were asked for
HELIOS, PHILLY = ("H_SLO", "H_MIX1", "H_MIX2"), ("P_SLO", "P_MIX1", "P_MIX2")
MIXES = ("H_MIX1", "H_MIX2", "P_MIX1", "P_MIX2")
CLUSTERS = {"C96": "gpu8-768", "C120": "gpu8-960"}  # nodes of 8 GPUs, section IV-B
NODE_GPUS = 8
USUAL = "C120"
DENSITIES = (0.8, 1.0, 1.2, 1.4, 1.6)  # section V-B
OVERHEADS = (1, 2, 3, 4)  # times the usual cost of a suspension; the paper's axis is only drawn
ERRORS = (0.0, 0.2, 0.4, 0.6, 0.8)  # standard deviations of the noise; beyond 0.4 chosen
LEASES_MIN = (5, 10, 20, 30)  # of jobs with deadlines; figure 10a
HOSTILE = (0.0, 0.2, 0.4, 0.6, 0.8)  # shares; chosen, the axis is only drawn
SCALES = {"gpu8-256": 256, "gpu8-640": 640, "gpu8-960": 960}  # GPUs; chosen
MINUTE_S = 60.0
RESTART_S, MORE_PER_GPU_S = 20.0, 1.0  # of a suspension and resumption: about as figure 3 shows
CHRONUS_PROFILES_ON = 16  # "up to 16" GPUs are set aside [section II-B]
# Standard deviation of estimated over true durations, for all that are told durations: figure 7 has errors of
# 5 % on average and up to 16.3 %, which are the mean and the 95th percentile of a normal one of so much.
ESTIMATE_ERROR = 0.08
TESTBED_GPUS, TESTBED_ARRIVALS_S = 64, 8 * 3_600.0
# Table III: R_slo in percent and mean JCT in minutes of the paper's simulator, by jobs in eight hours.
TESTBED = "ones-64"  # 16 nodes of 4 V100, as section IV-C has them
TESTBED_FIGURES = {360: (4.97, 266.39), 720: (13.52, 253.98)}
FEWER_JOBS = (180, 270)  # chosen: what the paper's sample asks for is not known, so other loads are shown
SEEDS = range(5)  # of made samples; chosen
PER_CENT = 100.0
LEAST_JOBS = 100  # chosen: about so many arrivals are kept, however small the scale
JOBS = {"H": 10_993, "P": 30_740}  # about so many in each workload
SHOWN = (  # what each policy knows, beside every table
    f"told durations with an error of {ESTIMATE_ERROR:.0%} (one standard deviation): 3sigma, genie, hydra at "
    "arrival; unisched and chronus once a job was profiled",
    "told exactly what is left: optimus and themis",
    "of jobs that stop by performance unisched predicts the end, chronus believes the owner's maximum, all "
    "others are told the end",
)
EXACT = 1e-4  # chosen: a plan this near the bound counts as proved optimal

# Ranges that the text of section V-B states: R_slo and best-effort JCT of others over UniSched's.
SLO_RATIO = (1.17, 4.82)  # of the deadline-aware, workloads of strict deadlines only
MIX_RATIO = (0.95, 2.77)  # of the same, mixed workloads
LEARNERS_RATIO = (2.01, 6.84)
JCT_RATIO = (1.18, 4.02)
DENSITY_RATIO = (1.18, 2.67)
SOLVER_MS = 10_000.0  # section VI-B: the solver takes less at any scale

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


def figure6(request: Request) -> Made:
    """Weighted deadline miss rates and best-effort completion times: six workloads on both clusters."""
    cases = [
        Case(f"{cluster} {workload}: {policy}", workload, policy, {}, cluster)
        for cluster in CLUSTERS
        for workload in workloads_of(request, (*HELIOS, *PHILLY))
        for policy in _policies()
    ]
    results = run_cases(request, cases)
    rows = [row for case, result in results.items() for row in _figures(case.name, result)]
    by_key = {(case.cluster, case.workload, case.policy): result for case, result in results.items()}
    rows += _ratios("R_slo, SLO workloads", by_key, DEADLINE_AWARE, miss_rate, SLO_RATIO, ("SLO",))
    rows += _ratios("R_slo, MIX workloads", by_key, DEADLINE_AWARE, miss_rate, MIX_RATIO, ("MIX1", "MIX2"))
    rows += _ratios("R_slo, MIX workloads", by_key, LEARNERS, miss_rate, LEARNERS_RATIO, ("MIX1", "MIX2"))
    baselines = (*DEADLINE_AWARE, *LEARNERS)
    rows += _ratios("best-effort JCT", by_key, baselines, best_effort_jct_s, JCT_RATIO, ("MIX1", "MIX2"))
    return inputs_of(request), rows, notes_of(request)


def table3(request: Request) -> Made:
    """Weighted deadline miss rates and mean completion times on the testbed's 64 GPUs, over made samples."""
    runs = [(jobs, policy) for jobs in TESTBED_FIGURES for policy in _policies()]
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
            Row(name, "load", None, float(np.mean([_load(result) for result in of_seeds]))),
            Row(name, "restarts_a_job", None, float(np.mean([r.restarts.mean() for r in of_seeds]))),
        ]
    made = Input(
        "jobs",
        False,
        "drawn from what is published of Venus within the bounds of section IV-C: run times of 5 to 180 min, "
        "requests below 16 GPUs, arrivals within 8 h. Nothing is calibrated on the table's own figures. "
        "What the paper's sample asks for in all is not known",
    )
    notes = [note for note in notes_of(request) if not note.startswith(("scale ", "the clusters fill"))]
    return [made, *inputs_of(request)[2:]], rows, (f"{len(SEEDS)} made samples of each size", *notes)


def _load(result: Result) -> float:
    """GPU time that all jobs held over what the testbed has while they arrive."""
    return float(result.attained_gpu_s.sum()) / (TESTBED_GPUS * TESTBED_ARRIVALS_S)


def figure6_density(request: Request) -> Made:
    """The same on H_MIX2 with jobs left out, and with jobs that come twice (figures 6c and 6d)."""
    cases = [
        Case(f"{density:.0%}: {policy}", "H_MIX2", policy, {}, recipe=f"density={density:g}")
        for density in DENSITIES
        for policy in _policies()
    ]
    results = run_cases(request, cases)
    rows = [row for case, result in results.items() for row in _figures(case.name, result)]
    by_key = {(case.recipe, case.workload, case.policy): result for case, result in results.items()}
    baselines = (*DEADLINE_AWARE, *LEARNERS)
    rows += _ratios("R_slo", by_key, baselines, miss_rate, DENSITY_RATIO, ("MIX2",))
    return inputs_of(request), rows, notes_of(request)


def figure9(request: Request) -> Made:
    """What the Estimator adds: unified profiling, learning curves, expected suspensions; and its errors."""
    workloads = workloads_of(request, (*HELIOS, *PHILLY))
    cases = [
        Case(f"a {workload}: {kind} profiling", workload, "unisched", {"policy.profiling": kind})
        for workload in workloads
        for kind in ("unified", "static")
    ]
    cases += [
        Case(f"b {workload}: {word} learning curves", workload, "unisched", {"policy.iterations": on})
        for workload in workloads
        for word, on in (("with", True), ("without", False))
    ]
    for times in OVERHEADS:
        cost_s = RESTART_S * times
        settings = {"sim.restart_s": cost_s, "policy.suspend_s": cost_s}
        cases += [
            Case(
                f"c H_MIX2, overhead x {times}: {word} expected suspensions",
                "H_MIX2",
                "unisched",
                settings | {"policy.suspensions": on},
            )
            for word, on in (("with", True), ("without", False))
        ]
    cases += [
        Case(f"d {workload}, noise {error:.0%}", workload, "unisched", {"sim.duration_error": error})
        for workload in workloads
        for error in ERRORS
    ]
    rows = []
    for case, result in run_cases(request, cases).items():
        if case.name.startswith("b "):
            rows.append(Row(case.name, "R_slo_of_goals", None, miss_rate(result, goals_only=True)))
        rows += _figures(case.name, result)
        if case.name.startswith("a "):
            rows.append(Row(case.name, "longest_wait_to_be_profiled_s", None, _longest_wait_s(result)))
    stated = (
        "longest wait to be profiled: 2,105 s static, 840 s unified, for a workload that is not named",
        "static profiling has two nodes, as in the paper, on which the bursts of P_* wait for hours",
    )
    return inputs_of(request), rows, (*notes_of(request), *stated)


def figure10(request: Request) -> Made:
    """What the Selector adds: lengths of the lease, the objective, and what a decision takes."""
    cases = [
        Case(
            f"a {workload}, lease of {minutes} min",
            workload,
            "unisched",
            {"policy.deadline_lease_s": 60 * minutes},
        )
        for workload in ("H_MIX1", "H_MIX2")
        for minutes in LEASES_MIN
    ]
    cases += [
        Case(f"b, c {workload}: {word} objective", workload, "unisched", {"policy.objective": on})
        for workload in workloads_of(request, (*HELIOS, *PHILLY))
        for word, on in (("with", True), ("without", False))
    ]
    rows = [row for case, result in run_cases(request, cases).items() for row in _figures(case.name, result)]
    for cluster, gpus in SCALES.items():
        density = gpus / SCALES[max(SCALES, key=SCALES.__getitem__)]
        case = Case(f"d {gpus} GPUs", "H_MIX2", "unisched", {}, cluster, f"density={density:.3f}")
        rows += _decisions(request, case)
    stated = "d: the paper's 10 s are of its solver alone, ours of whole decisions"
    return inputs_of(request), rows, (*notes_of(request), stated)


def figure11(request: Request) -> Made:
    """Jobs and cells chosen together or only the most consolidated cells, as more requests fill no cell."""
    cases = [
        Case(
            f"{share:.0%} hostile: {word}",
            "H_MIX2",
            "unisched",
            {"policy.joint": on},
            recipe=f"hostile={share:g}",
        )
        for share in HOSTILE
        for word, on in (("joint", True), ("consolidated", False))
    ]
    rows = [row for case, result in run_cases(request, cases).items() for row in _figures(case.name, result)]
    return inputs_of(request), rows, notes_of(request)


def figure12(request: Request) -> Made:
    """UniSched, Chronus, and Chronus with one of UniSched's two parts."""
    static: Settings = {
        "policy.profiling": "static",
        "policy.profile_nodes": CHRONUS_PROFILES_ON // NODE_GPUS,  # as many GPUs as chronus has
        "policy.iterations": False,
        "policy.suspensions": False,
    }
    variants: Mapping[str, tuple[str, Settings]] = {
        "unisched": ("unisched", {}),
        "chronus": ("chronus", {}),
        "chronus + estimator": ("chronus", {"policy.estimator": True}),
        "chronus + selector": ("unisched", static),
    }
    cases = [
        Case(f"{workload}: {name}", workload, policy, settings)
        for workload in workloads_of(request, MIXES)
        for name, (policy, settings) in variants.items()
    ]
    rows = [row for case, result in run_cases(request, cases).items() for row in _figures(case.name, result)]
    stated = (
        "R_slo of chronus is at most 5.2 % above that of unisched; the estimator takes up to 4.2 % off it, "
        "the selector up to 1.5 % (section VI-C)",
        f"chronus + selector is unisched's programme with {CHRONUS_PROFILES_ON} GPUs set aside for profiles, "
        "as for chronus, without learning curves and without expected suspensions",
    )
    return inputs_of(request), rows, (*notes_of(request), *stated)


# ── which simulations ─────────────────────────────────────────────────────────────────────────────


def _policies() -> list[str]:
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
    base = case.workload if testbed else f"helios-{mix.lower()}:seed=0"
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


def _figures(name: str, result: Result) -> list[Row]:
    return [
        Row(name, "R_slo", None, miss_rate(result)),
        Row(name, "best_effort_jct_s", None, best_effort_jct_s(result)),
        Row(name, "policy_ms_p50", None, metrics.percentile(result.decision_ms, 50)),
        Row(name, "policy_ms_max", None, float(result.decision_ms.max())),
    ]


def _longest_wait_s(result: Result) -> float:
    """Until the first GPUs: a new job's first run is its profiling run."""
    waited_s = metrics.initial_queuing_s(result.requests.submitted_s, result.first_start_s)
    return float(np.nanmax(waited_s))


def _ratios(
    what: str,
    by_key: Mapping[tuple[str, str, str], Result],
    others: Sequence[str],
    figure: Callable[[Result], float | None],
    stated: tuple[float, float],
    mixes: Sequence[str],
) -> list[Row]:
    """Least and most of others' figures over UniSched's, over the workloads of these mixes."""
    ratios = []
    for (where, workload, policy), result in by_key.items():
        ours, theirs = figure(by_key[where, workload, "unisched"]), figure(result)
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


def _decisions(request: Request, case: Case) -> list[Row]:
    """What decisions take and how many are proved optimal, of one run that is not kept."""
    gaps = []

    def note(snapshot: Snapshot, plan: Plan) -> None:
        if plan.gap is not None:
            gaps.append(plan.gap)

    result = run_spec(spec_of(request, case), record=note)
    return [
        Row(case.name, "policy_ms_p50", None, metrics.percentile(result.decision_ms, 50)),
        Row(case.name, "policy_ms_p95", None, metrics.percentile(result.decision_ms, 95)),
        Row(case.name, "policy_ms_max", SOLVER_MS, float(result.decision_ms.max()), "at most"),
        Row(case.name, "proved_optimal", None, float(np.mean(np.array(gaps) <= EXACT)) if gaps else None),
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
        f"a suspension and resumption costs {RESTART_S:g} s and {MORE_PER_GPU_S:g} s for each further GPU; "
        "genie and optimus, which choose sizes, may run jobs on 1 to twice the GPUs asked for, the others on "
        "exactly those",
        f"chronus profiles on {CHRONUS_PROFILES_ON} GPUs set aside, as the paper's text has it: bursts of "
        "these workloads wait there for hours",
        *SHOWN,
    ]
    if request.scale < 1:
        notes.append(
            "the clusters fill up only after days: of a small share of the arrivals nearly all deadlines are "
            "kept, except by policies that wait for a profile and the next tick"
        )
    if absent:
        notes.append(f"not there yet, and left out: {', '.join(absent)}")
    return tuple(notes)
