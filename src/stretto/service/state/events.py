"""Facts, as the log keeps them: frozen values whose fields are plain JSON.

An event says what has happened or has been decided, never what a user would like. Folding must accept
any event in any state: an event that no longer matters (a job is cancelled twice) changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar

from stretto.errors import InputError
from stretto.service.state.job_events import (
    ArraySubmitted,
    AttemptClosed,
    Cancelled,
    Checkpointed,
    Ended,
    Event,
    Generation,
    Held,
    Joined,
    Prioritised,
    Reported,
    Requeued,
    Retired,
    Scaled,
    StoreOpened,
    Submitted,
    WebhookDone,
    WorkerEnded,
    WorkerReady,
    WorkersEnded,
    WorkersJoined,
    WorkersRan,
    WorkersReady,
    WorkersStopped,
    WorkerStopped,
    WorkersWanted,
    body_of,
    subject_of,
)

__all__ = [  # beside what is defined here
    "ArraySubmitted",
    "AttemptClosed",
    "Cancelled",
    "Checkpointed",
    "Ended",
    "Event",
    "Generation",
    "Held",
    "Joined",
    "Prioritised",
    "Reported",
    "Requeued",
    "Retired",
    "Scaled",
    "StoreOpened",
    "Submitted",
    "WebhookDone",
    "WorkerEnded",
    "WorkerReady",
    "WorkerStopped",
    "WorkersEnded",
    "WorkersJoined",
    "WorkersRan",
    "WorkersReady",
    "WorkersStopped",
    "WorkersWanted",
    "body_of",
    "subject_of",
]


# ── the service ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Began(Event):
    """The first event of a log: when its clock was zero."""

    unix_s: float


@dataclass(frozen=True)
class ClockSet(Event):
    """The clocks were read: which time of day it is by the clock of the service, from here on.

    Named times are kept by `bound_unix_s`, which is `unix_s` unless it is not sure yet which one is right.
    """

    read_s: float  # when, on the clock of the service
    unix_s: float  # the time of day when that clock was zero
    bound_unix_s: float
    boot: str = ""  # the run of the machine
    awake_s: float = 0.0  # since the machine started, without what it has slept
    passed_s: float = 0.0  # the same with it
    jumped_s: float = 0.0  # by how much the time of day is ahead of what it should be; 0: by nothing


@dataclass(frozen=True)
class LeadTaken(Event):
    """A service leads from here on; all that earlier leaders still command is refused."""

    epoch: int  # larger than those of all leaders before


@dataclass(frozen=True)
class Incarnated(Event):
    """The log goes on without knowing all that it said once: a backup was restored, or it was begun anew.

    Ids of jobs up to this one may have been given since, and are not given again. Ids of workers carry the
    name from here on, so that none is used twice.
    """

    name: str
    last_id: int
    why: str = ""
    ends_elastic: bool = False  # attempts that train in generations are to end: later ones may be lost


@dataclass(frozen=True)
class Configured(Event):
    """The scheduler that decides from here on."""

    policy: str
    placer: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)  # SPACE.KEY → text, as on the command line
    seed: int = 0
    cluster: str = ""
    backend: str = ""
    fair_share_half_life_s: float = 0.0  # of usage; 0: usage orders no job
    fair_share_limits: bool = False  # who has its share gives way while others wait for theirs
    priorities: str = "ignored"  # "preempt": higher jobs go first and take from lower ones
    # "kept": nothing is lent that could not be taken back, and what is for a queue is for those in it, too
    quotas: str = "lent"
    defaults: str = "former"  # of settings that are younger than some logs; "current": as they are now
    speeds: str = (
        "assumed"  # that policies are shown: one curve for every job; "measured": what workers report
    )
    suspensions: str = "assumed"  # what policies are shown that these cost; "measured": as far as was seen
    resizes: str = "assumed"  # the same of changes of size in place
    # of a `deadline:` without rewards: 1 in logs that do not say, later 100, then 110
    deadline_worth: float = 1.0
    # "whole": no plan splits a worker of several GPUs over nodes, and what was measured counts workers;
    # "in range": and policies are shown no type on which no number of whole workers lies in a job's range
    workers: str = "split"
    webhooks: str = "lost"  # at a restart; "kept": what is to be delivered follows from the log
    drains: str = "restart"  # what trains on a drained node and elsewhere; "in place": it goes on elsewhere
    topology: str = (
        "ignored"  # "near": nodes are placed by zone, rack and NVLink domain, where these are known
    )
    # of nodes: who may not be preempted is "moved" off them, and what a policy planned there is forgotten;
    # "kept": it stays where it runs, and what was planned is remembered
    reservations: str = "moved"
    # what users have had: it is "ordered" by alone, or "shown" to policies, too
    usage: str = "ordered"
    # that counts for a job: its "own", and what its model had shown before it started; "model": all of that
    evidence: str = "own"
    profiles: str = "model"  # which jobs Sia profiles first: one of each "model", or each "job" that needs it
    # Every setting, also those that were left at their defaults of that day; {}: only `settings` is known.
    resolved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Audited(Event):
    """A user asked for something that changes or shows what belongs to others."""

    subject: ClassVar[str] = "who"
    who: str
    what: str
    about: str = ""
    refused: str = ""
    token: str = ""  # the name of the one that was shown
    client: str = ""  # the address that it came from


@dataclass(frozen=True)
class TokenMade(Event):
    """A token exists; only its digest is kept."""

    subject: ClassVar[str] = "name"
    name: str
    user: str
    role: str
    sha256: str
    expires_unix_s: float = 0.0  # 0: never
    scope: str = ""  # what of its role it opens: all (or ""), read, jobs


@dataclass(frozen=True)
class TokenUsed(Event):
    """A token was used; noted now and then, not each time."""

    subject: ClassVar[str] = "name"
    name: str
    unix_s: float


@dataclass(frozen=True)
class TokenRevoked(Event):
    """A token opens nothing any more."""

    subject: ClassVar[str] = "name"
    name: str


# ── nodes and queues ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class NodeSeen(Event):
    """A node is there, with these GPUs; the first time, it takes its place in the order of nodes."""

    subject: ClassVar[str] = "node"
    node: str
    gpu_type: str
    gpus: int
    cpus: int = 0
    memory_gb: float = 0.0
    address: str = ""
    shut: str = ""  # why its cluster lets nothing new start there
    others: int = 0  # GPUs that work of others holds
    remark: str = ""  # what somebody should look after there, although it is used
    zone: str = ""  # where it is in the network; "": unknown
    rack: str = ""
    nvlink_domain: str = ""
    taints: tuple[str, ...] = ()  # for which alone it is shut, but to jobs that tolerate them all


@dataclass(frozen=True)
class NodeLost(Event):
    """A node does not answer, or has gone. What ran there is unknown until it is back, or counts as lost."""

    subject: ClassVar[str] = "node"
    node: str
    why: str = ""


@dataclass(frozen=True)
class NodeDead(Event):
    """A node was silent for so long that its workers count as lost; if they return, they are stopped.

    Where its cluster knows that it is dead, no wait is needed: it was silent for 0 s.
    """

    subject: ClassVar[str] = "node"
    node: str
    silent_s: float


@dataclass(frozen=True)
class NodeCordoned(Event):
    """A node takes no new jobs (drain: and those that run there leave), or does again."""

    subject: ClassVar[str] = "node"
    node: str
    closed: bool
    drain: bool = False
    why: str = ""


@dataclass(frozen=True)
class TypesSeen(Event):
    """What is known of GPU types; nodes of types that are not among them have the usual values."""

    types: tuple[Mapping[str, Any], ...]  # name, memory_gb, speed, max_nodes_per_job, aliases


@dataclass(frozen=True)
class PriorityClassSet(Event):
    """Jobs that are submitted from now on may name this class; those that name none are of the default."""

    name: str
    value: int
    is_default: bool = False
    preempts: bool = True


@dataclass(frozen=True)
class PriorityClassDeleted(Event):
    """No new job is of this class; those that are there keep their priority."""

    name: str


@dataclass(frozen=True)
class QueueSet(Event):
    """A queue has these bounds from now on."""

    subject: ClassVar[str] = "name"
    name: str
    quota_gpus: int | None = None  # None: unbounded
    borrow_gpus: int = 0  # beyond the quota while others leave GPUs idle
    weight: float = 1.0
    users: tuple[str, ...] | None = None  # who may use it; None: everybody
    is_default: bool = False  # of jobs that name no queue
    shares: float = 1.0  # beside those of its siblings
    parent: str = ""  # the queue that it is a part of


@dataclass(frozen=True)
class QueueDeleted(Event):
    """There is no such queue any more; a job that came to be in it meanwhile is in the default queue."""

    subject: ClassVar[str] = "name"
    name: str


@dataclass(frozen=True)
class UserSharesSet(Event):
    """A user has so many shares from now on, beside the other users of each queue."""

    subject: ClassVar[str] = "user"
    user: str
    shares: float


@dataclass(frozen=True)
class GpuPriceSet(Event):
    """An hour of a GPU of this type costs so much from a time on, in the operator's currency."""

    subject: ClassVar[str] = "gpu_type"
    gpu_type: str
    price: float
    from_us: int  # a Unix time in microseconds, at a quarter of an hour


@dataclass(frozen=True)
class BudgetSet(Event):
    """Some jobs have a budget from now on; another one under the name is replaced."""

    subject: ClassVar[str] = "name"
    name: str
    unit: str  # gpu_hours or cost
    amount: float
    period: str  # day, week, month
    zone: str = "UTC"
    user: str = ""  # whose; "": of all users
    queue: str = ""  # with those in it; "": of all queues
    warn: float = 0.0  # share of the amount; 0: never
    hold: float = 0.0  # likewise
    stops: bool = False  # jobs that run, when it holds
    notify: tuple[str, ...] = ()
    set_by: str = ""


@dataclass(frozen=True)
class BudgetDeleted(Event):
    """There is no such budget any more, and no job waits for it."""

    subject: ClassVar[str] = "name"
    name: str


@dataclass(frozen=True)
class BudgetReached(Event):
    """So much of a budget is used in a period that it is at another level. Times are Unix microseconds."""

    subject: ClassVar[str] = "name"
    name: str
    level: str  # warn, hold; "": at none any more
    used: float
    amount: float
    unit: str
    from_us: int
    until_us: int


@dataclass(frozen=True)
class Reserved(Event):
    """GPUs are kept for a user or a queue from a time to a time; another one under the name is replaced."""

    subject: ClassVar[str] = "name"
    name: str
    from_s: float
    until_s: float
    gpu_type: str = ""
    gpus: int = 0
    nodes: tuple[str, ...] = ()
    user: str = ""
    queue: str = ""


@dataclass(frozen=True)
class Unreserved(Event):
    """A reservation is given up."""

    subject: ClassVar[str] = "name"
    name: str


# ── lenders ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LenderSet(Event):
    """Nodes belong to a lender: they are usable only while they are on loan. Those it had before are ours.

    Nodes may be named before they show themselves. One on which jobs hold GPUs is on loan from the first.
    """

    subject: ClassVar[str] = "name"
    name: str
    nodes: tuple[str, ...]
    headroom: float = 0.0  # share of its nodes that it never lends
    guarantee_s: float = 0.0  # from asking for nodes until it has them, at most; 0: none is stated
    configured: bool = False  # by a file that the service was started with: without it there is none


@dataclass(frozen=True)
class LenderDeleted(Event):
    """There is no such lender any more: its nodes are ours."""

    subject: ClassVar[str] = "name"
    name: str


@dataclass(frozen=True)
class NeedReported(Event):
    """A lender needs so many of its nodes itself from now on; part of a node counts as a whole one."""

    subject: ClassVar[str] = "lender"
    lender: str
    nodes: float


@dataclass(frozen=True)
class NodesHandedOver(Event):
    """Nodes are in the hands of their lender, with no process of ours on them, or in ours."""

    subject: ClassVar[str] = "lender"
    lender: str  # the one that they belong to, or that was the last to have them
    nodes: tuple[str, ...]
    to: str | None  # the lender; "": training, on loan; None: training, and no mark of a lender is left


@dataclass(frozen=True)
class GuaranteeMissed(Event):
    """A lender still lacks nodes that it has asked for, and its guarantee is over."""

    subject: ClassVar[str] = "lender"
    lender: str
    asked_s: float  # when it asked
    guarantee_s: float
    lacks: int  # nodes that it still lacks


# ── decisions ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Decided(Event):
    """A plan, before anything of it is done. What is stale by the time it is folded is dropped then."""

    seen: int  # number of the last event that the decision knew
    at_s: float  # the time of its snapshot
    due: tuple[str, ...]
    actions: tuple[Mapping[str, Any], ...]  # see `plans`
    wake_s: float | None = None
    memory: str = ""  # digest
    prices: tuple[float, ...] | None = None
    gap: float | None = None
    took_ms: float = 0.0
    batches: Mapping[str, Any] = field(default_factory=dict)  # job → `Batch.to_json` from now on
    preempted: Mapping[str, Any] = field(default_factory=dict)  # job → (by, its priority, GPUs that are left)
    # What was settled with lenders before: nodes lent and returned, jobs preempted and scaled_in, actions.
    loans: Mapping[str, Any] = field(default_factory=dict)


# Names are kept in logs: never change one
KINDS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


class UnknownEvent(InputError):
    """The log holds an event of a kind that this version does not know."""


def check_known(kind: str) -> None:
    """Raise UnknownEvent for a kind that we do not know."""
    if kind not in KINDS:
        raise UnknownEvent(f"the log holds an event of kind {kind!r}, written by a newer version")


def event_of(kind: str, body: Mapping[str, Any]) -> Event:
    """The event that was written; fields that we do not know come from a newer version and are left out.

    Raises UnknownEvent for a kind that we do not know: a newer version wrote a fact that cannot be left out.
    InputError where the body lacks what every event of its kind says.
    """
    check_known(kind)
    made = KINDS[kind]
    names, lists = _fields(made.__name__)
    try:
        return made(
            **{
                name: tuple(value) if name in lists and value is not None else value
                for name, value in body.items()
                if name in names
            }
        )
    except (TypeError, AttributeError) as error:
        raise InputError(f"an event of kind {kind!r} cannot be understood: {error}") from None


@cache
def _fields(kind: str) -> tuple[frozenset[str], frozenset[str]]:
    """Names of all fields, and of those that are tuples, which JSON gives back as lists."""
    every = fields(KINDS[kind])
    lists = frozenset(entry.name for entry in every if str(entry.type).startswith("tuple"))
    return frozenset(entry.name for entry in every), lists
