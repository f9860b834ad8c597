"""Sia's workloads at a scale, and its way of pooling results over them."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np

from stretto.errors import InputError
from stretto.experiments.reproduction import Input, Request, data_set
from stretto.experiments.spec import RunSpec
from stretto.sim import metrics
from stretto.sim.result import Result

LEAST_JOBS = 40  # chosen: about so many arrivals of a workload are kept, however small the scale

JOBS = {"philly": 160, "helios": 160, "newtrace": 960}  # in each workload of a family (section 4.1)
PER_TABLE = ("avg_jct_h", "p99_jct_h", "makespan_h", "gpu_hours_per_job")


SCALE_NOTE = (
    "scale {scale:g}: that share of the files of each family, at least one. Of each it is that share of "
    "the arrivals, at least those of about 40 jobs"
)


def traces_of(request: Request, family: str) -> list[str]:
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


def scaled_trace(request: Request, factor: int) -> str:
    """The workload of a cluster that is so many times as large."""
    if request.data is None:
        return f"synthetic-sia:jobs={160 * factor},hours=8,seed=0"
    return str(data_set(request.data, "sia", "workloads", "scale", f"scale_{factor}x", "workload-1.csv"))


def spec_of(
    request: Request, cluster: str, trace: str, policy: str, jobs: int, fairness: bool = False
) -> RunSpec:
    """One simulation; `jobs`: how many the whole trace has."""
    profiles = str(data_set(request.data, "sia", "profiles")) if request.data is not None else ""
    window = min(1.0, max(request.scale, LEAST_JOBS / jobs))
    return RunSpec(cluster, trace, policy, profiles, fairness=fairness, window=window)


def pooled_results(
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
                specs.append(spec_of(request, cluster, trace, policy, JOBS[family], fairness))
    pooled: dict[tuple[str, str], list[Result]] = {}
    for key, result in zip(keys, request.run(specs), strict=True):
        pooled.setdefault(key, []).append(result)
    return pooled


def figures_of(results: Sequence[Result]) -> dict[str, float]:
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


def inputs_of(request: Request, traces: Mapping[str, Sequence[str]]) -> list[Input]:
    """What a table read, family by family."""
    real = request.data is not None
    inputs = [
        Input(f"{family}: {', '.join(short_name(trace) for trace in files)}", real, _ORIGIN[real])
        for family, files in traces.items()
    ]
    speeds = "measured profiles of Sia's authors" if real else "the built-in catalogue of models"
    return [*inputs, Input("speeds and convergence", real, speeds)]


_ORIGIN = {
    True: "sampled by Sia's authors from the production trace",
    False: "made from published statistics; confirms nothing about the production trace",
}


def short_name(trace: str) -> str:
    """A trace as a table names it."""
    return Path(trace).stem if "/" in trace else trace
