"""Facts about attempts, their workers and generations, and what those report; `workers` folds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from stretto.service.state.event import Event


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
    workers: tuple[Mapping[str, Any], ...]  # id, status, and why where there is more to say


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
    """Who is to train together from the next common step on; nobody: all are to leave."""

    subject: ClassVar[str] = "job"
    job: str
    attempt: int
    number: int
    workers: tuple[str, ...]  # by rank
    source: str = ""
    batch: tuple[int, ...] = ()  # samples of a step, of a pass of one worker, passes; (): the script's rule


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
