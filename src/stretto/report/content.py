"""What a report is made of: plain values, filled by the code that ran the simulations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stretto.errors import InputError
from stretto.model.arrays import FloatArray, IntArray

Value = float | int | str | None  # a field of `simulate --json`


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Which job held which GPUs when: one entry for each unbroken, unchanged allocation.

    A job that holds two GPU types at once has an entry for each. All arrays are (intervals,).
    """

    job: IntArray  # position in the run's per-job arrays
    start_s: FloatArray  # seconds since the run began
    end_s: FloatArray
    gpu_type: IntArray  # position in `ClusterFacts.gpu_types`
    gpus: IntArray  # GPUs held, at least 1

    def __post_init__(self) -> None:
        """Check that the columns belong together."""
        for name in ("start_s", "end_s", "gpu_type", "gpus"):
            _expect_shape(f"intervals.{name}", getattr(self, name), (self.job.size,))


@dataclass(frozen=True, slots=True, eq=False)
class RunSeries:
    """One policy on one trace with one seed: its summary, and the series behind it.

    `times` of a step series are seconds since the run began, ascending; a value holds from its time until the
    next. So the last value only marks the end.
    """

    policy: str
    trace: str
    seed: int
    cluster: str
    synthetic: bool  # the trace was made, not recorded
    summary: Mapping[str, Value]  # the fields of `simulate --json`; None where one does not apply
    jobs: tuple[str, ...]  # job ids, by submission
    submitted_s: FloatArray  # (jobs,) seconds since the run began
    jct_s: FloatArray  # (jobs,) NaN where the job did not complete
    queue_s: FloatArray  # (jobs,) time without any GPU; NaN where unknown
    busy_times_s: FloatArray  # (busy points,)
    busy_gpus: npt.NDArray[Any]  # (busy points, gpu types) GPUs held by jobs
    active_times_s: FloatArray  # (active points,)
    active_jobs: npt.NDArray[Any]  # (active points,) jobs waiting or running: the contention
    intervals: Intervals
    decisions_ms: FloatArray  # (decisions,) wall time of each
    labels: tuple[str, ...] | None = None  # (jobs,) model or size class, for the breakdown
    fairness: FloatArray | None = None  # (jobs,) finish-time fairness rho; NaN where unknown
    lateness_s: FloatArray | None = None  # (jobs,) completion minus deadline; NaN without one, inf if never
    settings: Mapping[str, Value] = field(default_factory=dict)  # resolved, e.g. "sim.fidelity"
    wall_s: float | None = None  # of the whole simulation; None: as the summary says, if it does
    peak_rss_mb: float | None = None

    def __post_init__(self) -> None:
        """Check that the columns belong together."""
        jobs = (len(self.jobs),)
        for name in ("submitted_s", "jct_s", "queue_s", "fairness", "lateness_s"):
            if (column := getattr(self, name)) is not None:
                _expect_shape(f"{self.name}: {name}", column, jobs)
        if self.labels is not None and len(self.labels) != len(self.jobs):
            raise InputError(
                f"{self.name}: labels must have {len(self.jobs)} entries, got {len(self.labels)}"
            )
        _expect_shape(f"{self.name}: active_jobs", self.active_jobs, self.active_times_s.shape)
        if self.busy_gpus.ndim != 2 or self.busy_gpus.shape[0] != self.busy_times_s.size:
            raise InputError(
                f"{self.name}: busy_gpus must be (busy points, gpu types) with {self.busy_times_s.size} "
                f"points, got shape {self.busy_gpus.shape}"
            )
        if (
            self.intervals.job.size
            and not 0 <= self.intervals.job.min() <= self.intervals.job.max() < jobs[0]
        ):
            raise InputError(f"{self.name}: intervals.job must be positions among {jobs[0]} jobs")

    @property
    def name(self) -> str:
        """Policy, trace and seed as one name for messages."""
        return f"{self.policy} on {self.trace}, seed {self.seed}"

    @property
    def workload(self) -> tuple[str, int]:
        """What another policy must have run too, to be compared with this run."""
        return self.trace, self.seed

    @property
    def run_s(self) -> FloatArray:
        """(jobs,) time with at least one GPU; NaN where the job did not complete."""
        return np.asarray(self.jct_s - self.queue_s, dtype=np.float64)

    def metric(self, key: str) -> float:
        """A number of the summary, or of the run's own cost; NaN where it does not apply or is no number."""
        cost: Mapping[str, Value] = {"wall_s": self.wall_s, "peak_rss_mb": self.peak_rss_mb}
        value = cost[key] if cost.get(key) is not None else self.summary.get(key)
        return float(value) if isinstance(value, int | float) else float("nan")


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The machines as the reader should know them."""

    name: str
    gpu_types: tuple[str, ...]  # the order of types everywhere
    gpus: tuple[int, ...]  # GPUs of each type
    nodes: int

    def __post_init__(self) -> None:
        """Check that every type has its count."""
        if len(self.gpus) != len(self.gpu_types):
            raise InputError(
                f"cluster {self.name}: gpus must have {len(self.gpu_types)} counts, got {len(self.gpus)}"
            )

    @property
    def total_gpus(self) -> int:
        """GPUs of all types."""
        return sum(self.gpus)


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that the reader must know to judge a figure."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Several policies on the same workloads of one cluster."""

    title: str
    cluster: ClusterFacts
    runs: tuple[RunSeries, ...]
    notes: tuple[Note, ...] = ()  # how figures were obtained, beyond the definitions that the report knows
    command: str = ""  # the command line that made this
    versions: Mapping[str, str] = field(default_factory=dict)
    made: str = ""  # when, in words; passed in, so that the same runs give the same bytes

    def __post_init__(self) -> None:
        """Check that the runs are of this cluster and that none is there twice."""
        keys: set[tuple[str, str, int]] = set()
        types = len(self.cluster.gpu_types)
        for run in self.runs:
            key = (run.policy, run.trace, run.seed)
            if key in keys:
                raise InputError(f"runs must differ in policy, trace or seed, got {run.name} twice")
            keys.add(key)
            if run.busy_gpus.shape[1] != types:
                raise InputError(
                    f"{run.name}: busy_gpus must have {types} columns, one for each GPU type of "
                    f"{self.cluster.name}, got {run.busy_gpus.shape[1]}"
                )
            kind = run.intervals.gpu_type
            if kind.size and not 0 <= kind.min() <= kind.max() < types:
                raise InputError(f"{run.name}: intervals.gpu_type must be positions among {types} GPU types")

    @property
    def policies(self) -> tuple[str, ...]:
        """Every policy once, in the order of the runs; its position is its colour throughout."""
        return tuple(dict.fromkeys(run.policy for run in self.runs))

    @property
    def workloads(self) -> tuple[tuple[str, int], ...]:
        """Every (trace, seed) once, in the order of the runs."""
        return tuple(dict.fromkeys(run.workload for run in self.runs))


def _expect_shape(name: str, column: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    if column.shape != shape:
        raise InputError(f"{name} must have shape {shape}, got {column.shape}")
