"""One scheduler for all: which policy serves every class of jobs, and what each specialist does to others.

Interactive sessions, deadlines, elastic, rigid, hybrid-parallel and urgent trainings share a mixed cluster.
An inference service may take back a part of it. Each class has a metric of its own.
*Behind* is by how much a policy is worse there than the best of all. The row `worst class` is the largest of
these. No paper has this table, so that nothing is compared with one.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from stretto.experiments.bounds import with_bounds
from stretto.experiments.draws import seeds_of
from stretto.experiments.reproduction import Input, Made, Request, Row, rows_over_seeds
from stretto.experiments.spec import RunSpec
from stretto.model import BoolArray, FloatArray, JobId
from stretto.sim import metrics
from stretto.sim.result import Result
from stretto.traces.mixed_workload import SHARES, class_of

CLUSTER, TRACE = "mixed-64", "mixed"
# ONES is not among them: its search begins anew for each level of the queues, at the end of every epoch.
POLICIES = ("stretto", "sia", "unisched", "lyra", "cornucopia", "pollux", "fifo")
JOBS = {"half load": 160, "full load": 320, "overload": 480}  # in eight hours; chosen
SEEDS = tuple(range(10))
MOST = {"pollux": 3}  # made workloads of a policy whose simulations take minutes
SETTINGS = {
    "lend.rule": "lyra",
    "sim.resize_s": "1",  # where a job stays on its GPU type, for every policy
    "sim.work_error": "0.1",  # of the work that is left, as policies are told it; chosen
    "sim.duration_error": "0.1",  # of the duration that owners state; chosen
}
QUEUES = """\
queues:
  - {name: vision, quota_gpus: 38, borrow_gpus: 58}
  - {name: speech, quota_gpus: 26, borrow_gpus: 70}
"""
OF_CLASSES = {  # what a class is judged by: the less the better
    "session": "avg_queue_s",
    "strict": "missed_percent",
    "soft": "rewards_lost_percent",
    **dict.fromkeys(("rigid", "hybrid", "urgent", "elastic"), "avg_jct_s"),
}
# By so much two figures may differ and count as equal: a second of waiting, a job in a hundred.
SMALLEST = {"avg_queue_s": 1.0, "missed_percent": 1.0, "rewards_lost_percent": 1.0, "avg_jct_s": 0.0}
ALL = "all jobs"


def one_for_all(request: Request) -> Made:
    """Every policy at three loads."""
    seeds = seeds_of(request, SEEDS)
    of_policy = {policy: seeds[: MOST.get(policy)] for policy in POLICIES}
    rows: list[Row] = []
    with TemporaryDirectory(prefix="stretto-mixed-") as folder:
        queues = Path(folder) / "queues.yaml"
        queues.write_text(QUEUES, encoding="utf-8")
        for load, jobs in JOBS.items():
            specs = [
                spec_of(policy, jobs, seed, queues)
                for policy, of_seeds in of_policy.items()
                for seed in of_seeds
            ]
            figures = map(figures_of, with_bounds(request.run(specs), specs))
            rows += rows_of(
                load, {policy: list(islice(figures, len(of_seeds))) for policy, of_seeds in of_policy.items()}
            )
    sources = [
        Input(
            "jobs of eight hours",
            False,
            "made: " + ", ".join(f"{share:.0%} {k}" for k, share in SHARES.items()),
        ),
        Input("demand of the inference service", False, "made, with the seed of the run"),
    ]
    notes = [
        f"{len(seeds)} made workloads; plus_minus is half of Student's 95 % interval of their mean",
        *(
            f"{policy}: the first {most} of these, since a simulation of it takes minutes"
            for policy, most in MOST.items()
            if most < len(seeds)
        ),
        "behind: by how many per cent the mean is above the best policy's, on workloads that both have, "
        "beyond what counts as equal",
        "ones is not among them: its search, made anew for each level of the queues, takes far longer",
        "work that is left and durations are told to every policy with the same error of 10 %",
    ]
    return sources, rows, notes


def spec_of(policy: str, jobs: int, seed: int, queues: Path) -> RunSpec:
    """One simulation."""
    return RunSpec(
        CLUSTER, f"{TRACE}:jobs={jobs}", policy, seed=seed, settings=SETTINGS, constraints=str(queues)
    )


def figures_of(result: Result) -> Mapping[tuple[str, str], float]:
    """By class and metric. Jobs that never ended count with the time that they had."""
    jobs = result.requests.jobs
    kinds = np.array([class_of(JobId(job.id)) for job in jobs])
    end_s = np.nanmax(result.completed_s)
    jct_s = np.where(result.done, result.completed_s, end_s) - result.requests.submitted_s
    queue_s = np.maximum(jct_s - result.executed_s, 0.0)
    figures: dict[tuple[str, str], float] = {}
    for kind, metric in OF_CLASSES.items():
        figures[kind, metric] = _of_class(result, metric, kinds == kind, jct_s, queue_s)
    figures[ALL, "avg_jct_s"] = float(jct_s.mean())
    figures[ALL, "p99_jct_s"] = float(np.quantile(jct_s, 0.99))
    figures[ALL, "over_bound"] = float(jct_s.mean() / result.bounds.avg_jct_s)
    figures[ALL, "restarts"] = float(result.restarts.mean())
    figures[ALL, "policy_ms_median"] = float(np.median(result.decision_ms))
    for queue in ("vision", "speech"):
        mine = np.array([job.queue == queue for job in jobs])
        figures[f"queue {queue}", "avg_jct_s"] = float(jct_s[mine].mean())
    summary = result.summary()
    for name in ("usage_on_loan", "loan_preemption_ratio", "lender_shortfall_server_s"):
        value = summary[name]
        figures["lender", name] = float("nan") if value is None else float(value)
    return figures


def _of_class(result: Result, metric: str, mine: BoolArray, jct_s: FloatArray, queue_s: FloatArray) -> float:
    if metric == "avg_queue_s":
        return float(queue_s[mine].mean())
    if metric == "avg_jct_s":
        return float(jct_s[mine].mean())
    rows = np.flatnonzero(mine)
    completed_s = result.completed_s[rows]
    if metric == "missed_percent":
        late = ~(completed_s <= result.requests.deadline_s[rows])
        return 100.0 * float(late.mean())
    shares = metrics.share_of_rewards([result.requests.jobs[row] for row in rows.tolist()], completed_s)
    return 100.0 * metrics.weighted_deadline_miss_rate(shares, most=1.0)


def rows_of(load: str, of_policy: Mapping[str, Sequence[Mapping[tuple[str, str], float]]]) -> list[Row]:
    """The matrix of one load, and how far each policy is behind the best."""
    rows: list[Row] = []
    for policy, of_seeds in of_policy.items():
        for kind, metric in of_seeds[0]:
            values = [figures[kind, metric] for figures in of_seeds]
            if np.isfinite(values).all():
                rows += rows_over_seeds(f"{load}, {policy}: {kind}", metric, None, values)
    behind = behind_of(of_policy)
    for policy, of_classes in behind.items():
        for kind, percent in of_classes.items():
            rows.append(Row(f"{load}, {policy}: {kind}", "behind_percent", None, percent))
        worst = max(of_classes.values())
        rows.append(Row(f"{load}, {policy}: worst class", "behind_percent", None, worst))
    return rows


def behind_of(
    of_policy: Mapping[str, Sequence[Mapping[tuple[str, str], float]]],
) -> Mapping[str, Mapping[str, float]]:
    """By policy and class: per cent above the best mean of all policies; what is below SMALLEST is equal.

    Two policies are compared on the workloads that both have, which are the first of the other.
    """
    behind: dict[str, dict[str, float]] = {}
    for policy, ours in of_policy.items():
        behind[policy] = {}
        for kind, metric in OF_CLASSES.items():
            percents = []
            for theirs in of_policy.values():
                both = [
                    (own[kind, metric], other[kind, metric]) for own, other in zip(ours, theirs, strict=False)
                ]
                value, best = np.mean(both, axis=0).tolist()
                percents.append(percent_behind(value, best, SMALLEST[metric]))
            behind[policy][kind] = max(percents)
    return behind


def percent_behind(value: float, best: float, smallest: float) -> float:
    """By how many per cent a figure is above the best one; two that are below `smallest` are equal."""
    least = max(best, smallest)
    return 100.0 * max(value - least, 0.0) / least
