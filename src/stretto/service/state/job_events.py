"""Facts about jobs, their attempts, workers and generations; `jobs` and `workers` fold them.

An event is a frozen value whose fields are plain JSON, as the log keeps it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from stretto.jobfile import JobSpec


@dataclass(frozen=True)
class Event:
    """The base of all; `subject` names the field that says which job it is about."""

    subject: ClassVar[str] = ""


def body_of(event: Event) -> dict[str, Any]:
    """The fields as JSON values."""
    return {entry.name: getattr(event, entry.name) for entry in fields(event)}


def subject_of(event: Event) -> str:
    """The job that it is about; "" for the service itself."""
    return str(getattr(event, event.subject)) if event.subject else ""


# ── facts about jobs, from their submission to the day on which they leave the state; `jobs` folds them ─────


class WrittenSpec(dict[str, Any]):
    """A specification as the log keeps it, and as it was before: to fold it, nothing need be read again."""

    read: JobSpec

    @classmethod
    def of(cls, spec: JobSpec) -> "WrittenSpec":
        """The JSON values of a specification."""
        written = cls(spec.to_json())
        written.read = spec
        return written


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


@dataclass(frozen=True)
class WebhookDone(Event):
    """A webhook was delivered, or is given up."""

    subject: ClassVar[str] = "job"
    job: str
    webhook: str  # its id
    why: str = ""  # it is given up; "": it was delivered


# ── facts about attempts, their workers and generations, and what those report; `workers` folds them ────────


@dataclass(frozen=True)
class WorkersWanted(Event):
    """These workers are to be started: recorded before any of them is, so that no id is used twice."""

    subject: ClassVar[str] = "job"
    job: str
    attempt: int
    workers: tuple[Mapping[str, Any], ...]  # id, node, mask (of GPUs)
    port: int = 0  # where rank 0 of a job without our SDK is to listen


@dataclass(frozen=True)
class WorkersRan(Event):
    """The backend shows these workers running."""

    subject: ClassVar[str] = "job"
    job: str
    workers: tuple[str, ...]


@dataclass(frozen=True)
class WorkerReady(Event):
    """A worker has said that it can take part."""

    subject: ClassVar[str] = "job"
    job: str
    worker: str


@dataclass(frozen=True)
class WorkerStopped(Event):
    """We have asked a worker to end; how it ends is then no failure of the job."""

    subject: ClassVar[str] = "job"
    job: str
    worker: str


@dataclass(frozen=True)
class WorkerEnded(Event):
    """None of a worker's processes is left."""

    subject: ClassVar[str] = "job"
    job: str
    worker: str
    status: int
    why: str = ""


@dataclass(frozen=True)
class WorkersReady(Event):
    """As `WorkerReady`, of several at once."""

    subject: ClassVar[str] = "job"
    job: str
    workers: tuple[str, ...]


@dataclass(frozen=True)
class WorkersStopped(Event):
    """As `WorkerStopped`, of several at once."""

    subject: ClassVar[str] = "job"
    job: str
    workers: tuple[str, ...]


@dataclass(frozen=True)
class WorkersEnded(Event):
    """As `WorkerEnded`, of several at once."""

    subject: ClassVar[str] = "job"
    job: str
    # id, status, why where there is more to say, and orphaned: the node that has lost it, where it says so
    workers: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class AttemptClosed(Event):
    """None of an attempt's workers is left, and this is what became of it: done, failed, lost or left."""

    subject: ClassVar[str] = "job"
    job: str
    attempt: int
    outcome: str
    status: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Generation(Event):
    """The workers that are to train together from the next common step on; none: all are to leave."""

    subject: ClassVar[str] = "job"
    job: str
    attempt: int
    number: int
    workers: tuple[str, ...]  # by rank
    source: str = ""
    batch: tuple[int, ...] = ()  # see `Batch.to_json`; (): the script's rule


@dataclass(frozen=True)
class StoreOpened(Event):
    """Rank 0 of a generation listens."""

    subject: ClassVar[str] = "job"
    job: str
    number: int
    address: str


@dataclass(frozen=True)
class Joined(Event):
    """A worker trains in a generation."""

    subject: ClassVar[str] = "job"
    job: str
    worker: str
    number: int
    step: int = 0
    lost_s: float = 0.0


@dataclass(frozen=True)
class WorkersJoined(Event):
    """As `Joined`, of several at once."""

    subject: ClassVar[str] = "job"
    job: str
    workers: tuple[str, ...]
    number: int
    step: int = 0
    lost_s: float = 0.0


@dataclass(frozen=True)
class Reported(Event):
    """What rank 0 says of the training: what has changed since the last such event."""

    subject: ClassVar[str] = "job"
    job: str
    report: Mapping[str, Any]
    metrics_kept: int = 0  # of `epoch_metrics`: so many that are known come before those of the report


@dataclass(frozen=True)
class Checkpointed(Event):
    """A checkpoint is complete."""

    subject: ClassVar[str] = "job"
    job: str
    step: int
    path: str
