"""The figures of a summary as a reader meets them: title, unit, which way is better, and the definition."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["time", "ms", "share", "number", "count", "gpu_h", "mb"]
Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One field of `simulate --json`."""

    key: str
    title: str
    kind: Kind
    better: Better
    definition: str
    main: bool = True  # in the main table; the rest is in the table of every figure

    @property
    def arrow(self) -> str:
        """Which way is better, as a sign."""
        return {"lower": "↓", "higher": "↑", "neither": ""}[self.better]


METRICS = (
    Metric(
        "avg_jct_s", "Mean JCT", "time", "lower",
        "Job completion time: completion minus submission, profiling and overheads included; mean over the "
        "jobs that completed.",
    ),
    Metric(
        "p50_jct_s", "Median JCT", "time", "lower",
        "Half of the completed jobs took at most this long. Percentiles interpolate between order "
        "statistics.",
    ),
    Metric("p95_jct_s", "p95 JCT", "time", "lower", "95 in 100 completed jobs took at most this long."),
    Metric("p99_jct_s", "p99 JCT", "time", "lower", "99 in 100 completed jobs took at most this long."),
    Metric(
        "p99_index_jct_s", "p99 JCT (index)", "time", "lower",
        "The job at position ⌊0.99 N⌋ of the sorted completion times, not interpolated: the form that Sia's "
        "published figures use.", main=False,
    ),
    Metric("makespan_s", "Makespan", "time", "lower", "Last completion minus first submission."),
    Metric(
        "avg_queue_s", "Mean queuing", "time", "lower",
        "Time since submission during which the job held no GPU and was not finished, pauses after a "
        "preemption included; restart overhead while holding GPUs is not queuing.",
    ),
    Metric(
        "p95_queue_s", "p95 queuing", "time", "lower", "95 in 100 jobs queued at most this long.", main=False
    ),
    Metric(
        "interactive_avg_queue_s", "Interactive queuing", "time", "lower",
        "Mean queuing time of the interactive jobs alone.",
    ),
    Metric(
        "gpu_hours_per_job", "GPU-hours per job", "gpu_h", "lower",
        "GPUs held, integrated over time, overheads and profiling included; mean over jobs. GPUs of every "
        "type count alike.",
    ),
    Metric(
        "restarts_per_job", "Restarts per job", "number", "lower",
        "How often workers were stopped and started again (preemption, change of size, migration), the first "
        "start excluded.",
    ),
    Metric(
        "preemption_ratio", "Preemption ratio", "number", "lower",
        "Preemptions of all jobs over submissions.", main=False,
    ),
    Metric(
        "deadline_miss_rate", "Deadlines missed", "share", "lower",
        "Jobs not finished by their first deadline, over the jobs that have one.",
    ),
    Metric(
        "avg_ftf", "Mean ρ", "number", "lower", "Mean finish-time fairness ρ over jobs; see worst ρ.",
        main=False,
    ),
    Metric(
        "worst_ftf", "Worst ρ", "number", "lower",
        "Finish-time fairness ρ: completion time in the shared cluster over that alone on an equal share of "
        "it, weighted over GPU types by their number; above 1 a job would have been better off alone. This "
        "is the largest.",
    ),
    Metric("unfair_fraction", "Unfairly slow jobs", "share", "lower", "Share of jobs with ρ above 1."),
    Metric(
        "avg_contention", "Mean contention", "number", "lower",
        "Jobs in the system, running or queued: mean over time from first arrival to last end.", main=False,
    ),
    Metric("max_contention", "Most jobs at once", "count", "lower", "Largest contention.", main=False),
    Metric(
        "utilization", "GPUs in use", "share", "neither",
        "GPUs held by jobs over usable GPUs, mean over the run. More is not better in itself: it also grows "
        "when jobs hold GPUs that help them little.",
    ),
    Metric("rounds", "Decisions", "count", "neither", "Times that the policy was asked.", main=False),
    Metric(
        "policy_ms_p50", "Decision time", "ms", "lower",
        "Wall time of one decision on the machine that ran the simulation, median.",
    ),
    Metric(
        "policy_ms_p95", "Decision time, p95", "ms", "lower",
        "As above; 95 in 100 decisions took at most this.", main=False,
    ),
    Metric(
        "completed", "Jobs completed", "count", "neither", "Jobs that finished within the run.", main=False
    ),
    Metric("wall_s", "Simulation took", "time", "neither", "Wall time of the simulation.", main=False),
    Metric(
        "peak_rss_mb", "Peak memory", "mb", "neither", "Largest resident memory of the simulation.",
        main=False,
    ),
)  # fmt: skip

BY_KEY = {metric.key: metric for metric in METRICS}
RANKED_BY = BY_KEY["avg_jct_s"]
