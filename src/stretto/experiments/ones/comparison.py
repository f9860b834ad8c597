"""Figures of ONES (SC 2021): completion, execution and queuing times, and the same on smaller clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.experiments.reproduction import Input, Made, Request, Row, rows_over_seeds
from stretto.experiments.spec import RunSpec
from stretto.model import FloatArray
from stretto.policies.registry import policy_names
from stretto.sim import metrics
from stretto.sim.result import Result

BASELINES = ("drl", "tiresias", "optimus")  # table 3
GPUS = (16, 32, 48, 64)  # figure 17
TRACE = "ones-usual-batch"
GROWN = "ones"  # the variant in which owners' batches grow with the GPUs that they ask for
JOBS_PER_HOUR = 95  # of these made workloads, about
SEEDS = range(3)  # of it; chosen
LEAST_JOBS = 40  # chosen: about so many arrivals are kept, however small the scale

# Section 4.2. Of completion times only that of ONES is printed, the others follow from the reductions.
AVG_JCT_S = 244.97
JCT_REDUCTION = {"drl": 0.269, "tiresias": 0.456, "optimus": 0.417}
EXECUTION_REDUCTION = {"tiresias": 0.539}
QUEUE_REDUCTION = {"drl": 0.313, "tiresias": 0.191, "optimus": 0.566}
SHORT_S, SHORT_SHARE = 200.0, 0.86
# From the reductions follow Tiresias's execution e and queue q: e + q is its completion time, and ONES's is
# (1 - 0.539) e + (1 - 0.191) q. From ONES's queue follows that of the others.
TIRESIAS_JCT_S = AVG_JCT_S / (1 - JCT_REDUCTION["tiresias"])
QUEUE_S = {
    "tiresias": (AVG_JCT_S - (1 - EXECUTION_REDUCTION["tiresias"]) * TIRESIAS_JCT_S)
    / (EXECUTION_REDUCTION["tiresias"] - QUEUE_REDUCTION["tiresias"])
}
QUEUE_S["ones"] = (1 - QUEUE_REDUCTION["tiresias"]) * QUEUE_S["tiresias"]
QUEUE_S |= {name: QUEUE_S["ones"] / (1 - QUEUE_REDUCTION[name]) for name in ("drl", "optimus")}
# Table 4, two-sided. Its second column is that of the opposite hypothesis; ours is half of the first.
WILCOXON_P = {"drl": 5.17e-4, "tiresias": 4.53e-8, "optimus": 7.55e-10}
SIGNIFICANT_P = 0.05  # section 4.2
# Section 4.4: what ONES's mean completion time is below that of the others.
REDUCTION_BY_GPUS = {
    16: {"drl": 0.19, "tiresias": 0.44, "optimus": 0.24},
    64: {"drl": 0.27, "tiresias": 0.46, "optimus": 0.42},
}

# Section 4.3: a checkpoint and restart takes more than 20 s, a change of size without stopping about 1 s.
START_S = "20"
FIXED_BATCH = {"sim.start_s": START_S, "sim.batches": "tuned"}
SETTINGS = {
    "ones": {"sim.start_s": START_S, "sim.resize_s": "1"},
    # Section 4.1: it goes by the "predicted remaining processing time"; its own paper fits losses and speeds.
    "optimus": FIXED_BATCH | {"policy.remaining": "loss", "policy.speeds": "fit"},
}


@dataclass(frozen=True, eq=False)
class Pooled:
    """The runs of one policy on the made traces of all seeds."""

    results: tuple[Result, ...]

    @property
    def jct_s(self) -> FloatArray:
        """(jobs of all seeds,)."""
        return np.concatenate([result.jct_s for result in self.results])

    @property
    def execution_s(self) -> FloatArray:
        """(jobs of all seeds,)."""
        return np.concatenate([result.executed_s[result.done] for result in self.results])

    @property
    def queue_s(self) -> FloatArray:
        """(jobs of all seeds,)."""
        return np.concatenate([result.queue_s for result in self.results])

    @property
    def paired_s(self) -> FloatArray:
        """Completion times in the order of the workloads: every job ends."""
        return np.concatenate(
            [metrics.completion_s(run.requests.submitted_s, run.completed_s) for run in self.results]
        )

    def of_seeds(self, column: str) -> list[float]:
        """The mean of a column of results, by seed."""
        return [metrics.mean(getattr(result, column)) for result in self.results]


def figure15(request: Request, trace: str = TRACE) -> Made:
    """Completion, execution and queuing times on 64 GPUs, and the tests of table 4."""
    runs = _compared(request, (64,), 3, trace)
    results = {policy: result for (_, policy), result in runs.items()}
    rows = []
    for policy, result in results.items():
        implied = AVG_JCT_S / (1 - JCT_REDUCTION.get(policy, 0.0))
        short = float((result.jct_s < SHORT_S).mean())
        rows += [
            Row(policy, "avg_jct_s", implied, metrics.mean(result.jct_s)),
            *rows_over_seeds(policy, "avg_jct_s", None, result.of_seeds("jct_s"))[1:],
            Row(policy, "avg_execution_s", implied - QUEUE_S[policy], metrics.mean(result.execution_s)),
            Row(policy, "avg_queue_s", QUEUE_S[policy], metrics.mean(result.queue_s)),
            Row(policy, "jobs_within_200_s", SHORT_SHARE if policy == "ones" else None, short),
        ]
    ours = results["ones"]
    for policy, other in results.items():
        if policy == "ones":
            continue
        name = f"ones less than {policy}"
        p = metrics.significance(ours.paired_s, other.paired_s)
        rows += [
            Row(name, "avg_jct_reduction", JCT_REDUCTION[policy], less(ours.jct_s, other.jct_s)),
            *rows_over_seeds(name, "avg_jct_reduction", None, less_by_seed(ours, other))[1:],
            Row(
                name,
                "avg_execution_reduction",
                EXECUTION_REDUCTION.get(policy),
                less(ours.execution_s, other.execution_s),
            ),
            Row(name, "avg_queue_reduction", QUEUE_REDUCTION[policy], less(ours.queue_s, other.queue_s)),
            # A p-value falls with the number of pairs, so that only the limit of the text can be compared.
            Row(name, "wilcoxon_p_one_sided", SIGNIFICANT_P, p, "at most"),
        ]
    printed = ", ".join(f"{WILCOXON_P[name] / 2:.3g} beside {name}" for name in BASELINES if name in results)
    limit = f"p-values are held against {SIGNIFICANT_P:g}, as in section 4.2; half of table 4's are {printed}"
    return _inputs(trace), rows, [*_notes(results), limit]


def figure17(request: Request, trace: str = TRACE) -> Made:
    """Mean completion time on 16 to 64 GPUs under the same jobs."""
    runs = _compared(request, GPUS, 1, trace)
    rows = []
    for (gpus, policy), result in runs.items():
        paper = None
        if gpus == max(GPUS):
            paper = AVG_JCT_S / (1 - JCT_REDUCTION.get(policy, 0.0))
        name = f"{gpus} GPUs, {policy}"
        rows.append(Row(name, "avg_jct_s", paper, metrics.mean(result.jct_s)))
        rows += rows_over_seeds(name, "avg_jct_s", None, result.of_seeds("jct_s"))[1:]
        rows.append(Row(name, "avg_queue_s", None, metrics.mean(result.queue_s)))
    for (gpus, policy), result in runs.items():
        if policy != "ones":
            figure = REDUCTION_BY_GPUS.get(gpus, {}).get(policy)
            ours, name = runs[gpus, "ones"], f"{gpus} GPUs: ones less than {policy}"
            rows.append(Row(name, "avg_jct_reduction", figure, less(ours.jct_s, result.jct_s)))
            rows += rows_over_seeds(name, "avg_jct_reduction", None, less_by_seed(ours, result))[1:]
    policies = {policy: result for (_, policy), result in runs.items()}
    return _inputs(trace), rows, _notes(policies)


def figure15_grown(request: Request) -> Made:
    """The same with batches that grow with the GPUs asked for."""
    return figure15(request, GROWN)


def figure17_grown(request: Request) -> Made:
    """Likewise."""
    return figure17(request, GROWN)


def _compared(
    request: Request, sizes: Sequence[int], hours: int, trace: str
) -> dict[tuple[int, str], Pooled]:
    """Every policy that there is on every size, by (GPUs, policy); ONES, the slowest, is started first."""
    keys = [(gpus, policy) for policy in policies_of() for gpus in sizes]
    runs = [(gpus, policy, seed) for gpus, policy in keys for seed in SEEDS]
    specs = [spec_of(request, gpus, hours, trace, policy, seed) for gpus, policy, seed in runs]
    results = dict(zip(runs, request.run(specs), strict=True))
    return {key: Pooled(tuple(results[*key, seed] for seed in SEEDS)) for key in keys}


def policies_of() -> list[str]:
    """ONES and those of its baselines that there are."""
    registered = policy_names()
    return ["ones", *(name for name in BASELINES if name in registered)]


def spec_of(request: Request, gpus: int, hours: int, trace: str, policy: str, seed: int) -> RunSpec:
    """One simulation of some hours of arrivals."""
    return RunSpec(
        cluster=f"ones-{gpus}",
        trace=f"{trace}:hours={hours},seed={seed}",
        policy=policy,
        settings=SETTINGS.get(policy, FIXED_BATCH),
        window=min(1.0, max(request.scale, LEAST_JOBS / (hours * JOBS_PER_HOUR))),
    )


def less(ours: FloatArray, theirs: FloatArray) -> float | None:
    """By what share of theirs our mean is lower."""
    baseline = metrics.mean(theirs)
    return 1.0 - metrics.mean(ours) / baseline if baseline > 0 else None


def less_by_seed(ours: Pooled, theirs: Pooled) -> list[float]:
    """By what share of theirs our mean is lower, on each made trace."""
    pairs = zip(ours.of_seeds("jct_s"), theirs.of_seeds("jct_s"), strict=True)
    return [1.0 - mean_s / baseline_s for mean_s, baseline_s in pairs]


def _inputs(trace: str) -> list[Input]:
    calibrated = (
        "Batches grow with the GPUs that owners ask for. The tail of the epochs and the GPUs are calibrated "
        "to Tiresias on 64 GPUs alone. These are its mean completion time and its share within 200 s, "
        "at a load of 0.8"
        if trace == GROWN
        else "Each job has its model's usual batch. The tail of the epochs, the GPUs asked for and the rate "
        "are calibrated to Tiresias on 64 GPUs alone. These are its execution and queuing times, "
        "343 and 108 s"
    )
    return [
        Input(
            "jobs",
            False,
            "the fifty kinds of task of table 2, equally often, in Poisson arrivals; the paper publishes no "
            f"trace. {calibrated}",
        ),
        Input("speeds and convergence", False, "the built-in catalogue, nearest models where it lacks one"),
        Input(
            "costs of changes",
            True,
            "section 4.3: 20 s for everybody to start or resume, and for changes of others; 1 s for ONES's",
        ),
    ]


def _notes(results: Mapping[str, Pooled]) -> list[str]:
    missing = [name for name in BASELINES if name not in results]
    runs = results["ones"].results
    jobs = sum(len(result.requests.jobs) for result in runs)
    notes = [
        f"{jobs} jobs of {len(runs)} made traces",
        "baselines keep the batch that was submitted; ONES begins with as much of it as fits on one GPU",
    ]
    if missing:
        notes.append(f"left out, since there is no such policy here: {', '.join(missing)}")
    if "tiresias" in results:
        notes.append("Tiresias is told nothing; ONES, what jobs report of their progress, loss and speed")
    if "optimus" in results:
        notes.append(
            "Optimus predicts what is left from losses, and speeds by its model; it decides every 600 s"
        )
    slow = float(np.median(np.concatenate([result.decision_ms for result in runs])))
    return [*notes, f"ONES: {slow:.0f} ms for the median decision of 10 generations"]
