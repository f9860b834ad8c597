"""A job as its owner asked for it, and many of them as columns.

What a job will really do is the world's business.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf, isfinite
from operator import attrgetter
from typing import Any, Generic, NewType, TypeVar, overload

import numpy as np

from stretto.errors import InputError
from stretto.model.arrays import BoolArray, FloatArray, IntArray, ObjectArray, floats, ints

JobId = NewType("JobId", str)
Value = TypeVar("Value")
Array = TypeVar("Array", bound=np.ndarray[Any, Any])


class Adaptivity(StrEnum):
    """What a scheduler may change about a job (Sia, section 3.4)."""

    ADAPTIVE = "adaptive"  # GPU count, GPU type and batch size
    STRONG_SCALING = "strong-scaling"  # GPU count and type; the batch size stays
    RIGID = "rigid"  # GPU type only


class Kind(StrEnum):
    """Whether a user sits and waits for the job (Cornucopia, section 3)."""

    BATCH = "batch"
    INTERACTIVE = "interactive"


class Purpose(StrEnum):
    """What the job does with its model, and so what its goodput is (Sia, section 3.4)."""

    TRAINING = "training"  # throughput times statistical efficiency
    BATCH_INFERENCE = "batch-inference"  # throughput: passes forward over a data set, each item once
    SERVING = "serving"  # 1 where a configuration answers requests within the promised latency, else 0


@dataclass(frozen=True, slots=True)
class Reward:
    """What finishing by a deadline is worth (UniSched, section III-C2)."""

    deadline_s: float  # absolute, on the clock of the workload
    value: float


@dataclass(frozen=True, slots=True)
class Goal:
    """Stopping by performance: done once the reported metric is good enough (UniSched, section III-B2)."""

    metric: float  # reached or exceeded at the end of an epoch
    most_epochs: int  # done then at the latest

    def __post_init__(self) -> None:
        """Check the values."""
        if not isfinite(self.metric):
            raise InputError(f"a goal must be a finite metric, got {self.metric}")
        if self.most_epochs < 1:
            raise InputError(f"a goal must allow at least one epoch, got {self.most_epochs}")


def asked(
    default: Value,
    *,
    at_least: float = -inf,
    above: float = -inf,
    examples: tuple[Value, ...] = (),
    in_traces: bool = True,
    is_younger: bool = False,
) -> Value:
    """A field of `Job` and what follows from it elsewhere.

    at_least, above: its bound, which is checked. examples: what random jobs of `stretto.testing` have;
    without them, the default. in_traces: it has a column in files of our own schema. is_younger: logs have
    digests of jobs that had no such field, so that its default does not count in one.
    """
    return field(
        default=default,
        metadata={
            "at_least": at_least,
            "above": above,
            "examples": examples,
            "in_traces": in_traces,
            "is_younger": is_younger,
        },
    )


def asked_mapping() -> Mapping[str, int]:
    """A field of `Job` that is a mapping, in no trace, and younger than some logs; empty unless said."""
    bounds = {"at_least": -inf, "above": -inf}
    return field(default_factory=dict, metadata={**bounds, "in_traces": False, "is_younger": True})


@dataclass(frozen=True, slots=True)
class Job:
    """One request for GPUs.

    A field's bound follows from its declaration. So does its column in traces, if it is a number, text, truth
    or choice. What a policy reads of it is a column of `JobColumns`.

    Invariants: `0 <= submitted_s`, `1 <= min_gpus <= gpus <= max_gpus`, rewards by increasing deadline and
    not increasing in value. A rigid job has one size, which is a whole number of workers like its range.
    """

    id: JobId
    submitted_s: float  # seconds since the start of the workload
    gpus: int  # asked for; a rigid job gets exactly these
    model: str = ""  # what it trains, as named in the profiles or the catalogue; "" = unknown
    batch_size: int = asked(0, at_least=0)  # total samples a step as submitted; 0 = unknown
    min_gpus: int = 1
    max_gpus: int = 0  # 0 on input: as many as asked for, or without limit when adaptive
    adaptivity: Adaptivity = Adaptivity.ADAPTIVE
    kind: Kind = Kind.BATCH
    purpose: Purpose = asked(Purpose.TRAINING, is_younger=True)  # noqa: RUF009  (a field)
    # What a job that serves promises: this latency, up to so many requests a second; 0 for all others
    latency_s: float = asked(0.0, at_least=0.0, is_younger=True)
    requests_per_s: float = asked(0.0, at_least=0.0, is_younger=True)
    gpus_per_worker: int = asked(1, at_least=1)  # it grows and shrinks by so many
    # GPUs of one worker by type, where types differ (Sia, section 5.3): multiples of the above, on one node
    replica_gpus: Mapping[str, int] = asked_mapping()
    heterogeneous: bool = False  # may hold GPUs of several types at once (Lyra, section 2.1)
    # The level of the network of which all its nodes must be in one domain; "": none
    within: str = asked("", in_traces=False, is_younger=True)
    checkpoints: bool | None = None  # keeps its progress when it is stopped; None: as the world says
    goal: Goal | None = None  # stops by performance; None: after a fixed amount of work
    preemptible: bool = True
    gpu_types: tuple[str, ...] = ()  # types it may run on; empty = any
    reserved: tuple[int, int, str] | None = None  # (nodes, gpus, type) kept for it whenever it is active
    rewards: tuple[Reward, ...] = ()  # one entry: a strict deadline; several: a soft one
    priority: int = 0  # larger is sooner
    priority_class: str = ""  # the name under which its priority was asked for; "" = a number
    # Takes GPUs from jobs of lower priority, not only free ones
    preempts: bool = asked(True, in_traces=False)
    weight: float = asked(1.0, above=0.0)
    user: str = ""
    queue: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Complete the range and check the invariants."""
        if not (isfinite(self.submitted_s) and self.submitted_s >= 0):
            raise InputError(f"job {self.id}: submitted_s must be a time >= 0, got {self.submitted_s}")
        if self.gpus < 1:
            raise InputError(f"job {self.id}: gpus must be >= 1, got {self.gpus}")
        if self.adaptivity is Adaptivity.RIGID:
            object.__setattr__(self, "min_gpus", self.gpus)
            object.__setattr__(self, "max_gpus", self.gpus)
        elif self.max_gpus == 0:
            object.__setattr__(self, "max_gpus", UNLIMITED_GPUS)
        for name, at_least, above in _BOUNDS:
            value = getattr(self, name)
            if not (value >= at_least and value > above):
                least = f">= {at_least:g}" if at_least > -inf else f"> {above:g}"
                raise InputError(f"job {self.id}: {name} must be {least}, got {value}")
        if not 1 <= self.min_gpus <= self.gpus <= self.max_gpus:
            raise InputError(
                f"job {self.id}: expected 1 <= min_gpus <= gpus <= max_gpus, "
                f"got {self.min_gpus}, {self.gpus} and {self.max_gpus}"
            )
        if self.purpose is Purpose.SERVING or self.latency_s or self.requests_per_s:
            self._check_service_level()
        if self.gpus_per_worker != 1 or self.replica_gpus:
            self._check_workers()
        if self.rewards:
            self._check_rewards()
        if self.reserved is not None:
            self._check_reservation(*self.reserved)

    def _check_service_level(self) -> None:
        serves = self.purpose is Purpose.SERVING
        promised = (self.latency_s, self.requests_per_s)
        if not serves or not (all(map(isfinite, promised)) and min(promised) > 0):
            expected = "above 0" if serves else f"with purpose {Purpose.SERVING} only"
            raise InputError(
                f"job {self.id}: expected latency_s and requests_per_s {expected}, "
                f"got {promised[0]:g} and {promised[1]:g}"
            )
        if self.heterogeneous:
            raise InputError(
                f"job {self.id}: a job that serves must hold GPUs of one type, got heterogeneous"
            )

    def _check_workers(self) -> None:
        each = self.gpus_per_worker
        bounds = (self.min_gpus, self.gpus, self.max_gpus)
        if any(gpus % each for gpus in bounds if gpus != UNLIMITED_GPUS):
            raise InputError(
                f"job {self.id}: expected a range in multiples of gpus_per_worker={each}, "
                f"got {self.min_gpus}, {self.gpus} and {self.max_gpus}"
            )
        for gpu_type, gpus in self.replica_gpus.items():
            if gpus < 1 or gpus % each:
                raise InputError(
                    f"job {self.id}: replica_gpus of {gpu_type} must be a multiple of"
                    f" gpus_per_worker={each}, got {gpus}"
                )

    def worker_gpus(self, gpu_type: str) -> int:
        """GPUs of one worker on a type."""
        return self.replica_gpus.get(gpu_type, self.gpus_per_worker)

    def fewest_gpus(self, gpu_type: str) -> int:
        """Fewest GPUs of a type to run on: whole workers, at least `min_gpus`."""
        each = self.replica_gpus.get(gpu_type, 1)
        return -(-self.min_gpus // each) * each

    def _check_rewards(self) -> None:
        if self.rewards[0].deadline_s < self.submitted_s:
            raise InputError(
                f"job {self.id}: deadline {self.rewards[0].deadline_s} lies before "
                f"its submission at {self.submitted_s}"
            )
        for sooner, later in zip(self.rewards, self.rewards[1:], strict=False):
            if later.deadline_s <= sooner.deadline_s or later.value > sooner.value:
                raise InputError(
                    f"job {self.id}: rewards must fall as their deadlines grow, got {sooner} before {later}"
                )

    def _check_reservation(self, nodes: int, gpus: int, gpu_type: str) -> None:
        if not (1 <= nodes <= gpus and self.min_gpus <= gpus <= self.max_gpus):
            raise InputError(
                f"job {self.id}: a reservation must be of {self.min_gpus} to {self.max_gpus} gpus on at most "
                f"as many nodes, got {gpus} on {nodes}"
            )
        if self.gpu_types and gpu_type not in self.gpu_types:
            raise InputError(f"job {self.id}: reserved gpus must be of {self.gpu_types}, got {gpu_type!r}")

    @property
    def deadline_s(self) -> float:
        """The first deadline; infinite where there is none."""
        return self.rewards[0].deadline_s if self.rewards else inf

    @property
    def deadline_value(self) -> float:
        """What keeping the first deadline is worth; 0 where there is none."""
        return self.rewards[0].value if self.rewards else 0.0


UNLIMITED_GPUS = 2**31 - 1  # stands for "as many as there are"

_BOUNDS = tuple(
    (one.name, one.metadata["at_least"], one.metadata["above"])
    for one in fields(Job)
    if one.metadata and max(one.metadata["at_least"], one.metadata["above"]) > -inf
)


class Column(Generic[Array]):
    """A column of a table of jobs: an attribute that is computed when it is first read, and kept."""

    name: str  # the attribute, and the field of a job that it shows unless `of` says otherwise

    def __init__(self, array: Callable[[Any], Array], of: Callable[[Job], Any] | None = None) -> None:
        """array: makes the column of a list of values. of: the value of a job."""
        self._array, self._of = array, of

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, table: None, owner: type) -> "Column[Array]": ...

    @overload
    def __get__(self, table: "JobColumns", owner: type) -> Array: ...

    def __get__(self, table: "JobColumns | None", owner: type) -> "Column[Array] | Array":
        if table is None:
            return self
        values = table.computed(self)
        vars(table)[self.name] = values  # where Python looks first from now on
        return values

    def of_jobs(self, jobs: Sequence[Job]) -> Array:
        """(jobs,) new."""
        return self._array(list(map(self._of or attrgetter(self.name), jobs)))


def int_column(of: Callable[[Job], int] | None = None) -> Column[IntArray]:
    """A column of whole numbers."""
    return Column(ints, of)


def float_column(of: Callable[[Job], float] | None = None) -> Column[FloatArray]:
    """A column of numbers."""
    return Column(floats, of)


def bool_column(of: Callable[[Job], bool] | None = None) -> Column[BoolArray]:
    """A column of truths."""
    return Column(lambda values: np.array(values, dtype=np.bool_), of)


def text_column(of: Callable[[Job], str] | None = None) -> Column[ObjectArray]:
    """A column of texts, or of choices."""
    return Column(lambda values: np.array(values, dtype=np.object_), of)


class JobColumns:
    """What jobs asked for, a row for each. Every table of jobs has these columns."""

    submitted_s = float_column()
    gpus = int_column()  # asked for
    min_gpus = int_column()  # fewest to run on
    max_gpus = int_column()  # most to run on
    batch_size = int_column()  # total samples a step as submitted, 0 unknown
    deadline_s = float_column()  # the first, infinite where there is none
    priority = int_column()  # larger is sooner
    weight = float_column()  # of shares
    interactive = bool_column(lambda job: job.kind is Kind.INTERACTIVE)  # a user waits for it
    rigid = bool_column(lambda job: job.adaptivity is Adaptivity.RIGID)  # gets exactly what it asked for
    preemptible = bool_column()  # may be stopped or moved once it runs
    gpus_per_worker = int_column()  # by which it grows and shrinks
    heterogeneous = bool_column()  # may hold GPUs of several types at once
    serves = bool_column(lambda job: job.purpose is Purpose.SERVING)  # answers requests within a latency
    saves = bool_column(lambda job: job.checkpoints is not False)  # its progress, where it is stopped
    has_reserved = bool_column(lambda job: job.reserved is not None)  # GPUs are kept for it
    varies_by_type = bool_column(lambda job: bool(job.replica_gpus))  # a worker has more GPUs on some types

    def computed(self, column: Column[Array]) -> Array:
        """The values of a column, a row for each job of this table."""
        raise NotImplementedError
