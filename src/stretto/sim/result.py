"""One finished run: what happened to every job, and the summary of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stretto.model import BoolArray, Cluster, FloatArray, IntArray, Requests
from stretto.sim import metrics
from stretto.sim.history import History
from stretto.sim.lenders import SimulatedLender, lending_figures
from stretto.sim.summary import figures_of


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no schedule of a workload is better than (`sim.bounds`); NaN where a figure does not apply."""

    avg_jct_s: float
    interactive_avg_queue_s: float
    deadline_miss_rate: float
    weighted_deadline_miss_rate: float


NO_BOUNDS = Bounds(*[float("nan")] * 4)  # nobody asked for them


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
    bounds: Bounds = NO_BOUNDS
    kept_s: FloatArray | None = None  # (all jobs,) with its latency kept, of those that serve; NaN: others

    @cached_property
    def done(self) -> BoolArray:
        """(all jobs,) whether it ended."""
        return metrics.finished(self.completed_s)

    @cached_property
    def jct_s(self) -> FloatArray:
        """Completion times of the jobs that ended."""
        return metrics.completion_s(self.requests.submitted_s[self.done], self.completed_s[self.done])

    @cached_property
    def queue_s(self) -> FloatArray:
        """Queuing times of the jobs that ended."""
        return metrics.queuing_s(self.jct_s, self.executed_s[self.done])

    @property
    def recorded_duration_s(self) -> FloatArray:
        """Recorded durations of the jobs that ended; NaN where the trace gives none."""
        return np.full(len(self.jct_s), np.nan) if self.recorded_s is None else self.recorded_s[self.done]

    @property
    def known_fairness(self) -> FloatArray:
        """Finish-time fairness of the jobs that have one."""
        return np.zeros(0) if self.fairness is None else self.fairness[np.isfinite(self.fairness)]

    @property
    def latency_kept(self) -> FloatArray:
        """Of jobs that serve and have ended: the share of their completion time with the latency kept."""
        if self.kept_s is None:
            return np.zeros(0)
        shares = self.kept_s[self.done] / self.jct_s
        return np.asarray(shares[np.isfinite(shares)])

    @cached_property
    def contention(self) -> tuple[float, int]:
        """(mean, most) jobs that were submitted and unfinished at once."""
        return metrics.contention(self.requests.submitted_s, self.completed_s)

    def utilization(self) -> float:
        """GPU time held / GPU time of usable nodes, from the first submission to the last completion."""
        if not self.done.any():
            return float("nan")
        from_s, to_s = float(self.requests.submitted_s.min()), float(self.completed_s[self.done].max())
        at_s = np.array([at_s for at_s, _ in self.history.capacity])
        gpus = np.array([int(by_type.sum()) for _, by_type in self.history.capacity], dtype=np.float64)
        owned_gpu_s = metrics.integral(at_s, gpus, from_s, to_s)
        return metrics.usage(float(self.attained_gpu_s.sum()), owned_gpu_s)

    @cached_property
    def lending(self) -> Mapping[str, float]:
        """What came of lending, by name, over the time in which jobs were submitted."""
        submitted_s = self.requests.submitted_s
        from_s, to_s = (
            (float(submitted_s.min()), float(submitted_s.max())) if len(submitted_s) else (0.0, 0.0)
        )
        return lending_figures(self.cluster, self.lenders, self.history, from_s, to_s)

    def summary(self) -> dict[str, Any]:
        """What `simulate --json` prints: the input, and every figure; None where one does not apply."""
        return {
            "policy": self.policy,
            "trace": self.trace,
            "cluster": self.cluster.name,
            "seed": self.seed,
            "synthetic": self.synthetic,
            **figures_of(self),
            "settings": dict(self.settings),
        }
