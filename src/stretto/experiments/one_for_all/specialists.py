"""The grounds of the five papers, on which `stretto` is held against the policy of each.

Where the paper's policy is told durations with an error, ours is told the work that is left with the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stretto.experiments.cornucopia import comparison as cornucopia
from stretto.experiments.draws import SEEDS, seeds_of
from stretto.experiments.lyra import runs as lyra
from stretto.experiments.one_for_all.grounds import Case, Figures, Ground
from stretto.experiments.one_for_all.parts import OURS
from stretto.experiments.ones import comparison as ones
from stretto.experiments.reproduction import Input, Request, data_set
from stretto.experiments.sia import workloads as sia
from stretto.experiments.spec import RunSpec
from stretto.experiments.unisched import runs as unisched
from stretto.sim import metrics
from stretto.sim.result import Result

IN_PLACE = {"sim.resize_s": "1"}
LYRA_SEEDS = (1, 2, 3, 4, 5)
LYRA_SHARE = 0.125  # of the clusters and jobs; as small as a job of 256 GPUs allows
LYRA_WINDOW = 0.2  # of the time in which jobs come; chosen: a minute of a core
VENUS_SEEDS, TESTBED_SEEDS = SEEDS, (0, 1, 2, 3, 4)  # whatever the scale, which is of the time of arrivals
TESTBED_JOBS = (180, 360)  # section IV-C of UniSched, and twice as many
SIA_FAMILIES = {
    "Philly and Helios": ("philly", "helios"),
    "newTrace": ("newtrace",),
    "all files": ("philly", "helios", "newtrace"),
}
PHILLY_FILES = ("MIX1", "MIX2", "SLO")  # three draws of the same two weeks


# ── Sia ───────────────────────────────────────────────────────────────────────────────────────────


def sia_cases(request: Request, _: Path) -> list[Case]:
    """Section 5: 64 GPUs of three types; a change of size in place, or by restart as in the paper."""

    def case(name: str, families: Sequence[str], settings: Mapping[str, str]) -> Case:
        def samples(policy: str) -> list[RunSpec]:
            return [
                replace(
                    sia.spec_of(request, "sia-hetero-64", trace, policy, sia.JOBS[family]), settings=settings
                )
                for family in families
                for trace in sia.traces_of(request, family)
            ]

        return Case(name, ("sia",), samples)

    return [
        case(f"{workload}, {costs}", families, settings)
        for workload, families in SIA_FAMILIES.items()
        for costs, settings in (("in place", IN_PLACE), ("by restart", {}))
    ]


def sia_figures(result: Result) -> Figures:
    """As table 3 has them."""
    return {
        "avg_jct_h": float(result.jct_s.mean()) / 3600,
        "p99_jct_h": metrics.index_percentile(result.jct_s, 0.99) / 3600,
        "makespan_h": metrics.makespan_s(result.requests.submitted_s, result.completed_s) / 3600,
        "restarts_per_job": float(result.restarts.mean()),
    }


def sia_inputs(request: Request) -> list[Input]:
    """What is read."""
    families = ("philly", "helios", "newtrace")
    return sia.inputs_of(request, {family: sia.traces_of(request, family) for family in families})


SIA = Ground(
    sia_cases,
    sia_figures,
    {"avg_jct_h": 0.0, "p99_jct_h": 0.0, "makespan_h": 0.0},
    sia_inputs,
    ["the policy was worked out on workload-1 of Philly and of Helios; others were run when it was done"],
    without=("Philly and Helios, in place", "Philly and Helios, by restart"),
)


# ── UniSched ──────────────────────────────────────────────────────────────────────────────────────


def unisched_cases(request: Request, _: Path) -> list[Case]:
    """Section IV: three workloads on 960 GPUs, and a made one on the 64 GPUs of its testbed."""
    told = {"sim.work_error": unisched.ESTIMATE_ERROR}

    def case(name: str, workload: str, seeds: Sequence[int], beside: Sequence[str], testbed: bool) -> Case:
        cluster = unisched.TESTBED if testbed else unisched.USUAL

        def samples(policy: str) -> list[RunSpec]:
            settings = told if policy == OURS else {}
            return [
                unisched.spec_of(
                    request,
                    unisched.Case(policy, workload.format(seed), policy, settings, cluster, seed=seed),
                )
                for seed in seeds
            ]

        return Case(name, beside, samples)

    recorded = unisched.workloads_of(request, unisched.PHILLY)
    return [
        *(case(f"Philly {name[2:]}", name, (0,), ("unisched",), testbed=False) for name in recorded),
        *(
            case(f"Venus {name[2:]}", name, VENUS_SEEDS, ("unisched",), testbed=False)
            for name in unisched.HELIOS
        ),
        *(
            case(
                f"testbed, {jobs} jobs",
                f"helios-testbed:jobs={jobs},seed={{}}",
                TESTBED_SEEDS,
                ("unisched", "hydra"),
                testbed=True,
            )
            for jobs in TESTBED_JOBS
        ),
    ]


def unisched_figures(result: Result) -> Figures:
    """Deadlines missed, by the rewards that they bring, and completion times of jobs without one."""
    best_effort_s = unisched.best_effort_jct_s(result)
    return {
        "missed_percent": 100.0 * (unisched.miss_rate(result) or 0.0),
        "best_effort_jct_h": np.nan if best_effort_s is None else best_effort_s / 3600,
        "avg_jct_h": float(result.jct_s.mean()) / 3600,
        "restarts_per_job": float(result.restarts.mean()),
    }


UNISCHED = Ground(
    unisched_cases,
    unisched_figures,
    {"missed_percent": 0.1, "best_effort_jct_h": 0.0},
    unisched.inputs_of,
    ["what deadlines are worth was chosen on seeds 5 and 6 of the testbed and of Venus, none of these"],
    without=tuple(f"testbed, {jobs} jobs" for jobs in TESTBED_JOBS),
)


# ── Lyra ──────────────────────────────────────────────────────────────────────────────────────────


def lyra_cases(request: Request, folder: Path) -> list[Case]:
    """Section 7: nodes of an inference cluster on loan, in the proportions of the paper."""
    eighth = replace(request, scale=LYRA_SHARE)

    def samples(policy: str) -> list[RunSpec]:
        seeds = seeds_of(request, LYRA_SEEDS)
        specs = [lyra.spec_of(eighth, lyra.Scheme(policy, rule="lyra"), folder, seed) for seed in seeds]
        return [replace(spec, window=LYRA_WINDOW) for spec in specs]

    return [Case("an eighth of the clusters", ("lyra",), samples)]


def lyra_figures(result: Result) -> Figures:
    """As table 5 has them, in seconds."""
    preempted = metrics.preemption_ratio(result.history.preemptions, len(result.jct_s))
    loan = result.lending["usage_on_loan"]
    return {
        "avg_queue_s": float(result.queue_s.mean()),
        "p95_queue_s": metrics.percentile(result.queue_s, 95),
        "avg_jct_s": float(result.jct_s.mean()),
        "p95_jct_s": metrics.percentile(result.jct_s, 95),
        "preempted_percent": 100.0 * preempted,
        "usage_on_loan": np.nan if loan is None else float(loan),
    }


def lyra_inputs(request: Request) -> list[Input]:
    """What is read."""
    real = request.data is not None
    series = f"a public series bent to the range of figure 1: {lyra.SERIES}" if real else "made"
    return [
        Input("jobs", False, "made, calibrated to table 5; confirms nothing about the paper's trace"),
        Input("demand of the inference service", real, series),
    ]


LYRA = Ground(
    lyra_cases,
    lyra_figures,
    {"avg_queue_s": 1.0, "avg_jct_s": 0.0, "preempted_percent": 0.1},
    lyra_inputs,
    [
        f"an eighth of the clusters and jobs, of which those of the first {LYRA_WINDOW:.0%} of the time come",
        "both are told durations and work exactly; seed 0, which was looked at before, is none of these",
    ],
)


# ── ONES ──────────────────────────────────────────────────────────────────────────────────────────


def ones_cases(request: Request, _: Path) -> list[Case]:
    """Section 4: an hour of arrivals on 16 to 64 GPUs; a change of size is in place for both."""
    seeds = seeds_of(request, tuple(ones.SEEDS))

    def case(gpus: int) -> Case:
        def samples(policy: str) -> list[RunSpec]:
            return [
                RunSpec(
                    f"ones-{gpus}",
                    f"{ones.TRACE}:hours=1,seed={seed}",
                    policy,
                    settings=ones.SETTINGS["ones"],
                )
                for seed in seeds
            ]

        return Case(f"{gpus} GPUs", ("ones",), samples)

    return [case(gpus) for gpus in ones.GPUS]


def ones_figures(result: Result) -> Figures:
    """As figure 15 has them."""
    return {
        "avg_jct_s": float(result.jct_s.mean()),
        "p99_jct_s": metrics.percentile(result.jct_s, 99),
        "avg_queue_s": float(result.queue_s.mean()),
        "restarts_per_job": float(result.restarts.mean()),
    }


def ones_inputs(_: Request) -> list[Input]:
    """What is read."""
    return [
        Input("jobs and their models", False, "made after table 2 of ONES, with the models' usual batches")
    ]


ONES = Ground(
    ones_cases,
    ones_figures,
    {"avg_jct_s": 0.0, "p99_jct_s": 0.0},
    ones_inputs,
    ["ones predicts the work that is left, stretto is told it"],
    without=("16 GPUs", "64 GPUs"),
)


# ── Cornucopia ────────────────────────────────────────────────────────────────────────────────────


def cornucopia_cases(request: Request, _: Path) -> list[Case]:
    """Section 5: jobs of Philly, in three draws, on 320 to 960 GPUs; changes cost nothing."""
    if request.data is None:
        files = [f"synthetic-philly:hours={cornucopia.MADE_HOURS},seed={seed}" for seed in range(3)]
    else:
        files = [
            str(data_set(request.data, "chronus", f"trace_job_Philly_{name}.csv.gz")) for name in PHILLY_FILES
        ]

    def case(gpus: int) -> Case:
        def samples(policy: str) -> list[RunSpec]:
            return [cornucopia.spec_of(request, gpus, f"{file}@cornucopia", policy) for file in files]

        return Case(f"{gpus} GPUs", ("cornucopia", "chronus"), samples)

    return [case(gpus) for gpus in cornucopia.CLUSTERS]


def cornucopia_figures(result: Result) -> Figures:
    """How long people wait, and how long jobs take."""
    waited_s = result.queue_s[result.requests.interactive[result.done]]
    return {
        "interactive_avg_queue_s": float(waited_s.mean()),
        "avg_jct_h": float(result.jct_s.mean()) / 3600,
        "p99_jct_h": metrics.percentile(result.jct_s, 99) / 3600,
        "preemptions_per_job": result.history.preemptions / len(result.jct_s),
    }


def cornucopia_inputs(request: Request) -> list[Input]:
    """What is read."""
    real = request.data is not None
    origin = "three draws of two weeks of Philly, as published with Chronus" if real else "made"
    return [Input("jobs", real, origin), Input("speed by number of GPUs", False, "the built-in catalogue")]


CORNUCOPIA = Ground(
    cornucopia_cases,
    cornucopia_figures,
    {"interactive_avg_queue_s": 1.0, "avg_jct_h": 0.0, "p99_jct_h": 0.0},
    cornucopia_inputs,
    [
        "cornucopia knows no durations; chronus does, once a job was profiled; stretto is told the work that "
        "is left"
    ],
    without=("320 GPUs",),
)
