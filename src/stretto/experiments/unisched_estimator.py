"""What UniSched's Estimator gets wrong, and how often its jobs are stopped (TPDS 2024, figures 7 and 8)."""

import numpy as np

from stretto.clusters import read_cluster
from stretto.estimate.learning_curves import all_epochs_to_reach
from stretto.estimate.placement_runtime import iteration_s
from stretto.experiments.reproduction import Input, Made, Request, Row
from stretto.experiments.unisched import (
    CLUSTERS,
    HELIOS,
    PHILLY,
    USUAL,
    Case,
    inputs_of,
    notes_of,
    run_cases,
    workloads_of,
)
from stretto.model import Cluster, FloatArray, Job, JobId
from stretto.sim.settings import Scaling, SimSettings
from stretto.sim.truth.scaling import Curves
from stretto.traces.helios_made import MODELS
from stretto.traces.recipes.unisched import curve_of

COUNTS = (2, 4, 8, 16)  # GPUs of figure 7a; beyond 8 on two nodes
WORST_MODEL = "bert-squad"  # of figure 7b
MOST_ERROR, WORST_ERROR = 0.05, 0.163  # of the text: on average, and of BERT on 16 GPUs
PROGRESS = (0.1, 0.2, 0.4, 0.6, 0.8)  # of a training, where its end is predicted
CURVES = 200  # made ones; chosen
STOPS = (2.0, 6.0)  # of a job with deadlines, on average, by workload


def figure7(request: Request) -> Made:
    """Errors of predicted speeds by number of GPUs, and of predicted ends by progress."""
    cluster = read_cluster(CLUSTERS[USUAL])
    errors = np.array([speed_errors(model, cluster) for model in MODELS])
    rows = [
        Row(f"a {count} GPUs", "mean_error", MOST_ERROR, float(error), "at most")
        for count, error in zip(COUNTS, errors.mean(axis=0), strict=True)
    ]
    rows += [
        Row(f"b BERT, {count} GPUs", "error", WORST_ERROR, float(error), "at most")
        for count, error in zip(COUNTS, speed_errors(WORST_MODEL, cluster), strict=True)
    ]
    for part in PROGRESS:
        wrong = epoch_errors(part, np.random.default_rng(0))
        rows.append(Row(f"c {part:.0%} of the training", "mean_error", None, float(wrong.mean())))
        rows.append(Row(f"c {part:.0%} of the training", "median_error", None, float(np.median(wrong))))
    inputs = [
        Input(
            "speeds by number of GPUs and nodes", False, "the built-in catalogue of models, one local batch"
        ),
        Input("learning curves", False, f"{CURVES} made ones, as of the jobs that stop by performance"),
    ]
    notes = (
        "a, b: equation 2 from one and two GPUs beside the speed of the catalogue; 16 GPUs are on two nodes",
        "the paper's error is of its testbed; in the catalogue all-reduce does not grow with the GPUs, as "
        "equation 2 has it",
        "c: the paper's curves are of real trainings, and it prints no numbers",
        "d, whole durations by class of job, is not made: those of jobs that stop by steps are known here",
    )
    return inputs, rows, notes


def speed_errors(model: str, cluster: Cluster) -> FloatArray:
    """(counts,) of equation 2: relative error of the time of an iteration at one local batch."""
    curves = Curves(cluster, SimSettings(scaling=Scaling.CATALOGUE))
    job = Job(JobId("1"), 0.0, 1, model=model, max_gpus=max(COUNTS))
    speeds = curves.of(job, np.ones(1))
    counts, node_gpus = np.array(COUNTS), int(cluster.gpus_per_node[0])
    # Speeds are relative, of samples a second: n times the local batch in the time of an iteration.
    near_s, far_s = (2.0 / float(per_s[0, 2]) for per_s in (speeds.per_s, speeds.spread_per_s))
    compute_s = 1.0 / float(speeds.per_s[0, 1])
    predicted_s = iteration_s(compute_s, near_s - compute_s, far_s - compute_s, counts, counts <= node_gpus)
    wrong: FloatArray = np.abs(predicted_s * speeds.per_s[0, counts] / counts - 1.0)
    return wrong


def epoch_errors(part: float, rng: np.random.Generator) -> FloatArray:
    """(curves,) relative error of the epoch that reaches the goal, once that part of the training is done."""
    made = [curve_of(rng) for _ in range(CURVES)]
    epochs = np.array([curve.epochs for curve, _ in made])
    predicted = all_epochs_to_reach(
        [curve.metrics[: int(part * curve.epochs)] for curve, _ in made],
        [goal.metric for _, goal in made],
        [goal.most_epochs for _, goal in made],
    )
    wrong: FloatArray = np.abs(np.array(predicted) / epochs - 1.0)
    return wrong


def figure8(request: Request) -> Made:
    """How often jobs are stopped and go on later, with deadlines and without."""
    workloads = workloads_of(request, (*HELIOS, *PHILLY))
    rows, stops = [], []
    for case, result in run_cases(request, [Case(name, name, "unisched", {}) for name in workloads]).items():
        due = np.isfinite(result.requests.deadline_s)
        stops.append(float(result.restarts[due].mean()))
        rows.append(Row(case.name, "restarts_with_deadline", None, stops[-1]))
        if not due.all():
            rows.append(Row(case.name, "restarts_best_effort", None, float(result.restarts[~due].mean())))
    for word, stated, ours in (("least", STOPS[0], min(stops)), ("most", STOPS[1], max(stops))):
        rows.append(Row("jobs with deadlines, over the workloads", word, stated, ours))
    return inputs_of(request), rows, notes_of(request)
