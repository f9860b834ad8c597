"""What is known of a job: the measured points of its speed, and the views that a policy may declare.

A policy names its views; the world leaves the rest unknown. Truth is not among them: it stays in the world.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from stretto.model.arrays import BoolArray, FloatArray, IntArray


class Point(NamedTuple):
    """One measured operating point."""

    nodes: int
    gpus: int
    local_batch: int  # samples on each GPU in one forward and backward pass
    grad_s: float  # one pass without synchronisation
    step_s: float  # one pass with it


@dataclass(frozen=True, slots=True)
class Observations:
    """Distinct operating points with their times: a value, equal and hashed by content.

    The points are kept sorted, so that the order of measuring does not matter. The hash is computed once:
    observations are keys of memo tables on a hot path.
    """

    points: tuple[Point, ...] = ()
    seen: frozenset[tuple[int, int, int]] = field(default=frozenset(), compare=False, repr=False)
    hashed: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Sort, index and hash."""
        object.__setattr__(self, "points", tuple(sorted(self.points)))
        object.__setattr__(self, "seen", frozenset(point[:3] for point in self.points))
        object.__setattr__(self, "hashed", hash(self.points))

    def __hash__(self) -> int:
        """Of the content."""
        return self.hashed

    def __len__(self) -> int:
        """The number of distinct operating points."""
        return len(self.points)

    def with_point(self, point: Point) -> "Observations":
        """These and one more; the same object where that operating point was seen before."""
        if point[:3] in self.seen:
            return self
        return Observations((*self.points, point))

    @property
    def largest_gpus(self) -> int:
        """Most GPUs on which anything was measured; 0 before the first point."""
        return max((point.gpus for point in self.points), default=0)


NOTHING_OBSERVED = Observations()


# ── what a policy may know about a job, view by view ────────────────────────────────────────────────────────


class View(StrEnum):
    """Groups of columns beside the request and what a job holds now, which every policy may see."""

    PROGRESS = "progress"
    ORACLE_DURATION = "oracle_duration"
    ESTIMATED_DURATION = "estimated_duration"
    REMAINING_WORK = "remaining_work"
    THROUGHPUT_TABLE = "throughput_table"
    GOODPUT_MODEL = "goodput_model"
    LEARNING = "learning"
    CPU_DEMAND = "cpu_demand"
    ENDED_JOBS = "ended_jobs"


@dataclass(frozen=True, eq=False)
class Progress:
    """What has happened to each job so far; columns are (jobs,)."""

    executed_s: FloatArray  # with at least one GPU
    attained_gpu_s: FloatArray  # GPU-seconds held
    first_start_s: FloatArray  # NaN: never started
    last_stop_s: FloatArray  # when it last lost all its GPUs; NaN: never
    restarts: IntArray  # starts after the first, whatever their cause
    largest_held_gpus: IntArray  # most it ever held
    epochs: IntArray  # finished
    recovering: BoolArray  # holds GPUs but is still starting: loading, restoring
    profiled_s: FloatArray  # spent in profiling runs
    suspension_s: FloatArray  # that a stop and a later start cost, as measured; NaN: nothing was
    resize_s: FloatArray  # that a change of size on one GPU type costs; NaN: a stop and a start


@dataclass(frozen=True, eq=False)
class Learning:
    """What each job has reported of its training; columns are (jobs,), NaN where it has not."""

    samples: FloatArray  # processed so far
    dataset_samples: FloatArray  # of one epoch
    initial_loss: FloatArray
    loss: FloatArray  # at the end of the last finished epoch
    metric: FloatArray  # such as accuracy, larger is better; at the same moment
    history: Sequence[FloatArray]  # by job: the metric at the end of every finished epoch


@dataclass(frozen=True, eq=False)
class Durations:
    """How long each job takes on what it asked for, or is believed to; columns are (jobs,)."""

    duration_s: FloatArray  # from start to end without interruption
    remaining_s: FloatArray  # what is left of that


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """Jobs that have run and ended in whatever way: how many, and their executed seconds."""

    interactive: int = 0
    interactive_s: float = 0.0  # with at least one GPU, summed over jobs
    batch: int = 0
    batch_s: float = 0.0
    failed: int = 0  # of both kinds: by themselves, and not for a node
    failed_s: float = 0.0  # to failure

    @property
    def jobs(self) -> int:
        """Of both kinds."""
        return self.interactive + self.batch

    def with_ended(self, executed_s: float, interactive: bool, failed: bool) -> "EndedJobs":
        """These and one more; a job that never ran is none of them."""
        if executed_s <= 0:
            return self
        of_batch = not interactive
        return EndedJobs(
            interactive=self.interactive + interactive,
            interactive_s=self.interactive_s + executed_s if interactive else self.interactive_s,
            batch=self.batch + of_batch,
            batch_s=self.batch_s + executed_s if of_batch else self.batch_s,
            failed=self.failed + failed,
            failed_s=self.failed_s + executed_s if failed else self.failed_s,
        )


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSpeeds:
    """Speeds of one job at its own batch size, as measured beforehand, or as far as it has been.

    per_s, spread_per_s: (types, most_gpus + 1), steps per second on as few nodes as can be, and on more.
    Column g is for g GPUs, NaN where the job cannot run so. measured: in the same shape, which entries follow
    from steps of exactly this kind, on few nodes or more. None: all were known beforehand.
    """

    per_s: FloatArray
    spread_per_s: FloatArray
    measured: BoolArray | None = None


class ServiceLevel(NamedTuple):
    """What a job that serves has promised (Sia, SOSP 2023, section 3.4)."""

    latency_s: float  # of each request, from its arrival to its answer
    requests_per_s: float  # up to which it holds, where they come evenly


@dataclass(frozen=True, slots=True, eq=False)
class TrainingLimits:
    """What is known of a model before it runs. Arrays are (types,) in the cluster's order."""

    init_batch: int  # total samples a step that the user tuned for; progress counts in steps of it
    max_batch: int  # the largest total batch that may be considered
    min_local: IntArray  # samples per GPU
    max_local: IntArray  # samples per GPU that fit in memory; 0: cannot run on the type
    single_per_s: FloatArray  # samples/s of one replica, from a short profile; NaN: not profiled
    replica_gpus: IntArray  # GPUs of one model replica; above 1 for hybrid parallel jobs
    restart_s: float  # seconds that a restart is assumed to take
    reach_gpus: int  # most replicas that the largest batch can keep busy
    single_ratio: FloatArray | None = (
        None  # (types, types) speeds on B over A at a common batch; None: of above
    )
    accumulates: bool = True  # may take several backward passes a step
    max_is_soft: bool = False  # where GPUs cannot all be used within `max_batch`, more is considered
    service_level: ServiceLevel | None = None  # of a job that serves: requests are its samples


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What one job has shown so far."""

    limits: TrainingLimits
    observed: tuple[Observations, ...]  # by GPU type
    grad_sqr: float  # squared norm of the gradient; NaN before the first report
    grad_var: float  # its variance at the initial batch size
    fixed_batch: int = 0  # total batch of a job whose batch may not change; 0: it may
