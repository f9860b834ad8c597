"""One finished run: what happened to every job, and the summary of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from stretto.model import BoolArray, Cluster, FloatArray, IntArray, Requests
from stretto.sim import metrics
from stretto.sim.history import History
from stretto.sim.lenders import SimulatedLender
from stretto.sim.lending_metrics import lending_figures


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of one simulation. Columns are (all jobs,) in the order of the workload."""

    policy: str
    trace: str
    cluster: Cluster
    seed: int
    synthetic: bool
    settings: Mapping[str, Any]  # resolved, by SPACE.KEY
    requests: Requests
    completed_s: FloatArray  # NaN: unfinished
    first_start_s: FloatArray
    executed_s: FloatArray
    attained_gpu_s: FloatArray
    profiled_gpu_s: FloatArray  # on GPUs set aside for profiling runs
    restarts: IntArray
    history: History
    decision_ms: FloatArray  # (decisions,) wall-clock
    wall_s: float
    peak_rss_mb: float
    skipped: Sequence[str] = ()  # jobs that were left out, and why
    fairness: FloatArray | None = None  # (all jobs,) finish-time fairness, where it was asked for
    recorded_s: FloatArray | None = None  # (all jobs,) duration on the GPUs asked for; NaN for trainings
    lenders: Sequence[SimulatedLender] = ()

    @property
    def done(self) -> BoolArray:
        """(all jobs,) whether it ended."""
        return metrics.finished(self.completed_s)

    @property
    def jct_s(self) -> FloatArray:
        """Completion times of the jobs that ended."""
        return metrics.completion_s(self.requests.submitted_s[self.done], self.completed_s[self.done])

    @property
    def queue_s(self) -> FloatArray:
        """Queuing times of the jobs that ended."""
        return metrics.queuing_s(self.jct_s, self.executed_s[self.done])

    def utilization(self) -> float:
        """GPU time held / GPU time of usable nodes, from the first submission to the last completion."""
        if not self.done.any():
            return float("nan")
        from_s, to_s = float(self.requests.submitted_s.min()), float(self.completed_s[self.done].max())
        at_s = np.array([at_s for at_s, _ in self.history.capacity])
        gpus = np.array([int(by_type.sum()) for _, by_type in self.history.capacity], dtype=np.float64)
        owned_gpu_s = metrics.integral(at_s, gpus, from_s, to_s)
        return metrics.usage(float(self.attained_gpu_s.sum()), owned_gpu_s)

    def lending(self) -> dict[str, float]:
        """What came of lending, by name, over the time in which jobs were submitted."""
        submitted_s = self.requests.submitted_s
        from_s, to_s = (
            (float(submitted_s.min()), float(submitted_s.max())) if len(submitted_s) else (0.0, 0.0)
        )
        return lending_figures(self.cluster, self.lenders, self.history, from_s, to_s)

    def summary(self) -> dict[str, Any]:
        """Every figure of `simulate --json`; None where one does not apply."""
        done, jct_s, queue_s = self.done, self.jct_s, self.queue_s
        requests, history = self.requests, self.history
        interactive = requests.interactive[done]
        no_deadline = ~np.isfinite(requests.deadline_s[done])
        recorded_s = np.full(len(jct_s), np.nan) if self.recorded_s is None else self.recorded_s[done]
        deadline_s = requests.deadline_s
        contention, most_jobs = metrics.contention(requests.submitted_s, self.completed_s)
        fairness = self.fairness[np.isfinite(self.fairness)] if self.fairness is not None else np.zeros(0)
        met = metrics.deadline_met_ratio(self.completed_s, deadline_s)
        rewards = metrics.share_of_rewards(requests.jobs, self.completed_s)
        figures: dict[str, Any] = {
            "policy": self.policy,
            "trace": self.trace,
            "cluster": self.cluster.name,
            "seed": self.seed,
            "synthetic": self.synthetic,
            "jobs": len(done),
            "completed": int(done.sum()),
            "skipped": len(self.skipped),
            "avg_jct_s": metrics.mean(jct_s),
            "p50_jct_s": metrics.percentile(jct_s, 50),
            "p75_jct_s": metrics.percentile(jct_s, 75),
            "p95_jct_s": metrics.percentile(jct_s, 95),
            "p99_jct_s": metrics.percentile(jct_s, 99),
            "p99_index_jct_s": metrics.index_percentile(jct_s, 0.99),
            "makespan_s": metrics.makespan_s(requests.submitted_s, self.completed_s[done]),
            "avg_queue_s": metrics.mean(queue_s),
            "p50_queue_s": metrics.percentile(queue_s, 50),
            "p95_queue_s": metrics.percentile(queue_s, 95),
            "avg_initial_queue_s": metrics.mean(
                metrics.initial_queuing_s(requests.submitted_s[done], self.first_start_s[done])
            ),
            "interactive_avg_queue_s": metrics.mean(queue_s[interactive]),
            "interactive_p95_queue_s": metrics.percentile(queue_s[interactive], 95),
            "avg_jct_inflation": metrics.mean(metrics.jct_inflation(jct_s, recorded_s)),
            "gpu_hours_per_job": metrics.gpu_hours_per_job(self.attained_gpu_s + self.profiled_gpu_s),
            "restarts_per_job": metrics.restarts_per_job(self.restarts),
            "preemption_ratio": metrics.preemption_ratio(history.preemptions, len(done)),
            "resizes_per_job": history.resizes / len(done) if len(done) else float("nan"),
            "deadline_miss_rate": 1.0 - met,
            "weighted_deadline_miss_rate": metrics.weighted_deadline_miss_rate(rewards, most=1.0),
            "best_effort_avg_jct_s": metrics.mean(jct_s[no_deadline]),
            "avg_tardiness_s": metrics.mean(metrics.tardiness_s(self.completed_s[done], deadline_s[done])),
            "avg_ftf": metrics.mean(fairness),
            "worst_ftf": float(fairness.max()) if len(fairness) else float("nan"),
            "unfair_fraction": metrics.unfair_fraction(fairness),
            "avg_contention": contention,
            "max_contention": most_jobs,
            "utilization": self.utilization(),
            **self.lending(),
            "rounds": len(self.decision_ms),
            "policy_ms_p50": metrics.percentile(self.decision_ms, 50),
            "policy_ms_p95": metrics.percentile(self.decision_ms, 95),
            "wall_s": self.wall_s,
            "peak_rss_mb": self.peak_rss_mb,
            "settings": dict(self.settings),
        }
        return {
            name: None if isinstance(figure, float) and not isfinite(figure) else figure
            for name, figure in figures.items()
        }
