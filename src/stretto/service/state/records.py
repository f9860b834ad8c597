"""What the fold keeps of each job, worker and node. Changed by folding events, and by nothing else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from math import inf, isnan, nan
from typing import Any, ClassVar, NamedTuple

from stretto.jobfile import JobSpec
from stretto.jobfile.kubernetes_section import tolerates_all
from stretto.model import Account, Allocation, Batch, Job, account_of
from stretto.model.equality import equal_as_tuples
from stretto.service.state.usage import Cause, CauseKind, JobUsage, SizeChange

SHOWN = frozenset(  # of a training's reports, once it has ended
    (
        *("step", "epoch", "loss", "metric", "metrics", "batch", "left_s", "samples", "dataset_samples"),
        "progress_steps",
    )
)
MOST_ATTEMPTS = 20  # that are kept of a job, the newest; chosen
MOST_CHANGES = 200  # of size, that are kept of a job; chosen: some 20 kB
TERMINATED, KILLED = 143, 137  # 128 + SIGTERM, 128 + SIGKILL


class WorkerPhase(StrEnum):
    """Where a worker stands; `NEXT_PHASE` in `workers` says which event leads where.

    `Worker.life` is one of WANTED, RUNNING, READY and ENDED: what is known of its processes. The others
    follow from the generations of its attempt, see `JobRecord.phase_of`.
    """

    WANTED = "wanted"  # recorded; the backend may or may not have been told
    RUNNING = "running"  # its processes are there; one that does not use the SDK trains in this phase
    READY = "ready"  # has said so: it uses the SDK, and waits to be called into a generation
    JOINING = "joining"  # called into the newest generation, in which it does not train yet
    TRAINING = "training"  # in the newest generation
    LEFT = "left"  # has trained, and is not in the newest generation: it ends by itself
    STOPPING = "stopping"  # we have asked it to end
    ENDED = "ended"  # none of its processes is left


@lru_cache(maxsize=10_000)
def gpus_in(mask: int) -> tuple[int, ...]:
    """Numbers of the GPUs of a mask; of all nodes together there are few different ones."""
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)


@equal_as_tuples
@dataclass(slots=True)
class Worker:
    """One process of a job."""

    id: str
    job: str
    attempt: int
    node: int  # index into the cluster's nodes
    mask: int  # its GPUs there
    kind: int  # their type
    life: WorkerPhase = WorkerPhase.WANTED
    stopped: bool = False  # we have asked it to end
    asked_s: float = inf  # when
    status: int | None = None  # once it has ended
    why: str = ""  # what the status cannot tell
    joined: int = 0  # the latest generation that it trains in
    began_s: float = nan
    orphaned: str = ""  # the node that was lost while it ran there

    @property
    def has_begun(self) -> bool:
        """Whether its processes have been seen."""
        return not isnan(self.began_s)

    @property
    def has_trained(self) -> bool:
        """Whether it has joined a generation; until then it is a newcomer."""
        return self.joined > 0

    @property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of its GPUs on the node."""
        return gpus_in(self.mask)


@dataclass(frozen=True, slots=True)
class Membership:
    """A generation: the workers that train together, by rank."""

    number: int
    workers: tuple[str, ...]  # empty: all are to leave
    source: str = ""
    store: str = ""  # where rank 0 listens; "" before it does
    at_s: float = 0.0
    batch: Batch | None = None  # None: the script's own rule decides

    @property
    def have_begun(self) -> bool:
        """Whether the attempt trains in generations; number 0 is that of no generation yet."""
        return self.number > 0

    @property
    def leaves(self) -> bool:
        """Whether all workers are to save and end."""
        return not self.workers


NOBODY = Membership(0, ())


@equal_as_tuples
@dataclass(slots=True)
class Accounting:
    """What has come together over a job's life. What runs since `held_since_s` comes on top."""

    executed_s: float = 0.0
    attained_gpu_s: float = 0.0
    first_start_s: float = nan
    last_stop_s: float = nan
    held_since_s: float = nan  # NaN: holds nothing
    held_gpus: int = 0
    largest_held: int = 0
    starts: int = 0
    resizes: int = 0
    switches: int = 0  # generations joined by all members after the first
    lost_s: float = 0.0  # of training, in switches in place
    on_type_s: dict[int, float] = field(default_factory=dict)  # of `executed_s`, by GPU type, until now
    profiled_s: float = 0.0  # of `executed_s`, in profiling runs
    profiling: bool = False  # whether what is held now is held for such a run
    kind: int = -1  # GPU type of what is held now
    rate: int = 0  # at which its account is charged for that, see `rate_of`

    def hold(self, gpus: int, now_s: float, profiling: bool = False, kind: int = -1) -> None:
        """From now on the job holds so many GPUs, of this type."""
        if self.held_gpus:
            self.on_type_s[self.kind] = self.on_type_s.get(self.kind, 0.0) + now_s - self.held_since_s
            self.profiled_s += (now_s - self.held_since_s) * self.profiling
            self.executed_s += now_s - self.held_since_s
            self.attained_gpu_s += self.held_gpus * (now_s - self.held_since_s)
        if gpus and not self.held_gpus:
            self.starts += 1
            self.first_start_s = now_s if isnan(self.first_start_s) else self.first_start_s
        elif gpus and gpus != self.held_gpus:
            self.resizes += 1
        elif self.held_gpus and not gpus:
            self.last_stop_s = now_s
        self.held_gpus, self.held_since_s = gpus, now_s if gpus else nan
        self.profiling, self.kind = profiling and gpus > 0, kind if gpus else -1
        self.rate = self.rate if gpus else 0
        self.largest_held = max(self.largest_held, gpus)


@equal_as_tuples
@dataclass(slots=True)
class Learned:
    """What a job's reports have told so far."""

    latest: Mapping[str, Any] = field(default_factory=dict)
    # By GPU type index first, then as reported; newest of each shape
    points: tuple[tuple[float, ...], ...] = ()
    metrics: tuple[float, ...] = ()  # at the end of every epoch
    initial_loss: float = nan
    reported_s: float = nan
    profile: str = ""  # what short runs on one GPU of each type told beforehand, see `profiles`


@dataclass(frozen=True, slots=True)
class Prior:
    """What other jobs of a model have shown."""

    points: tuple[tuple[float, ...], ...] = ()  # as those of `Learned`
    said: Mapping[str, Any] = field(default_factory=dict)  # bounds of the batch, as scripts reported them
    shared: bool = False  # also by jobs that train, and beside what short runs told before

    @property
    def largest_gpus(self) -> int:
        """On how many GPUs it was measured."""
        return max((int(point[2]) for point in self.points), default=0)


@dataclass(frozen=True, slots=True)
class Suspensions:
    """How often jobs were stopped and went on later, or resized in place, and what that took in all."""

    count: int = 0
    # From being asked to stop until no process was left, and from a start until all workers trained; of a
    # resize, for how long those that trained before did not
    seconds: float = 0.0

    @property
    def mean_s(self) -> float:
        """Of one of them; NaN: there was none."""
        return self.seconds / self.count if self.count else nan

    def with_one(self, took_s: float) -> "Suspensions":
        """And one more."""
        return Suspensions(self.count + 1, self.seconds + took_s)


@dataclass(frozen=True, slots=True)
class Preempted:
    """GPUs of a job went to one of higher priority."""

    by: str  # the other job
    priority: int  # of the other job
    gpus: int  # that were left; 0: it was stopped
    at_s: float

    @property
    def words(self) -> str:
        """Which job took how much."""
        left = f"{self.gpus} GPU{'s' * (self.gpus != 1)} left" if self.gpus else "stopped"
        return f"by {self.by} (priority {self.priority}), {left}"


class Attempt(NamedTuple):
    """When an attempt began, and why it had to: what became of the one before."""

    number: int
    at_s: float
    why: str = ""  # of the first, or not known


NO_PRIOR, NOTHING_LEARNED = Prior(), Learned()  # the same for all that need it; never changed
NO_SUSPENSIONS = Suspensions()


@equal_as_tuples
@dataclass(slots=True)
class JobRecord:
    """One job, from its submission to its end."""

    spec: JobSpec
    job: Job
    user: str
    key: str
    secret: str
    number: int  # order of submission
    array: str = ""  # of which it is a task
    index: int | None = None  # of the task
    max_parallel: int | None = None  # tasks of the array that may run at the same time; None: all
    after: tuple[str, ...] = ()  # jobs and arrays that come first, by id, as `depends_on` names them
    outcomes: Mapping[str, bool] = field(default_factory=dict)  # of these, that had ended before: if well
    held: bool = False
    not_before_s: float = 0.0
    ending: str = ""  # the state it is to end in: a user cancelled it, or it ran out of time
    why: str = ""
    attempt: int = 0
    incarnations: tuple[tuple[int, str], ...] = ()  # (first attempt, name) that ids of its workers carry
    workers: dict[str, Worker] = field(default_factory=dict)  # of the current attempt, dead ones included
    next_worker: int = 0
    members: Membership = NOBODY
    batch: Batch | None = None  # that the latest decision about it wants
    port: int = 0
    closed: int = 0  # the last attempt that is over
    attempts: tuple[Attempt, ...] = ()  # the newest ones
    end_why: str = ""  # why the current attempt was asked to end, then why it ended; until the next begins
    failures: int = 0  # attempts that failed by themselves
    losses: int = 0  # attempts that were lost with a node, or killed by others
    crash_loops: int = 0  # times in a row that it was killed by others and had got no further since
    highest_reported: dict[str, float] = field(default_factory=dict)  # steps and epochs, of all attempts
    made_progress: bool = False  # since it was last killed: by a report, or by a checkpoint
    uses_sdk: bool | None = None  # over the channel: it uses the SDK; None: not known yet
    failed_joiners: int = 0  # newcomers of this attempt that ended before they took part
    status: int | None = None
    prior: Prior = NO_PRIOR  # of other jobs of its model: until it starts, or, where it is shared, ends
    checkpoint: str = ""
    checkpoint_step: int = 0
    accounting: Accounting = field(default_factory=Accounting)
    usage: JobUsage = field(default_factory=JobUsage)
    size_changes: list[SizeChange] = field(default_factory=list)  # the newest ones
    has_dropped_changes: bool = False  # there were more
    learned: Learned = field(default_factory=Learned)  # replaced, never changed, by a report
    suspensions: Suspensions = NO_SUSPENSIONS
    resizes: Suspensions = NO_SUSPENSIONS  # in place, as far as its workers say what they lost
    starts_s: float = nan  # since when workers of the current attempt are wanted
    stop_s: float = nan  # that the last stop took, until the job trains again; NaN: it was not stopped
    preempted: Preempted | None = None  # the last time that a job of higher priority took its GPUs
    took_from: tuple[str, ...] = ()  # jobs of lower priority from which it took GPUs, the last ones
    reason: str = ""  # why it ended, for programs, where it never ran
    state: str = ""  # the last one, once it has ended
    ended_s: float = nan
    logs_deleted_s: float = nan  # when its logs were deleted, of a job that had left the state before

    @property
    def id(self) -> str:
        """Its name among jobs."""
        return self.job.id

    @property
    def queue(self) -> str:
        """Where it waits: what its file names, or the default queue."""
        return self.job.queue

    @property
    def account(self) -> Account:
        """Which account is charged for what it holds."""
        return account_of(self.job)

    def note_size(self, change: SizeChange) -> None:
        """Keep a change of what it holds, and forget the oldest of too many."""
        self.size_changes.append(change)
        if len(self.size_changes) > MOST_CHANGES:
            del self.size_changes[: MOST_CHANGES // 4]
            self.has_dropped_changes = True

    @property
    def has_ended(self) -> bool:
        """Whether it has come to its last state."""
        return bool(self.state)

    @property
    def is_open(self) -> bool:
        """Whether its current attempt is not over."""
        return self.attempt > self.closed

    def worker_id(self, attempt: int, index: int) -> str:
        """JOB.ATTEMPT.INDEX, with the incarnation of the log in which the attempt began."""
        names = [name for first, name in self.incarnations if first <= attempt]
        return worker_id(self.id, attempt, index, names[-1] if names else "")

    def end(self, state: str, now_s: float) -> None:
        """It has come to its last state: nothing is decided of it any more, and only what is shown stays."""
        self.state, self.ended_s = state, now_s
        learned = self.learned
        latest = {key: value for key, value in learned.latest.items() if key in SHOWN}
        self.learned = Learned(latest, reported_s=learned.reported_s) if latest else NOTHING_LEARNED
        self.workers, self.highest_reported, self.prior = {}, {}, NO_PRIOR
        self.accounting.on_type_s = {}

    def resize(self, min_gpus: int, max_gpus: int) -> None:
        """The owner wants other sizes from now on; what was asked for first is brought into the range."""
        asked = min(max(self.job.gpus, min_gpus), max_gpus)
        self.job = replace(self.job, min_gpus=min_gpus, max_gpus=max_gpus, gpus=asked)

    @property
    def alive(self) -> list[Worker]:
        """Workers of which processes may exist, by index."""
        return [worker for worker in self.workers.values() if worker.life is not WorkerPhase.ENDED]

    def phase_of(self, worker: Worker) -> WorkerPhase:
        """Where a worker of the current attempt stands."""
        if worker.life is WorkerPhase.ENDED:
            return WorkerPhase.ENDED
        if worker.stopped:
            return WorkerPhase.STOPPING
        if worker.id in self.members.workers:
            has_joined = worker.joined >= self.members.number
            return WorkerPhase.TRAINING if has_joined else WorkerPhase.JOINING
        return WorkerPhase.LEFT if worker.has_trained else worker.life

    @property
    def elastic(self) -> bool:
        """Whether this attempt can change its size in place: its workers speak over the channel."""
        return self.members.have_begun or any(
            worker.life is WorkerPhase.READY for worker in self.workers.values()
        )


@dataclass
class NodeRecord:
    """One machine.

    Each change of one is another `last_change`: what was worked out of nodes may be kept until then.
    """

    last_change: ClassVar[object] = object()  # of any node of any state

    name: str
    gpu_type: str
    gpus: int
    cpus: int = 0
    memory_gb: float = 0.0
    address: str = ""
    up: bool = True
    other: tuple[int, str] | None = None  # GPUs and type that it came back with, where it cannot be used so
    silent_s: float = nan  # since when nothing has been heard of it; NaN: it is up
    dead: bool = False  # silent for so long that no job waits for its workers
    cordoned: bool = False  # takes no new jobs, since somebody said so
    drained: bool = False  # and keeps none
    shut: str = ""  # why its cluster lets nothing new start there
    taints: tuple[str, ...] = ()  # for which alone it is shut, but to jobs that tolerate them all
    others: int = 0  # GPUs that work of others holds
    remark: str = ""  # what somebody should look after there, although it is used
    zone: str = ""  # where it is in the network; "": unknown
    rack: str = ""
    nvlink_domain: str = ""
    lost_why: str = ""  # why it is down
    cordon_why: str = ""  # why somebody closed it
    lender: str = ""  # to which it belongs; "": it is ours
    on_loan: bool = False  # of a lender's node: jobs may use it, by the latest settlement
    in_hands_of: str = ""  # the lender that it was handed over to; "": us. It follows `on_loan` after a while
    marked_for: str = ""  # the latest lender of which the cluster may keep a mark on it; "": of none

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field, and say that a node has changed."""
        super().__setattr__(name, value)
        NodeRecord.last_change = object()

    @property
    def why(self) -> str:
        """Why it is not used as usual, or what an operator should look after there; "" for neither."""
        return self.lost_why or self.cordon_why or self.shut or self._lenders or self.remark

    @property
    def _lenders(self) -> str:
        return "" if self.is_ours else f"belongs to lender {self.lender}, not on loan"

    @property
    def is_ours(self) -> bool:
        """Whether training may use it: it belongs to no lender, or is on loan."""
        return not self.lender or self.on_loan

    @property
    def hands(self) -> str | None:
        """The lender that it should be in the hands of; "": ours, on loan; None: ours, of no lender."""
        if not self.lender:
            return None
        return "" if self.on_loan else self.lender

    @property
    def is_where_it_should_be(self) -> bool:
        """Whether its cluster has nothing to be told, but what it may have forgotten."""
        if self.hands is None:
            return not self.in_hands_of and not (self.marked_for and self.up)
        return self.hands == self.in_hands_of

    @property
    def closed(self) -> bool:
        """Whether it takes no new jobs, but for those that tolerate its taints."""
        return self.cordoned or bool(self.shut)

    @property
    def keeping_away(self) -> tuple[str, ...]:
        """Taints for which alone it is closed: it takes jobs that tolerate them all."""
        return self.taints if self.closed and not self.cordoned else ()

    def is_closed_to(self, record: JobRecord) -> bool:
        """Whether it takes no new workers of a job."""
        if not self.keeping_away:
            return self.closed
        return not tolerates_all(record.spec.kubernetes, self.keeping_away)


LEVELS = ("zone", "rack", "nvlink_domain")  # of the network, outermost first; fields of a node


def levels_named(nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """The levels that some node has a domain of."""
    return tuple(level for level in LEVELS if any(getattr(node, level) for node in nodes))


def worker_id(job: str, attempt: int, index: int, incarnation: str) -> str:
    """The id of a worker of an attempt that begins in this incarnation of the log."""
    return f"{job}.{attempt}-{incarnation}.{index}" if incarnation else f"{job}.{attempt}.{index}"


def incarnation_in(worker: str) -> str:
    """The incarnation that the id of a worker carries."""
    return worker.rpartition(".")[0].rpartition(".")[2].partition("-")[2]


def orphaned_by(record: JobRecord) -> str:
    """The node that the current attempt has lost; "" for none."""
    return next((worker.orphaned for worker in record.workers.values() if worker.orphaned), "")


def by_owner(record: JobRecord) -> Cause:
    """What the owner of a job is charged for."""
    return Cause(CauseKind.OWNER, record.id, record.user, record.queue)


@dataclass
class Token:
    """The user of a token, its role, and until when it holds. Times are Unix times; 0: never."""

    name: str
    user: str
    role: str
    sha256: str
    expires_unix_s: float = 0.0
    used_unix_s: float = 0.0  # as it was noted last
    scope: str = ""  # what of its role it opens; "": all

    def has_expired(self, unix_s: float) -> bool:
        """Whether it opens nothing any more."""
        return 0 < self.expires_unix_s <= unix_s


def allocation_gpus(allocation: Allocation | None) -> int:
    """GPUs of an allocation; 0 for none."""
    return 0 if allocation is None else allocation.gpus


# ── what is still counted of jobs that have left the state ─────────────────────────────────────────────────


@dataclass
class ArchivedTotals:
    """Jobs that have left."""

    jobs: int = 0
    spells: int = 0  # of GPU time, which the table of usage has
    spell_gpu_us: int = 0

    def take(self, record: JobRecord) -> None:
        """A job that has ended leaves."""
        self.jobs += 1
        self.spells += len(record.usage.spells)
        self.spell_gpu_us += sum(spell.gpu_us for spell in record.usage.spells)
