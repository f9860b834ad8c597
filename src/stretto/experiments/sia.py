"""Tables and figures of Sia (SOSP 2023): mixed and homogeneous clusters, fairness, scaling."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np

from stretto.experiments.reproduction import Input, Made, Request, Row, data_set
from stretto.experiments.spec import RunSpec
from stretto.model import InputError
from stretto.sim import metrics
from stretto.sim.result import Result

LEAST_JOBS = 40  # chosen: about so many arrivals of a workload are kept, however small the scale

# Table 3 as printed: (mean JCT h, p99 JCT h, makespan h, GPU-h a job, contention mean and max, restarts)
TABLE_3 = {
    ("philly", "sia"): (0.6, 9.5, 14.2, 4.0, 6.9, 31, 2.9),
    ("philly", "pollux"): (1.0, 14.9, 24.5, 5.6, 7.2, 42, 5.8),
    ("philly", "gavel"): (1.9, 30.0, 33.8, 9.0, 9.9, 56, 5.7),
    ("helios", "sia"): (0.7, 10.9, 14.9, 4.8, 7.4, 32, 3.4),
    ("helios", "pollux"): (1.0, 15.0, 25.5, 5.9, 6.9, 47, 5.3),
    ("helios", "gavel"): (2.5, 38.7, 43.0, 12.1, 9.2, 48, 7.5),
    ("newtrace", "sia"): (0.7, 4.6, 52.2, 3.0, 13, 69, 5.0),
    ("newtrace", "pollux"): (1.5, 10.3, 62.3, 3.4, 22, 85, 5.4),
    ("newtrace", "gavel"): (11.3, 98.1, 110.0, 6.4, 96, 243, 4.5),
}
# Table 4 as printed: (mean JCT h, p99 JCT h, makespan h, GPU-h a job, restarts or None)
TABLE_4 = {
    "sia": (1.9, 18.1, 21.4, 8.4, 2.6),
    "pollux": (2.0, 19.3, 21.7, 8.6, 5.1),
    "shockwave": (3.6, 32.8, 35.0, 12.5, None),
    "themis": (5.4, 44.7, 49.7, 17.2, None),
    "gavel": (4.3, 37.1, 44.3, 15.3, None),
}
# Section 5.5, Helios on the mixed cluster: (worst finish-time fairness, share of unfairly served jobs)
FAIRNESS = {"sia": (1.2, 0.003), "pollux": (4.6, 0.28), "gavel": (27.8, 0.15), "shockwave": (3.3, 0.14)}
# Section 5.6: decision time on 64 GPUs, median and 95th percentile; larger clusters appear only in a plot.
DECISION_MS = {64: (96.0, 426.0)}
# Section 5.7: the mean JCT with bootstrapped models beside the other two; "8% worse" is of the JCT, and
# "30% better than No Prof" is read as a mean JCT that is 30 % shorter.
WORSE_THAN_ORACLE = 0.08
BETTER_THAN_NO_PROF = 0.30
MODES = ("oracle", "bootstrap", "no-prof")

JOBS = {"philly": 160, "helios": 160, "newtrace": 960}  # in each workload of a family (section 4.1)
PER_TABLE = ("avg_jct_h", "p99_jct_h", "makespan_h", "gpu_hours_per_job")


def table3(request: Request) -> Made:
    """Three families of workloads under three policies on 64 GPUs of three types."""
    families = ("philly", "helios", "newtrace")
    policies = ("sia", "pollux", "gavel")
    traces = {family: _traces(request, family) for family in families}
    pooled = _pooled(request, "sia-hetero-64", traces, policies)
    rows = []
    for key, paper in TABLE_3.items():
        ours = _figures(pooled[key])
        names = (*PER_TABLE, "avg_contention", "max_contention", "restarts_per_job")
        rows += [
            Row(f"{key[0]}/{key[1]}", name, value, ours[name])
            for name, value in zip(names, paper, strict=True)
        ]
    for family in families:
        rows += _factors(family, {policy: pooled[family, policy] for policy in policies})
    return _inputs(request, traces), rows, (_SCALE_NOTE.format(scale=request.scale),)


def table4(request: Request) -> Made:
    """Philly's workloads on 64 T4 GPUs."""
    traces = {"philly": _traces(request, "philly")}
    pooled = _pooled(request, "sia-homo-64", traces, tuple(TABLE_4))
    rows = []
    for policy, paper in TABLE_4.items():
        ours = _figures(pooled["philly", policy])
        names = (*PER_TABLE, "restarts_per_job")
        rows += [
            Row(f"philly/{policy}", name, value, ours[name]) for name, value in zip(names, paper, strict=True)
        ]
    return _inputs(request, traces), rows, (_SCALE_NOTE.format(scale=request.scale), _RIGID_NOTE)


def fairness(request: Request) -> Made:
    """Finish-time fairness on Helios's workloads (section 5.5)."""
    traces = {"helios": _traces(request, "helios")}
    pooled = _pooled(request, "sia-hetero-64", traces, tuple(FAIRNESS), fairness=True)
    rows = []
    for policy, (worst, unfair) in FAIRNESS.items():
        rho = np.concatenate(
            [result.fairness for result in pooled["helios", policy] if result.fairness is not None]
        )
        rows += [
            Row(f"helios/{policy}", "worst_ftf", worst, float(np.nanmax(rho))),
            Row(f"helios/{policy}", "unfair_fraction", unfair, metrics.unfair_fraction(rho)),
        ]
    return _inputs(request, traces), rows, (_SCALE_NOTE.format(scale=request.scale), _RIGID_NOTE)


def scaling(request: Request) -> Made:
    """Decision times of Sia from 64 to 2,048 GPUs, on workloads scaled with the cluster (section 5.6)."""
    factors = [factor for factor in (1, 2, 4, 8, 16, 32) if factor == 1 or factor <= 32 * request.scale]
    specs = [
        _spec(request, f"sia-hetero-{64 * factor}", _scaled_trace(request, factor), "sia", 160 * factor)
        for factor in factors
    ]
    rows, inputs = [], []
    for spec, result in zip(specs, request.run(specs, workers=1), strict=True):
        note = f"{len(result.requests.jobs)} jobs on {spec.cluster}"
        inputs.append(Input(_short(spec.trace), request.data is not None, note))
        gpus = result.cluster.total_gpus
        median, p95 = DECISION_MS.get(gpus, (None, None))
        rows += [
            Row(
                f"{gpus} GPUs", "policy_ms_p50", median, metrics.percentile(result.decision_ms, 50), "at most"
            ),
            Row(f"{gpus} GPUs", "policy_ms_p95", p95, metrics.percentile(result.decision_ms, 95), "at most"),
            Row(f"{gpus} GPUs", "policy_ms_max", None, float(result.decision_ms.max())),
        ]
    return (
        inputs,
        rows,
        ("Decision times depend on the machine; those of the paper, of another one, are taken as limits.",),
    )


def modes(request: Request) -> Made:
    """Sia with true, bootstrapped and unprofiled models of throughput on Helios (section 5.7)."""
    traces = _traces(request, "helios")
    runs = [(mode, trace) for mode in MODES for trace in traces]
    specs = [
        replace(
            _spec(request, "sia-hetero-64", trace, "sia", JOBS["helios"]), settings={"estimate.mode": mode}
        )
        for mode, trace in runs
    ]
    pooled: dict[str, list[Result]] = {mode: [] for mode in MODES}
    for (mode, _), result in zip(runs, request.run(specs), strict=True):
        pooled[mode].append(result)
    figures = {mode: _figures(results) for mode, results in pooled.items()}
    rows = [Row(mode, name, None, ours[name]) for mode, ours in figures.items() for name in PER_TABLE]
    jct_h = {mode: ours["avg_jct_h"] for mode, ours in figures.items()}
    rows += [
        Row(
            "bootstrap more than oracle",
            "avg_jct_increase",
            WORSE_THAN_ORACLE,
            jct_h["bootstrap"] / jct_h["oracle"] - 1,
        ),
        Row(
            "bootstrap less than no-prof",
            "avg_jct_reduction",
            BETTER_THAN_NO_PROF,
            1 - jct_h["bootstrap"] / jct_h["no-prof"],
        ),
    ]
    notes = (
        _SCALE_NOTE.format(scale=request.scale),
        "profiles cost no time here; the paper counts about 0.1 GPU-hours for each job",
    )
    return _inputs(request, {"helios": traces}), rows, notes


_SCALE_NOTE = (
    "scale {scale:g}: that share of the files of each family, at least one, and of the time over which "
    "the jobs of each arrive, at least that of about 40 jobs"
)


_RIGID_NOTE = (
    "gavel, themis and shockwave keep what jobs ask for, in rounds of 360 s; themis is Gavel's programme of "
    "finish-time fairness, shockwave has λ = 10 and k = 0.1, as Sia's (10, 1e-1) is read here"
)


def _traces(request: Request, family: str) -> list[str]:
    """The workloads of one family that this scale runs."""
    if request.data is None:
        count, hours = (2, 48) if family == "newtrace" else (5, 8)
        first_seed = {"philly": 0, "helios": 100, "newtrace": 200}[family]
        files = [
            f"synthetic-sia:jobs={JOBS[family]},hours={hours},seed={first_seed + number}"
            for number in range(count)
        ]
    else:
        folder = data_set(request.data, "sia", "workloads", family)
        files = sorted(str(path) for path in folder.glob("workload-*.csv"))
        if not files:
            raise InputError(f"{folder}: expected files workload-*.csv, found none")
    return files[: max(1, ceil(request.scale * len(files)))]


def _scaled_trace(request: Request, factor: int) -> str:
    if request.data is None:
        return f"synthetic-sia:jobs={160 * factor},hours=8,seed=0"
    return str(data_set(request.data, "sia", "workloads", "scale", f"scale_{factor}x", "workload-1.csv"))


def _spec(
    request: Request, cluster: str, trace: str, policy: str, jobs: int, fairness: bool = False
) -> RunSpec:
    """One simulation; `jobs`: how many the whole trace has."""
    profiles = str(data_set(request.data, "sia", "profiles")) if request.data is not None else ""
    window = min(1.0, max(request.scale, LEAST_JOBS / jobs))
    return RunSpec(cluster, trace, policy, profiles, fairness=fairness, window=window)


def _pooled(
    request: Request,
    cluster: str,
    traces: Mapping[str, Sequence[str]],
    policies: Sequence[str],
    fairness: bool = False,
) -> dict[tuple[str, str], list[Result]]:
    """The results of every family under every policy."""
    keys, specs = [], []
    for policy in sorted(policies, key=lambda name: name != "pollux"):  # the slowest first: cores stay busy
        for family, files in traces.items():
            for trace in files:
                keys.append((family, policy))
                specs.append(_spec(request, cluster, trace, policy, JOBS[family], fairness))
    pooled: dict[tuple[str, str], list[Result]] = {}
    for key, result in zip(keys, request.run(specs), strict=True):
        pooled.setdefault(key, []).append(result)
    return pooled


def _figures(results: Sequence[Result]) -> dict[str, float]:
    """Sia's way of pooling: all jobs of all traces together for JCT, means over traces for the rest."""
    jct_s = np.concatenate([result.jct_s for result in results])
    summaries = [result.summary() for result in results]

    def mean(name: str) -> float:
        return float(np.mean([summary[name] for summary in summaries]))

    return {
        "avg_jct_h": float(jct_s.mean()) / 3600,
        "p99_jct_h": metrics.index_percentile(jct_s, 0.99) / 3600,
        "makespan_h": mean("makespan_s") / 3600,
        "gpu_hours_per_job": mean("gpu_hours_per_job"),
        "avg_contention": mean("avg_contention"),
        "max_contention": float(max(summary["max_contention"] for summary in summaries)),
        "restarts_per_job": mean("restarts_per_job"),
    }


def _factors(family: str, by_policy: Mapping[str, Sequence[Result]]) -> list[Row]:
    """How many times longer the others take than Sia, beside the paper's factors."""
    ours = {policy: _figures(results) for policy, results in by_policy.items()}
    return [
        Row(
            f"{family}: {policy} / sia",
            name,
            TABLE_3[family, policy][column] / TABLE_3[family, "sia"][column],
            ours[policy][name] / ours["sia"][name],
        )
        for policy in by_policy
        if policy != "sia"
        for column, name in enumerate(("avg_jct_h", "p99_jct_h"))
    ]


def _inputs(request: Request, traces: Mapping[str, Sequence[str]]) -> list[Input]:
    real = request.data is not None
    found = [
        Input(f"{family}: {', '.join(_short(trace) for trace in files)}", real, _ORIGIN[real])
        for family, files in traces.items()
    ]
    speeds = "measured profiles of Sia's authors" if real else "the built-in catalogue of models"
    return [*found, Input("speeds and convergence", real, speeds)]


_ORIGIN = {
    True: "sampled by Sia's authors from the production trace",
    False: "made from published statistics; confirms nothing about the production trace",
}


def _short(trace: str) -> str:
    return Path(trace).stem if "/" in trace else trace
