"""Facts about jobs, from their submission to the day on which they leave the state; `jobs` folds them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stretto.service.state.event import Event


@dataclass(frozen=True)
class Submitted(Event):
    """A job is ours; its owner has been or is about to be told so."""

    subject: ClassVar[str] = "job"
    job: str
    spec: Mapping[str, Any]
    user: str = ""
    key: str = ""  # of idempotency
    secret: str = ""  # digest of the token that opens the channel of its workers
    array: str = ""  # of which it is a task; of these tasks the specification says nothing
    index: int | None = None  # of the task
    at_once: int | None = None  # so many tasks of the array may run at the same time; None: all
    after: tuple[str, ...] = ()  # ids of the jobs and arrays that `depends_on` names, in its order
    settled: Mapping[str, bool] = field(default_factory=dict)  # of those that had ended: whether well


@dataclass(frozen=True)
class ArraySubmitted(Event):
    """The jobs of an array are ours: one specification for all its tasks, however many there are."""

    subject: ClassVar[str] = "array"
    array: str
    spec: Mapping[str, Any]
    ranges: tuple[tuple[int, int], ...]  # (first, last) index of tasks, in order
    user: str = ""
    key: str = ""  # of idempotency; it is that of the first task
    at_once: int | None = None
    after: tuple[str, ...] = ()
    settled: Mapping[str, bool] = field(default_factory=dict)

    def tasks(self) -> Iterator[Submitted]:
        """Its jobs one by one; they share everything but their names."""
        indices = (index for first, last in self.ranges for index in range(first, last + 1))
        for number, index in enumerate(indices):
            yield Submitted(
                f"{self.array}_{index}",
                self.spec,
                self.user,
                "" if number else self.key,
                array=self.array,
                index=index,
                at_once=self.at_once,
                after=self.after,
                settled=self.settled,
            )


@dataclass(frozen=True)
class Retired(Event):
    """These jobs ended a while ago and leave the state: from here on the table of ended jobs has them."""

    jobs: tuple[str, ...]


@dataclass(frozen=True)
class Held(Event):
    """A job is not to run until it is released."""

    subject: ClassVar[str] = "job"
    job: str
    held: bool


@dataclass(frozen=True)
class Scaled(Event):
    """The owner has changed the range of sizes."""

    subject: ClassVar[str] = "job"
    job: str
    min_gpus: int
    max_gpus: int


@dataclass(frozen=True)
class Prioritised(Event):
    """A job comes sooner or later than it did."""

    subject: ClassVar[str] = "job"
    job: str
    priority: int


@dataclass(frozen=True)
class Requeued(Event):
    """A job's attempt is to end, and it waits anew until a time."""

    subject: ClassVar[str] = "job"
    job: str
    not_before_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Cancelled(Event):
    """A job is to end, whatever it does."""

    subject: ClassVar[str] = "job"
    job: str
    why: str = ""
    state: str = "CANCELLED"  # or TIMEOUT


@dataclass(frozen=True)
class Ended(Event):
    """A job has come to its last state; none of its processes is left."""

    subject: ClassVar[str] = "job"
    job: str
    state: str
    status: int | None = None
    why: str = ""
    reason: str = ""  # for programs, where it never ran
