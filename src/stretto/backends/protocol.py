"""What the service asks of a backend, and the values that pass between them.

A backend knows nodes and workers, no jobs and no plans. Everything may be asked again: a worker's id is
never used twice, so that a start that is repeated is the same start.

A worker that a backend does not list is gone only if its node is up, or known to be dead. A node may be only
silent, or not reached since this service started. Then nothing is known of it, and its GPUs must not be given
to others.

GPUs of a worker are places on its node, from 0. A cluster that hands out devices itself takes only their
number, and its workers find in CUDA_VISIBLE_DEVICES what it gave.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from stretto.agent.unix_users import Account
from stretto.errors import StrettoError
from stretto.jobfile import JobSpec

Phase = Literal["starting", "running", "ended", "unknown"]


class BackendUnreachable(StrettoError):
    """The node did not answer. What was asked may have happened or not; asking again does no harm."""


class NotNow(BackendUnreachable):
    """The node answers but cannot do it yet: a GPU is still in use, or its disk is full. Ask again later."""


class StaleLeader(StrettoError):
    """A node has been commanded by a later leader than us: `epoch` is its number. Nothing was done."""

    def __init__(self, why: str, epoch: int) -> None:
        super().__init__(why)
        self.epoch = epoch


class StartRefused(StrettoError):
    """A worker was not started and never will be: the id is taken or was used, or the request is wrong."""


class IdUsed(StartRefused):
    """A worker of this id has run before, has ended and was forgotten: how it ended is not known any more."""


class NoSuchWorker(StrettoError):
    """The node knows no worker of this id; it was never started there, or has been forgotten."""


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """One worker to start: a process, and the GPUs of one node that it alone may use.

    Whatever runs it adds two variables to `env`, by which workers, and the shipped suites, know themselves:
    `STRETTO_WORKER_ID` is `id`, and `CUDA_VISIBLE_DEVICES` names its GPUs.
    """

    id: str  # JOB.ATTEMPT.INDEX of letters, digits, '.', '_' and '-'; never used twice
    job: str
    node: str
    gpus: tuple[int, ...]  # indices on the node, from 0
    command: tuple[str, ...] | str  # a program and its arguments, or a line for the shell
    # Added to what the node gives every worker: the two variables above, and what it likes.
    env: Mapping[str, str]
    cwd: str = ""  # "" = the worker's own run directory
    grace_s: float = 30.0  # from SIGTERM to SIGKILL where a stop does not say
    name: str = ""  # of the job, where people look at what runs
    cpus: float = 0.0  # that this worker is to have; 0: as usual
    memory_gb: float = 0.0
    asks: Mapping[str, Mapping[str, Any]] = field(  # what the job asks of one backend, by the backend's name
        default_factory=dict
    )
    image: str = ""  # of the container that its command runs in; "": none
    account: Account | None = None  # the Unix user that it runs as; None: whoever runs the backend
    master: str = ""  # the worker whose address is in MASTER_ADDR, where a backend knows it by another one
    own: tuple[str, ...] = ()  # directories that are made for that user where they are missing
    # Variables that only the worker may see: on no command line, in no file that stays, in no log.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def request(self) -> dict[str, Any]:
        """What the process that runs it is asked for, as JSON values, but for the id.

        Of secrets it has the names only: requests are kept, compared and shown.
        """
        return {
            "job": self.job,
            "gpus": list(self.gpus),
            "command": self.command if isinstance(self.command, str) else list(self.command),
            "env": dict(self.env),
            "cwd": self.cwd,
            "grace_s": self.grace_s,
            **({"account": asdict(self.account), "own": list(self.own)} if self.account else {}),
            **({"secrets": sorted(self.secrets)} if self.secrets else {}),
            **({"image": self.image} if self.image else {}),
        }

    def request_with_secrets(self) -> dict[str, Any]:
        """The request with the values of its secrets, for the process that hands them to the worker."""
        return {**self.request(), **({"secrets": dict(self.secrets)} if self.secrets else {})}


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as its node last showed it.

    Its GPUs are free only in phase *ended*: then neither its process nor any that it started is left. In
    phase *running* with a `status`, the command itself has ended, and something that it started still runs.
    One that has ended always has a status: 137 where it was lost, 143 where it was withdrawn before it began.
    """

    id: str
    node: str
    gpus: tuple[int, ...]
    phase: Phase
    status: int | None = None  # exit status of the command; 128 + n when signal n ended it
    signal: int | None = None  # the signal that ended it
    stopped: bool = False  # a stop was asked for before the command ended
    pid: int | None = None
    started_s: float | None = None  # wall clock, for people to read
    ended_s: float | None = None
    lasted_s: float | None = None  # from start to end, by a clock that is never set
    job: str = ""
    why: str = ""  # what a status cannot tell, such as a command that was not found
    is_nodes_fault: bool = False  # its node has lost it, and says so: its command is not to blame

    @property
    def holds_gpus(self) -> bool:
        """Whether its GPUs may not be given to others yet."""
        return self.phase != "ended"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One machine as it last showed itself."""

    name: str
    gpu_type: str
    gpus: int
    cpus: int = 0
    memory_gb: float = 0.0
    up: bool = True
    address: str = ""  # under which workers of other nodes reach it; "" = unknown
    why: str = ""  # why it is down
    dead: bool = False  # down, and the cluster knows for sure that nothing of ours runs there any more
    shut: str = ""  # why nothing new may start there, although it is up; "" = it may
    # Taints of Kubernetes for which it is shut, and for nothing else: it takes jobs that tolerate them all
    taints: tuple[str, ...] = ()
    others: int = 0  # GPUs that work of other people holds, which we know nothing of
    remark: str = ""  # what somebody should look after there, although it is used; "" for nothing
    comes: bool = (
        False  # the cluster starts it, or another in its place, when it is asked for; else it is dead
    )
    zone: str = ""  # where it is in the network, as its cluster names that; "" = unknown
    rack: str = ""
    nvlink_domain: str = ""  # nodes of the same one reach each other's GPUs by NVLink


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of what a worker has written to its standard output and error."""

    data: bytes
    offset: int  # of the first byte of `data`
    next_offset: int  # where to read on
    complete: bool  # the worker has ended, and nothing follows


@runtime_checkable
class IncrementalListing(Protocol):
    """A backend of so many workers that listing them all at every change would be too slow."""

    async def changed_workers(self) -> Sequence[WorkerState]:
        """Those that differ from what was shown when this was last asked."""
        ...


@runtime_checkable
class Fences(Protocol):
    """A backend that takes the number of its leader along with each command.

    Where a later leader has commanded, start, stop, signal, forget and delete_logs raise StaleLeader.
    """

    epoch: int  # of the service that leads; 0: none does


@runtime_checkable
class Remarks(Protocol):
    """A backend whose cluster may lack something that no node and no job shows."""

    @property
    def remark(self) -> str:
        """What is to be looked after there, for eyes without a token; "" for nothing."""
        ...


@runtime_checkable
class HandsSecrets(Protocol):
    """A backend that hands `WorkerStart.secrets` to the worker and to nothing else.

    With another one, jobs that name secrets are refused when they are submitted.
    """

    hands_secrets: bool  # True


@runtime_checkable
class FetchesUploads(Protocol):
    """A backend whose workers run their command, in `STRETTO_SETUP_DIR` as it says, and reach the service.

    They fetch what their job has brought along. With another one, jobs with an upload are refused.
    """

    fetches_uploads: bool  # True


@runtime_checkable
class RunsImages(Protocol):
    """A backend that runs the command of a worker in the container image that `WorkerStart.image` names.

    With another one, jobs that name an image are refused when they are submitted.
    """

    runs_images: bool  # True


@runtime_checkable
class Validates(Protocol):
    """A backend whose cluster has rules of its own for what may be asked of it."""

    async def check(self, spec: JobSpec) -> None:
        """Raise InputError for a job that this cluster would never take."""
        ...


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Workers of one job that need nodes of a type that comes and goes."""

    gpu_type: str  # of `NodeState`
    workers: int
    gpus: int  # of each, on one node
    cpus: float = 0.0
    memory_gb: float = 0.0
    job: str = ""


@runtime_checkable
class AnswersRequests(Protocol):
    """A backend whose cluster says what becomes of requests for nodes."""

    async def answers(self) -> Mapping[str, str]:
        """The latest words of the cluster, by job; nothing of jobs of which it says nothing."""
        ...


@runtime_checkable
class Autoscales(Protocol):
    """A backend whose cluster starts nodes when they are asked for, and ends those that idle.

    Such nodes have places in `nodes`, with `comes`, whether or not a machine is there.
    """

    async def wish(self, wishes: Sequence[NodeRequest]) -> None:
        """Ask for room for all of these, beside what others hold; whatever was asked before holds no more.

        They include those that run, so that nothing is asked for twice while one begins. () takes everything
        back: what idles may go. Raises BackendUnreachable.
        """
        ...


@runtime_checkable
class HandsOver(Protocol):
    """A backend whose cluster is told whose a node is: a lender's, such as an inference service, or ours.

    Without it a node changes hands in the service's own records only.
    """

    async def hand_over(self, nodes: Sequence[str], to: str | None) -> None:
        """Give nodes to the lender `to`, or, where that is "", to training, on loan.

        With None they are training's and belong to no lender any more: no mark of one is left on them.

        Returns once the cluster has taken it. No worker of ours is on nodes that go to a lender. While they
        are there, `start` raises NotNow, also over a new connection. What was handed over before may be
        again, which does no harm. Raises BackendUnreachable, to be asked again.
        """
        ...


class Line(Protocol):
    """Bytes both ways between the service and a program beside a worker: frames of `agent.exec_session`."""

    async def readexactly(self, n: int, /) -> bytes:
        """So many bytes; raises EOFError at its end, OSError where it breaks."""
        ...

    def write(self, data: bytes, /) -> None:
        """Leave bytes to be sent."""
        ...

    async def drain(self) -> None:
        """Wait until there is room for more; raises OSError where it breaks."""
        ...

    def close(self) -> None:
        """Let go of it: what runs at the other end is ended."""
        ...


@runtime_checkable
class ReachesWorkers(Protocol):
    """A backend that starts programs and connections beside a worker that runs."""

    async def reach(self, worker_id: str) -> Line:
        """A line to a new `stretto.agent.exec_session` beside a worker; the first frame says what to start.

        Raises NoSuchWorker, BackendUnreachable, and InputError where this worker cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one GPU has done lately."""

    busy: float | None  # share of the last half minute in which anything ran on it; None: it does not tell
    used_bytes: int  # of its memory
    bytes: int


@runtime_checkable
class MeasuresGpus(Protocol):
    """A backend that knows how busy GPUs are."""

    def gpu_use(self) -> Mapping[str, Sequence[GpuUse | None]]:
        """By node that is up, of each of its GPUs in their order; None, or no such node: not known."""
        ...


class Backend(Protocol):
    """Starts, stops, lists and shows logs of workers.

    All but `nodes`, `workers` and `changes` raise BackendUnreachable where the node does not answer.
    """

    async def nodes(self) -> Sequence[NodeState]:
        """Every node, by name, also those that are down.

        The service compares values: it does not matter whether this is the same list each time.
        """
        ...

    async def workers(self) -> Sequence[WorkerState]:
        """Every worker that is not forgotten, by id, as last seen; what we started is there at once."""
        ...

    async def changes(self, after: int, wait_s: float = 20.0) -> int:
        """Wait until `nodes` or `workers` differ from what they were at `after`; the newest number.

        Numbers hold for this object only; 0 comes before everything.
        """
        ...

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Start a worker unless it was started before.

        Raises StartRefused, as IdUsed where the one that was started is forgotten; NotNow if a GPU is in use.
        """
        ...

    async def stop(self, worker_id: str, grace_s: float) -> None:
        """SIGTERM now, and SIGKILL to all that is left after `grace_s`; raises NoSuchWorker.

        Returns once that is sure to happen. A second stop may shorten the time, never lengthen it. A worker
        that has ended stays as it is.
        """
        ...

    async def signal(self, worker_id: str, signal: int) -> None:
        """Send a signal to the process group of a worker, if it still runs; raises NoSuchWorker."""
        ...

    async def log(
        self, worker_id: str, offset: int = 0, limit: int = 1 << 20, wait_s: float = 0.0
    ) -> LogPiece:
        """Bytes from `offset` (negative: from the end), waiting up to `wait_s` for some; raises NoSuchWorker.

        The log of a forgotten worker can be read until the logs of its job are deleted.
        """
        ...

    async def forget(self, worker_id: str) -> None:
        """List an ended worker no more; its log stays. One that still runs stays listed."""
        ...

    async def delete_logs(self, job: str) -> None:
        """Remove what is left of a job's forgotten workers, on all nodes."""
        ...

    async def close(self) -> None:
        """Let go of connections. Workers and agents go on."""
        ...


# ── waiting until something has changed ─────────────────────────────────────────────────────────────────────


class LongPoll:
    """A version that counts changes, and any number of waits for the next one."""

    def __init__(self) -> None:
        self.version = 1  # 0 comes before everything, so that a first wait ends at once
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Count a change, and end all waits."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()  # a new one, for waits that begin from now on

    async def wait(self, after: int, wait_s: float) -> int:
        """The version, once it is not `after` any more or `wait_s` is over."""
        if self.version == after:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        return self.version
