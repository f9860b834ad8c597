"""Why Cornucopia is needed, and what its parts do: figures 1, 7 and 8, tables 1 and 3, its profile."""

import csv
import gzip
from collections.abc import Sequence

import numpy as np

from stretto.catalogue import nearest_model
from stretto.clusters import read_cluster
from stretto.estimate.throughput import throughput
from stretto.experiments.cornucopia.comparison import (
    CLUSTERS,
    JOBS,
    OTHERS,
    SATURN,
    VENUS,
    helios_trace,
    mean_inflation,
    spec_of,
    trace_of,
    true_durations_s,
    whole_workload,
)
from stretto.experiments.draws import SEEDS, draws_words, merged, seeds_of
from stretto.experiments.reproduction import Input, Made, Request, Row, data_set, rows_over_seeds
from stretto.model import FloatArray, IntArray, Job
from stretto.policies.cornucopia.profiler import LINEAR_WITHIN, is_linear, scaling_factors
from stretto.sim import metrics
from stretto.sim.result import Result
from stretto.sim.settings import Scaling, SimSettings
from stretto.sim.truth.scaling import Curves

INFLATED = 7.2  # section 3.2: the mean completion time "can be increased by 7.2X"
# Table 1: linear jobs, sub-linear ones, and their GPUs beyond proportional gains, by trace
SUBLINEAR = {"philly": (20_764, 176, 872), "venus": (10_902, 122, 3_752), "saturn": (69_433, 254, 7_992)}
# Table 3: interactive and batch jobs and their GPU minutes, by the share of batch jobs that was relabelled
COUNTS = {
    0.0: (6_829, 24_111, 187_421, 22_551_101),
    0.05: (8_034, 22_906, 1_151_599, 21_586_923),
    0.1: (9_240, 21_700, 2_257_214, 20_481_308),
}
INTERACTIVE_MIN = 30.0  # up to this run time a job of MIX2 is interactive
SHORT_S, LONG_S = 3_600.0, 36_000.0  # chosen: durations that bound the jobs of figure 7
USED_ON = 640  # GPUs; figure 8
PROFILED_GPUS, PROFILE_S = 64, 314.0  # section 4.3: of ResNet-101 at batch 32, five batches at each count
PROFILE_BATCHES, PROFILE_BATCH, PROFILE_MODEL = 5, 32, "resnet101"
RESIZE_S = 10.0  # section 4.3: a change of size takes less than this


def figure1(request: Request) -> Made:
    """Shortest remaining time first with and without interactive jobs before all others."""
    trace = trace_of(request)
    duration_s = true_durations_s(whole_workload(trace))
    names = ("srtf", "srtf, interactive first")
    keys = [(gpus, name) for gpus in CLUSTERS for name in names]
    specs = [spec_of(request, gpus, trace, name) for gpus, name in keys]
    results = dict(zip(keys, request.run(specs), strict=True))
    rows = []
    for (gpus, name), result in results.items():
        label = f"{gpus} GPUs: {name}"
        rows.append(Row(label, "avg_jct_h", None, metrics.mean(result.jct_s) / 3_600))
        rows.append(Row(label, "avg_jct_inflation", None, mean_inflation(result, duration_s)))
    for gpus in CLUSTERS:
        plain, first = (metrics.mean(results[gpus, name].jct_s) for name in names)
        paper = INFLATED if gpus == CLUSTERS[0] else None
        rows.append(Row(f"{gpus} GPUs: interactive first", "avg_jct_over_srtf", paper, first / plain))
    notes = (
        "the paper names neither the cluster nor what 7.2 is a multiple of. Here it is beside the mean "
        "completion time on the smallest cluster over that of srtf without priorities",
        "by the labels that give the paper's counts, interactive jobs are the shortest, which srtf serves "
        "first in any case: priority can change little",
    )
    return _inputs(request), rows, notes


def table1(request: Request) -> Made:
    """Jobs with GPUs beyond the point up to which each brings as much as the second did, and those GPUs."""
    curves = Curves(read_cluster(f"gpu8-{CLUSTERS[-1]}"), SimSettings(scaling=Scaling.CATALOGUE))
    draws = len(seeds_of(request))
    rows = [
        row
        for name, traces in traces_of_table1(request).items()
        for row in merged([_rows_of_table1(name, whole_workload(trace).jobs, curves) for trace in traces])
    ]
    notes = (
        f"Venus and Saturn: {draws_words(draws)}",
        "the paper's curves are not published. The catalogue's were measured on up to 8 GPUs a node. By "
        "them a job is linear up to the last GPU that brings 95 % of what the second did",
        "the paper has 20,940 jobs of Philly here and 30,940 in its table 3, for the same trace",
    )
    made = Input("jobs of Venus and Saturn", False, f"{VENUS}, {SATURN}, {draws} draws of each")
    return [*_inputs(request), made], rows, notes


def traces_of_table1(request: Request) -> dict[str, list[str]]:
    """All draws of each trace, by the names of the table; Philly's jobs are one published list."""
    seeds = seeds_of(request)
    return {"philly": [trace_of(request)]} | {
        name: [helios_trace(made, seed) for seed in seeds]
        for name, made in (("venus", VENUS), ("saturn", SATURN))
    }


def _rows_of_table1(name: str, jobs: Sequence[Job], curves: Curves) -> list[Row]:
    beyond = gpus_beyond_linear(jobs, curves)
    ours = (int((beyond == 0).sum()), int((beyond > 0).sum()), int(beyond.sum()))
    metrics_of = ("linear_jobs", "sublinear_jobs", "sublinear_gpus")
    return [
        Row(name, metric, float(paper), float(value))
        for metric, paper, value in zip(metrics_of, SUBLINEAR[name], ours, strict=True)
    ]


def gpus_beyond_linear(jobs: Sequence[Job], curves: Curves, within: float = LINEAR_WITHIN) -> IntArray:
    """(jobs,) GPUs that each asks for beyond those that bring as much as its second does, within a part."""
    beyond: dict[tuple[str, int], int] = {}
    for job in jobs:
        key = (job.model, job.gpus)
        if key not in beyond:
            factors = scaling_factors(curves.of(job, np.ones(1)).per_s[0], job.gpus)
            counts = range(1, job.gpus)
            linear = next((count for count in counts if not is_linear(factors[count], within)), job.gpus)
            beyond[key] = job.gpus - linear
    return np.array([beyond[job.model, job.gpus] for job in jobs], dtype=np.int64)


def table3(request: Request) -> Made:
    """Counts and GPU time by label, of all rows of the file, also those that ask for no GPU."""
    gpus, duration_min = _rows_of_philly(request)
    short = duration_min <= INTERACTIVE_MIN
    rows = []
    for share, published in COUNTS.items():
        interactive = short.copy()
        draw = np.random.default_rng([0, 5])
        batch = np.flatnonzero(~short)
        interactive[draw.choice(batch, int(share * len(batch)), replace=False)] = True
        gpu_min = gpus * duration_min
        ours = (
            int(interactive.sum()),
            int((~interactive).sum()),
            float(gpu_min[interactive].sum()),
            float(gpu_min[~interactive].sum()),
        )
        metrics_of = ("interactive_jobs", "batch_jobs", "interactive_gpu_min", "batch_gpu_min")
        for metric, paper, value in zip(metrics_of, published, ours, strict=True):
            rows.append(Row(f"{share:.0%} relabelled", metric, float(paper), float(value)))
    notes = (
        f"interactive is what runs for at most {INTERACTIVE_MIN:g} minutes, by which all counts are "
        "exact. Which jobs were relabelled is not published, so that their GPU time differs",
    )
    return _inputs(request)[:1], rows, notes


def _rows_of_philly(request: Request) -> tuple[FloatArray, FloatArray]:
    """(rows,) GPUs asked for and run time in minutes."""
    if request.data is None:
        workload = whole_workload(trace_of(request))
        gpus = np.array([job.gpus for job in workload.jobs], dtype=np.float64)
        return gpus, true_durations_s(workload) / 60.0
    path = data_set(request.data, "chronus", "trace_job_Philly_MIX2.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        read = [(float(row["num_gpu"]), float(row["duration"])) for row in csv.DictReader(file)]
    columns = np.array(read).T
    return columns[0], columns[1]


def figure7(request: Request) -> Made:
    """Which jobs gain and which lose: completion times of short and long jobs on the largest cluster."""
    trace = trace_of(request)
    names = ("srtf", "synergy", "cornucopia")
    specs = [spec_of(request, CLUSTERS[-1], trace, name) for name in names]
    duration_s = true_durations_s(whole_workload(trace))
    rows = []
    for name, result in zip(names, request.run(specs), strict=True):
        alone_s = duration_s[: len(result.done)][result.done]
        classes = {
            "jobs up to 1 h": alone_s <= SHORT_S,
            "jobs of 1 to 10 h": (alone_s > SHORT_S) & (alone_s <= LONG_S),
            "jobs above 10 h": alone_s > LONG_S,
        }
        for of, chosen in classes.items():
            jct_s = result.jct_s[chosen]
            rows.append(Row(f"{name}: {of}", "avg_jct_h", None, metrics.mean(jct_s) / 3_600))
            rows.append(Row(f"{name}: {of}", "median_jct_h", None, metrics.percentile(jct_s, 50) / 3_600))
    notes = (
        "the figure has no numbers. Its text says that cornucopia gains on shorter jobs, and loses on "
        "some longer ones, which come to the lowest queue",
    )
    return _inputs(request), rows, notes


def figure8(request: Request) -> Made:
    """GPU time in use over that of the cluster, while jobs of Venus arrive."""
    names = ("cornucopia", *(name for name in OTHERS if name != "synergy"))
    keys = [(name, seed) for name in names for seed in SEEDS]
    specs = [spec_of(request, USED_ON, helios_trace(VENUS, seed), name) for name, seed in keys]
    results = dict(zip(keys, request.run(specs), strict=True))
    rows = [
        row
        for name in names
        for row in rows_over_seeds(
            f"{USED_ON} GPUs: {name}",
            "utilization_while_jobs_arrive",
            None,
            [used_share(results[name, seed]) for seed in SEEDS],
        )
    ]
    notes = (
        "the figure has no numbers; its text says that elastic policies (cornucopia, elasticflow) use more "
        "of the cluster than those that are not",
    )
    about = f"{len(SEEDS)} draws of {VENUS}, calibrated to what is published of Venus"
    return [Input("jobs", False, about)], rows, notes


def used_share(result: Result) -> float:
    """GPU time held from the first submission to the last, over that of the cluster."""
    submitted_s = result.requests.submitted_s
    from_s, to_s = float(submitted_s.min()), float(submitted_s.max())
    _, start_s, end_s, _, gpus = result.history.columns()
    held_s = np.clip(np.minimum(end_s, to_s) - np.maximum(start_s, from_s), 0.0, None)
    return float((gpus * held_s).sum() / (result.cluster.total_gpus * max(to_s - from_s, 1.0)))


def profile(request: Request) -> Made:
    """The cost of a ramp-up profile of 64 counts, from step times of the catalogue."""
    model = nearest_model(PROFILE_MODEL)
    params = model.on("v100").params
    counts = np.arange(1, PROFILED_GPUS + 1)
    per_s = throughput(params, -(-counts // 8), counts, PROFILE_BATCH)
    trains_s = float((PROFILE_BATCHES * PROFILE_BATCH * counts / per_s).sum())
    name = f"{PROFILED_GPUS} counts, {model.name} in the place of {PROFILE_MODEL}"
    rows = [
        Row(f"{name}: batches alone", "profile_s", PROFILE_S, trains_s, "at most"),
        Row(f"{name}: with changes of size", "profile_s", None, trains_s + RESIZE_S * PROFILED_GPUS),
        Row("a change of size, for the paper's figure to come out", "resize_s", RESIZE_S,
            (PROFILE_S - trains_s) / PROFILED_GPUS, "at most"),
    ]  # fmt: skip
    notes = (
        f"{PROFILE_BATCHES} batches of {PROFILE_BATCH} on each GPU at each count. The paper says that a "
        f"change of size takes less than {RESIZE_S:g} s. Our `policy.profile=ramp` takes 4.9 s a count, "
        f"which is the paper's {PROFILE_S:g} s over {PROFILED_GPUS}",
    )
    return [Input("step times", False, "the built-in catalogue, V100")], rows, notes


def _inputs(request: Request) -> list[Input]:
    real = request.data is not None
    trace = f"{JOBS:,} jobs of Philly as published with Chronus, MIX2" if real else "synthetic-philly"
    return [
        Input("arrivals, requests, durations", real, trace),
        Input("labels", False, "interactive up to 30 minutes"),
    ]
