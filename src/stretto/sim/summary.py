"""The figures of a summary, each declared once: name, quantity, definition, and how it follows from a result.

`Result.summary`, the tables and definitions of every report, and the tables of docs/metrics.md follow from
`GROUPS`. A new metric is one more entry there, and a key in tests/sim/test_result.py. What no world records
yet begins in `history`, where `world` writes it. The formulas are in `metrics`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stretto.sim import metrics

if TYPE_CHECKING:
    from stretto.sim.result import Result  # whose summary is made here

Quantity = Literal["time", "ms", "share", "number", "count", "gpu_h", "server_s", "mb"]
Better = Literal["lower", "higher", "neither"]

UNITS: Mapping[Quantity, str] = {  # of the figure in a summary, in words
    "time": "s",
    "ms": "ms",
    "share": "0 to 1",
    "number": "",
    "count": "",
    "gpu_h": "GPU-hours",
    "server_s": "server-seconds",
    "mb": "MB",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of `simulate --json`, in the unit of its quantity."""

    key: str  # in the summary
    title: str
    quantity: Quantity
    better: Better
    definition: str  # with the paper that it is from
    of: "Callable[[Result], float]"  # NaN where it does not apply; a count is a whole number
    main: bool = False  # in a report's main table; the others only in its table of every figure
    heading: str = ""  # above its column of the terminal's table; "" where it has none

    @property
    def unit(self) -> str:
        """The unit in the summary, in words; empty for plain numbers."""
        return UNITS[self.quantity]

    @property
    def arrow(self) -> str:
        """Which way is better, as a sign."""
        return {"lower": "↓", "higher": "↑", "neither": ""}[self.better]


# By the heading under which docs/metrics.md explains them, in the order of the summary.
GROUPS: Mapping[str, tuple[Metric, ...]] = {
    "How many jobs": (
        Metric(
            "jobs", "Jobs", "count", "neither",
            "Jobs of the workload.",
            lambda run: len(run.done),
        ),
        Metric(
            "completed", "Jobs completed", "count", "neither",
            "Jobs that finished within the run.",
            lambda run: int(run.done.sum()),
        ),
        Metric(
            "skipped", "Jobs left out", "count", "neither",
            "Jobs that --skip-bad left out of the workload.",
            lambda run: len(run.skipped),
        ),
    ),
    "How long jobs take": (
        Metric(
            "avg_jct_s", "Mean JCT", "time", "lower",
            "Job completion time: completion minus submission, profiling and overheads included; mean over "
            "the jobs that completed.",
            lambda run: metrics.mean(run.jct_s), main=True, heading="JCT",
        ),
        Metric(
            "p50_jct_s", "Median JCT", "time", "lower",
            "Half of the completed jobs took at most this long. Percentiles interpolate between order "
            "statistics.",
            lambda run: metrics.percentile(run.jct_s, 50), main=True, heading="p50",
        ),
        Metric(
            "p75_jct_s", "p75 JCT", "time", "lower",
            "75 in 100 completed jobs took at most this long.",
            lambda run: metrics.percentile(run.jct_s, 75),
        ),
        Metric(
            "p95_jct_s", "p95 JCT", "time", "lower",
            "95 in 100 completed jobs took at most this long.",
            lambda run: metrics.percentile(run.jct_s, 95), main=True,
        ),
        Metric(
            "p99_jct_s", "p99 JCT", "time", "lower",
            "99 in 100 completed jobs took at most this long.",
            lambda run: metrics.percentile(run.jct_s, 99), main=True, heading="p99",
        ),
        Metric(
            "p99_index_jct_s", "p99 JCT (index)", "time", "lower",
            "The job at index ⌊0.99 N⌋ of the sorted completion times, not interpolated: the form of the "
            "published figures of Sia.",
            lambda run: metrics.index_percentile(run.jct_s, 0.99),
        ),
        Metric(
            "makespan_s", "Makespan", "time", "lower",
            "Last completion minus first submission.",
            lambda run: metrics.makespan_s(run.requests.submitted_s, run.completed_s[run.done]),
            main=True, heading="makespan",
        ),
        Metric(
            "avg_queue_s", "Mean queuing", "time", "lower",
            "Time since submission during which the unfinished job held no GPU, pauses after a preemption "
            "included; mean over the jobs that completed. A partly served elastic job does not wait "
            "(Cornucopia, section 5.1), nor does one that restarts on GPUs that it holds.",
            lambda run: metrics.mean(run.queue_s), main=True, heading="queue",
        ),
        Metric(
            "p50_queue_s", "Median queuing", "time", "lower",
            "Half of the completed jobs queued at most this long.",
            lambda run: metrics.percentile(run.queue_s, 50),
        ),
        Metric(
            "p95_queue_s", "p95 queuing", "time", "lower",
            "95 in 100 completed jobs queued at most this long.",
            lambda run: metrics.percentile(run.queue_s, 95),
        ),
        Metric(
            "avg_initial_queue_s", "Mean initial queuing", "time", "lower",
            "First start minus submission (Lyra), mean over the jobs that completed.",
            lambda run: metrics.mean(
                metrics.initial_queuing_s(run.requests.submitted_s[run.done], run.first_start_s[run.done])
            ),
        ),
        Metric(
            "interactive_avg_queue_s", "Interactive queuing", "time", "lower",
            "Mean queuing time of the interactive jobs alone.",
            lambda run: metrics.mean(run.queue_s[run.requests.interactive[run.done]]), main=True,
        ),
        Metric(
            "interactive_p95_queue_s", "Interactive queuing, p95", "time", "lower",
            "95 in 100 completed interactive jobs queued at most this long.",
            lambda run: metrics.percentile(run.queue_s[run.requests.interactive[run.done]], 95),
        ),
        Metric(
            "avg_jct_inflation", "JCT inflation", "number", "lower",
            "JCT over the duration on the requested GPUs (Cornucopia, equation 2). 1 is the optimum without "
            "elasticity, less is possible with it. Mean over the completed jobs whose duration the trace "
            "gives; those of duration 0 are left out.",
            lambda run: metrics.mean(metrics.jct_inflation(run.jct_s, run.recorded_duration_s)),
        ),
    ),
    "How far from the best possible": (
        Metric(
            "avg_jct_x_bound", "Mean JCT, x bound", "number", "lower",
            "Mean JCT over its bound. The best possible is between 1 and the best that is known.",
            lambda run: metrics.times_bound(metrics.mean(run.jct_s), run.bounds.avg_jct_s, run.done),
            main=True, heading="x bound",
        ),
        Metric(
            "avg_jct_bound_s", "Mean JCT, bound", "time", "neither",
            "No schedule of these jobs on this cluster has a lower mean JCT.",
            lambda run: run.bounds.avg_jct_s,
        ),
        Metric(
            "interactive_avg_queue_bound_s", "Interactive queuing, bound", "time", "neither",
            "No schedule lets interactive jobs queue for less in the mean.",
            lambda run: run.bounds.interactive_avg_queue_s,
        ),
        Metric(
            "deadline_miss_rate_bound", "Deadlines missed, bound", "share", "neither",
            "No schedule misses fewer first deadlines.",
            lambda run: run.bounds.deadline_miss_rate,
        ),
        Metric(
            "weighted_deadline_miss_rate_bound", "Rewards missed, bound", "share", "neither",
            "No schedule misses less of the rewards.",
            lambda run: run.bounds.weighted_deadline_miss_rate,
        ),
    ),
    "What they cost": (
        Metric(
            "gpu_hours_per_job", "GPU-hours per job", "gpu_h", "lower",
            "GPUs held, integrated over time, overheads and profiling runs included; mean over jobs. GPUs of "
            "every type count alike.",
            lambda run: metrics.gpu_hours_per_job(run.attained_gpu_s + run.profiled_gpu_s), main=True,
        ),
        Metric(
            "restarts_per_job", "Restarts per job", "number", "lower",
            "Starts of a job's workers after the first: resumptions, changes of size, moves that restart; "
            "mean over jobs.",
            lambda run: metrics.restarts_per_job(run.restarts), main=True,
        ),
        Metric(
            "preemption_ratio", "Preemption ratio", "number", "lower",
            "Stops of running jobs by the scheduler, over submissions (Lyra, note to table 5). A resize is "
            "no preemption.",
            lambda run: metrics.preemption_ratio(run.history.preemptions, len(run.done)),
        ),
        Metric(
            "resizes_per_job", "Resizes per job", "number", "neither",
            "Changes of a running job's number of GPUs on its type, whether they restart it or not; mean "
            "over jobs.",
            lambda run: run.history.resizes / len(run.done) if len(run.done) else float("nan"),
        ),
    ),
    "Deadlines": (
        Metric(
            "deadline_miss_rate", "Deadlines missed", "share", "lower",
            "Jobs not finished by their first deadline, over the jobs that have one. An unfinished job "
            "misses it.",
            lambda run: 1.0 - metrics.deadline_met_ratio(run.completed_s, run.requests.deadline_s), main=True,
        ),
        Metric(
            "weighted_deadline_miss_rate", "Rewards missed", "share", "lower",
            "1 minus the mean of (W - W_min) / (W_max - W_min) over jobs with deadlines: W the reward "
            "earned, W_min 0, W_max that of the first deadline (UniSched, equation 15). The paper prints "
            "the mean alone and calls it a miss rate.",
            lambda run: metrics.weighted_deadline_miss_rate(
                metrics.share_of_rewards(run.requests.jobs, run.completed_s), most=1.0
            ),
        ),
        Metric(
            "best_effort_avg_jct_s", "Best-effort JCT", "time", "lower",
            "JCT, mean over the completed jobs without a deadline (UniSched).",
            lambda run: metrics.mean(run.jct_s[~np.isfinite(run.requests.deadline_s[run.done])]),
        ),
        Metric(
            "avg_tardiness_s", "Mean tardiness", "time", "lower",
            "Completion minus first deadline, 0 where that is negative; mean over the completed jobs with "
            "deadlines (Hydra).",
            lambda run: metrics.mean(
                metrics.tardiness_s(run.completed_s[run.done], run.requests.deadline_s[run.done])
            ),
        ),
    ),
    "Serving": (
        Metric(
            "latency_kept", "Latency kept", "share", "higher",
            "Of jobs that serve: time in which they held GPUs that keep the latency they have promised, over "
            "their completion time; mean over those that completed (Sia, section 3.4, gives the goodput).",
            lambda run: metrics.mean(run.latency_kept),
        ),
    ),
    "Fairness": (
        Metric(
            "avg_ftf", "Mean ρ", "number", "lower",
            "Mean finish-time fairness ρ over jobs; see worst ρ.",
            lambda run: metrics.mean(run.known_fairness),
        ),
        Metric(
            "worst_ftf", "Worst ρ", "number", "lower",
            "Finish-time fairness ρ: completion time in the shared cluster over that alone on an equal share "
            "of it, weighted over GPU types by their number; above 1 a job would have been better off alone. "
            "This is the largest.",
            lambda run: float(run.known_fairness.max()) if len(run.known_fairness) else float("nan"),
            main=True,
        ),
        Metric(
            "unfair_fraction", "Unfairly slow jobs", "share", "lower",
            "Share of jobs with ρ above 1, by more than a millionth.",
            lambda run: metrics.unfair_fraction(run.known_fairness), main=True,
        ),
    ),
    "The cluster": (
        Metric(
            "avg_contention", "Mean contention", "number", "lower",
            "Jobs submitted and not finished, running or queued: mean over the time from the first "
            "submission to the last completion. Sia (table 3) samples it at every round.",
            lambda run: run.contention[0],
        ),
        Metric(
            "max_contention", "Most jobs at once", "count", "lower",
            "Largest contention.",
            lambda run: run.contention[1],
        ),
        Metric(
            "utilization", "GPUs in use", "share", "neither",
            "GPU time held by jobs over GPU time of usable nodes, from the first submission to the last "
            "completion. More is not better in itself: it also grows when jobs hold GPUs that help them "
            "little.",
            lambda run: run.utilization(), main=True, heading="in use",
        ),
    ),
    "Lending": (
        Metric(
            "usage_overall", "Overall usage", "share", "neither",
            "GPU time busy with training or inference, which takes whole servers, over GPU time of all, "
            "while jobs are submitted (Lyra).",
            lambda run: run.lending["usage_overall"],
        ),
        Metric(
            "usage_on_loan", "Usage on loan", "share", "neither",
            "GPU time held by jobs over GPU time on loan (Lyra, figure 9).",
            lambda run: run.lending["usage_on_loan"],
        ),
        Metric(
            "loan_preemption_ratio", "Preempted for lenders", "share", "lower",
            "Jobs stopped because a lender asked nodes back, over jobs running at those moments (Lyra, "
            "section 7.3).",
            lambda run: run.lending["loan_preemption_ratio"],
        ),
        Metric(
            "collateral_damage", "Collateral damage", "number", "lower",
            "GPUs vacated beyond the demand over GPUs demanded, mean over reclaims (Lyra, section 7.3).",
            lambda run: run.lending["collateral_damage"],
        ),
        Metric(
            "lender_shortfall_server_s", "Lender's shortfall", "server_s", "lower",
            "Time of servers that a lender needed itself while they were on loan.",
            lambda run: run.lending["lender_shortfall_server_s"],
        ),
    ),
    "The scheduler": (
        Metric(
            "rounds", "Decisions", "count", "neither",
            "Decisions taken, whatever triggered them.",
            lambda run: len(run.decision_ms),
        ),
        Metric(
            "policy_ms_p50", "Decision time", "ms", "lower",
            "Wall time of one whole decision (estimate, allocate, place) on the machine that ran the "
            "simulation, median.",
            lambda run: metrics.percentile(run.decision_ms, 50), main=True,
        ),
        Metric(
            "policy_ms_p95", "Decision time, p95", "ms", "lower",
            "As above; 95 in 100 decisions took at most this.",
            lambda run: metrics.percentile(run.decision_ms, 95),
        ),
        Metric(
            "wall_s", "Simulation took", "time", "neither",
            "Wall time of the whole simulation.",
            lambda run: run.wall_s,
        ),
        Metric(
            "peak_rss_mb", "Peak memory", "mb", "neither",
            "The most memory that the process of the simulation held.",
            lambda run: run.peak_rss_mb,
        ),
    ),
}  # fmt: skip

METRICS = tuple(metric for group in GROUPS.values() for metric in group)
BY_KEY = {metric.key: metric for metric in METRICS}
RANKED_BY = BY_KEY["avg_jct_s"]


def figures_of(run: "Result") -> dict[str, Any]:
    """Every figure by its key; None where one does not apply."""
    figures = {metric.key: metric.of(run) for metric in METRICS}
    return {key: figure if isfinite(figure) else None for key, figure in figures.items()}
