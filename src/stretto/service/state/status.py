"""Where a job stands, in the words that people and their tools see, and why it waits."""

from collections import Counter
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from math import isnan
from typing import Any

from stretto.jobfile import After
from stretto.model import Allocation, BoolArray, Plan, Purpose, Snapshot, Why, gpus_by_type
from stretto.service.state.on_hold import hold_of
from stretto.service.state.records import JobRecord, WorkerPhase
from stretto.service.state.relations import known_outcome
from stretto.service.state.remaining import Basis, remaining_of, share_done
from stretto.service.state.state import State


class Reason(StrEnum):
    """Why a job is not shown to the policy."""

    NONE = ""
    ENDING = "ENDING"  # it was cancelled, or ran out of time; its processes are ending
    HELD = "HELD"  # until a user releases it
    NOT_BEFORE = "NOT_BEFORE"  # its start time, or the pause before it is tried again, has not come
    DEPENDENCY = "DEPENDENCY"  # another job comes first
    NEVER = "DEPENDENCY_FAILED"  # another job came first, and ended in the wrong way
    ARRAY_LIMIT = "ARRAY_LIMIT"  # as many of its array run as may
    BUDGET = "BUDGET"  # a budget is used up until its next period
    QUOTA = "QUOTA"  # its queue holds as many GPUs as it may


def why_not_yet(state: State, record: JobRecord, now_s: float) -> Reason:
    """The first reason that applies. A job that holds GPUs keeps its place in the snapshot."""
    if record.ending:
        return Reason.ENDING
    if record.held:
        return Reason.HELD
    if record.accounting.held_gpus:
        return Reason.NONE
    if record.not_before_s > now_s:
        return Reason.NOT_BEFORE
    first = dependencies(state, record)
    if first is Reason.NONE and hold_of(state, record, now_s) is not None:
        return Reason.BUDGET
    if first is not Reason.NONE or record.max_parallel is None:
        return first

    def ready(task: JobRecord) -> bool:
        shut = task.ending or task.held or task.not_before_s > now_s
        return not shut and dependencies(state, task) is Reason.NONE

    admitted = state.relations.admitted(record, state.jobs, ready, (state.seq, now_s))
    return Reason.NONE if admitted else Reason.ARRAY_LIMIT


def dependencies(state: State, record: JobRecord) -> Reason:
    """Whether every job that comes first has done what was asked; what can never be is said at once."""
    reason = Reason.NONE
    for dependency, name in zip(record.spec.depends_on, names_of(record), strict=True):
        fate = state.relations.fate(state.jobs, name)
        if fate is None:
            if name not in record.outcomes:
                return Reason.NEVER
            fate = known_outcome(record.outcomes[name])
        met = {
            After.STARTED: fate.started,
            After.SUCCEEDED: fate.succeeded,
            After.FAILED: fate.ended and fate.failed,
            After.ENDED: fate.ended,
        }[dependency.when]
        never = {After.SUCCEEDED: fate.failed, After.FAILED: fate.succeeded}.get(dependency.when, False)
        if never:
            return Reason.NEVER
        if not met:
            reason = Reason.DEPENDENCY
    return reason


def names_of(record: JobRecord) -> tuple[str, ...]:
    """The jobs that come first, by id; as they were written where none was looked up."""
    return record.after or tuple(one.job for one in record.spec.depends_on)


def depends_on_others(record: JobRecord) -> bool:
    """Whether `why_not_yet` looks at more than the record and the clock."""
    return bool(record.spec.depends_on) or record.max_parallel is not None


# ── where a job stands, in the words that people and their tools see ────────────────────────────────────────


MOST_NAMED = 8  # jobs in one line; chosen
BEGINS_ANEW = (
    "without the SDK: a change of its size, or a preemption, starts it again from what it has saved itself; "
    "without `elastic` its size stays"
)
LONG_S = 5.0  # for a switch, which takes a step and some milliseconds; chosen


class JobState(StrEnum):
    """States of a job."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    PREEMPTING = "PREEMPTING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """What people and programs are shown of a job: JSON, OpenAPI and the command line are made of this list.

    Times are seconds since the log began. More keys may come.
    """

    id: str
    name: str
    array: str  # of which it is a task; "": of none
    index: int | None  # of the task
    user: str
    queue: str
    kind: str
    priority: int
    state: JobState
    reason: str  # why it does not run, for programs
    evidence: str  # the same in words
    gpus: int  # that it is to hold; 0 while it waits
    gpus_asked: int
    gpus_min: int
    gpus_max: int  # UNLIMITED_GPUS: no limit
    elastic: bool  # whether its size may be changed
    gpu_type: str
    nodes: dict[str, int]  # GPUs by node
    training_gpus: int  # of workers that train together now
    attempt: int
    generation: int
    submitted_s: float
    age_s: float  # since its submission, by the calendar
    waited_s: float  # without GPUs
    left_s: float | None  # at its pace now; None: not known, or it does not run
    share_done: float | None  # 0 to 1; None: not known
    started_s: float | None
    ended_s: float | None
    running_s: float
    gpu_s: float
    restarts: int
    failures: int
    resizes: int
    switches: int  # resizes in place
    lost_s: float  # of training, by switches
    status: int | None  # with which it has ended
    checkpoint: str
    image: str  # of the container that its file names; "": none
    upload: dict[str, Any] | None  # what it has brought along: digest, files, bytes
    remark: str  # what its user should know of how it runs; "" for nothing
    preempted: str  # the last time: by which job, and what was left
    took_from: list[str]  # jobs of lower priority
    progress: dict[str, Any]  # what the training reported last
    gpus_busy: float | None  # share of the time, mean of its GPUs, of late; None: not known
    gpu_memory_gb: float | None  # of its GPUs, in use
    gpu_memory_total_gb: float | None
    idle_s: float | None  # for how long its GPUs have hardly done anything; None: not known

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON object, in this order."""
        return {name: getattr(self, name) for name in STATUS_KEYS}


STATUS_KEYS = tuple(each.name for each in fields(JobStatus))


def state_of(state: State, record: JobRecord) -> JobState:
    """The state of a job."""
    if record.has_ended:
        return JobState(record.state)
    wanted = state.wanted(record.id)
    alive = record.alive
    if not alive:
        if record.held:
            return JobState.SUSPENDED if record.attempt else JobState.PENDING
        return JobState.STARTING if wanted is not None else JobState.PENDING
    if wanted is None or record.ending or all(worker.stopped for worker in alive):
        return JobState.PREEMPTING
    if any(worker.life is WorkerPhase.WANTED for worker in alive) and not record.members.number:
        return JobState.STARTING
    occupied = {(worker.node, worker.mask) for worker in alive if not worker.stopped}
    members = record.members
    has_switched = all(record.workers[name].joined >= members.number for name in members.workers)
    if members.number == 0:
        return JobState.STARTING if record.uses_sdk and not has_switched else JobState.RUNNING
    in_place = has_switched and sum(gpus.bit_count() for _, gpus in occupied) == wanted.gpus
    return JobState.RUNNING if in_place and len(occupied) == len(members.workers) else JobState.RESIZING


def going_on(state: State) -> str:
    """Which jobs have processes, in words; "" where none does."""
    running = (WorkerPhase.RUNNING, WorkerPhase.READY)
    names = [
        f"{record.id} ({record.spec.name})"
        for record in state.open_jobs()
        if any(worker.life in running for worker in record.alive)
    ]
    if not names:
        return ""
    if len(names) == 1:
        return f"job {names[0]} goes on running"
    more = f" and {len(names) - MOST_NAMED} more" if names[MOST_NAMED:] else ""
    return f"jobs {', '.join(names[:MOST_NAMED])}{more} go on running"


def reason_of(
    state: State,
    record: JobRecord,
    now_s: float,
    plan: Plan | None,
    snapshot: Snapshot | None,
) -> tuple[str, str]:
    """(machine-readable reason, evidence in words) for which a job does not run; ("", "") where it does.

    Of one that runs, what keeps it from changing its size, once that takes long.
    """
    if state_of(state, record) is JobState.RESIZING and (late := _who_is_late(record, now_s)):
        return "SWITCHING", late
    if record.has_ended or state.wanted(record.id) is not None:
        return record.reason, record.why
    first = why_not_yet(state, record, now_s)
    if first is not Reason.NONE:
        return first.value, _evidence(state, record, first, now_s)
    if plan is not None and snapshot is not None:
        row = snapshot.jobs.row_of(record.job)
        if row is not None:
            kinds, why = snapshot.jobs.allowed_kinds[row], plan.why.of(row)
            none_is_open = snapshot.cluster is state.cluster and not snapshot.capacity[kinds].any()
            if none_is_open and why not in (
                Why.QUOTA,
                Why.EXCEEDS_QUOTA,
                Why.MAY_NOT_BORROW,
            ):  # open nodes would not help
                return "NODES_CLOSED", _closed_nodes(state, kinds)
            return why.name if why is not Why.RUNS else "STARTING_SOON", plan.why.evidence.get(row, "")
    return "NOT_CONSIDERED", "no decision has seen it yet"


def _who_is_late(record: JobRecord, now_s: float) -> str:
    """How many workers were told of another size and go on as before; "" for no longer than is usual."""
    members = record.members
    late = sum(record.workers[name].joined < members.number for name in members.workers)
    waited_s = now_s - members.at_s
    of = f"{late} of {len(members.workers)} workers have not for {waited_s:.0f} s"
    return of if late and waited_s >= LONG_S else ""


def _closed_nodes(state: State, kinds: BoolArray) -> str:
    """Nodes of these types with what keeps them from being used."""
    assert state.cluster is not None
    there = [node for node, kind in zip(state.nodes, state.cluster.kind.tolist(), strict=True) if kinds[kind]]
    lent = Counter(node.lender for node in there if not node.is_ours and node.up and not node.closed)
    whys = [f"{count} belong to lender {lender}, not on loan" for lender, count in lent.items()]
    whys += [
        f"{node.name}: {node.why or ('cordoned' if node.closed else 'down')}"
        for node in there
        if not node.up or node.closed
    ]
    return "; ".join(whys[:MOST_NAMED]) + (
        f"; and {len(whys) - MOST_NAMED} more" if whys[MOST_NAMED:] else ""
    )


def _evidence(state: State, record: JobRecord, reason: Reason, now_s: float) -> str:
    if reason is Reason.BUDGET and (hold := hold_of(state, record, now_s)) is not None:
        budget, reached = hold
        return f"{budget.words(reached.used)}; until {budget.until_in_words(reached.until_us)}"
    if reason is Reason.NOT_BEFORE:
        wait = f"{max(record.not_before_s - now_s, 0.0):.0f} s from now"
        return f"{record.why}; tried again {wait}" if record.why else wait
    if reason in (Reason.DEPENDENCY, Reason.NEVER):
        return "after " + ", ".join(names_of(record))
    return record.why


def is_unheard(record: JobRecord) -> bool:
    """Whether an elastic training has shown by no report and no checkpoint that something saves for it."""
    trains = record.spec.elastic is not None and record.job.purpose is Purpose.TRAINING
    return trains and not record.checkpoint and not record.learned.latest


def remark_of(record: JobRecord) -> str:
    """What its user should know of how a job runs; "" for nothing."""
    return BEGINS_ANEW if record.uses_sdk is False and not record.has_ended and is_unheard(record) else ""


def status_of(
    state: State,
    record: JobRecord,
    now_s: float,
    plan: Plan | None = None,
    snapshot: Snapshot | None = None,
) -> JobStatus:
    """How a job stands now; plan and snapshot are those of the last decision."""
    reason, evidence = reason_of(state, record, now_s, plan, snapshot)
    wanted = state.wanted(record.id)
    accounting, latest = record.accounting, record.learned.latest
    since_s = now_s - accounting.held_since_s if accounting.held_gpus else 0.0
    return JobStatus(
        id=record.id,
        name=record.spec.name,
        array=record.array,
        index=record.index,
        user=record.user,
        queue=record.queue,
        kind=record.spec.kind.value,
        priority=record.job.priority,
        state=state_of(state, record),
        reason=reason,
        evidence=evidence,
        gpus=0 if wanted is None else wanted.gpus,
        gpus_asked=record.job.gpus,
        gpus_min=record.job.min_gpus,
        gpus_max=record.job.max_gpus,
        elastic=record.spec.elastic is not None,
        gpu_type=_types_of(state, wanted),
        nodes={}
        if wanted is None
        else {
            state.nodes[node].name: mask.bit_count()
            for node, mask in zip(wanted.nodes, wanted.masks, strict=True)
        },
        training_gpus=sum(
            record.workers[name].mask.bit_count() for name in record.members.workers if name in record.workers
        ),
        attempt=record.attempt,
        generation=record.members.number,
        submitted_s=record.job.submitted_s,
        age_s=_age_s(state, record, now_s),
        waited_s=_waited_s(record, now_s),
        left_s=_left_s(record, now_s),
        share_done=share_done(record, now_s),
        started_s=_number(accounting.first_start_s),
        ended_s=_number(record.ended_s),
        running_s=accounting.executed_s + since_s,
        gpu_s=accounting.attained_gpu_s + accounting.held_gpus * since_s,
        restarts=max(accounting.starts - 1, 0),
        failures=record.failures,
        resizes=accounting.resizes,
        switches=accounting.switches,
        lost_s=round(accounting.lost_s, 3),
        status=record.status,
        checkpoint=record.checkpoint,
        image=record.spec.named_image,
        upload=asdict(record.spec.upload) if record.spec.upload is not None else None,
        remark=remark_of(record),
        preempted=record.preempted.words if record.preempted is not None else "",
        took_from=list(record.took_from),
        progress={
            key: latest[key]
            for key in ("step", "epoch", "loss", "metric", "metrics", "batch", "left_s", "samples")
            if key in latest
        },
        gpus_busy=None,  # which the log does not say
        gpu_memory_gb=None,
        gpu_memory_total_gb=None,
        idle_s=None,
    )


def _age_s(state: State, record: JobRecord, now_s: float) -> float:
    """Since its submission, by the calendar: with what a machine was off or slept."""
    calendar, until_s = state.calendar, record.ended_s if record.has_ended else now_s
    return max(calendar.unix_at(until_s) - calendar.unix_at(record.job.submitted_s), 0.0)


def _waited_s(record: JobRecord, now_s: float) -> float:
    """Without GPUs since its submission."""
    accounting, until_s = record.accounting, record.ended_s if record.has_ended else now_s
    held_s = until_s - accounting.held_since_s if accounting.held_gpus else 0.0
    return max(until_s - record.job.submitted_s - accounting.executed_s - held_s, 0.0)


def _types_of(state: State, allocation: Allocation | None) -> str:
    """Names of the GPU types that it has, in the order of the cluster; "" where it holds nothing."""
    if allocation is None or state.cluster is None:
        return ""
    kinds = sorted(gpus_by_type(allocation, state.cluster))
    return ", ".join(state.cluster.type_names[kind] for kind in kinds)


def _left_s(record: JobRecord, now_s: float) -> float | None:
    """What is left at the pace that it has now; None where unknown, or it does not run."""
    held_gpus = record.accounting.held_gpus
    if record.has_ended or not held_gpus:
        return None
    remaining = remaining_of(record, now_s)
    if remaining.basis is Basis.TRAINING:
        return remaining.left_s
    return remaining.left_s * record.job.gpus / held_gpus if remaining.basis is Basis.EXPECTED else None


def _number(value: float) -> float | None:
    return None if isnan(value) else value
