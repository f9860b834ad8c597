"""The next step of each job: wanted against running, and what follows from how workers ended.

What should run, what does run, and the next step from one to the other, job by job.

Pure: the same state gives the same steps. Steps are events, which are recorded first, and commands to the
backend, which may be repeated. After every change of a job it is asked again. So it does not matter which of
its steps were still carried out when something died.

A worker is recorded as wanted only once no other is recorded on its GPUs. So by the log no GPU is ever given
twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from stretto.model import Allocation, Batch
from stretto.service.reconcile.held_gpus import GpuOccupancy
from stretto.service.state.events import (
    AttemptClosed,
    Ended,
    Event,
    Generation,
    Requeued,
    WorkersStopped,
    WorkersWanted,
)
from stretto.service.state.records import (
    KILLED,
    TERMINATED,
    JobRecord,
    Worker,
    WorkerPhase,
    gpus_in,
    incarnation_in,
    orphaned_by,
    worker_id,
)
from stretto.service.state.state import State
from stretto.service.state.status import BEGINS_ANEW, Reason, dependencies, is_unheard, names_of
from stretto.service.state.workers import is_found_silent

Slot = tuple[int, int]  # index of a node, mask of GPUs there

MAX_FAILED_JOINERS = 3  # newcomers of an attempt that may fail before it is given up; chosen
SWITCH_S = 60.0  # for all to join a generation, else the attempt is given up; chosen
STARTING_S = 60.0  # for the workers of an elastic job to say ready, before a resize stops them; chosen


@dataclass(frozen=True)
class Start:
    """Start a worker, unless it has been."""

    worker: Worker


@dataclass(frozen=True)
class Stop:
    """SIGTERM now, SIGKILL after the grace."""

    worker: Worker
    grace_s: float


Command = Start | Stop
Divide = Callable[[State, JobRecord, tuple[str, ...]], Batch | None]


def as_script_says(state: State, record: JobRecord, names: tuple[str, ...]) -> Batch | None:
    """No batch: the script's own bounds decide, and all workers have equal shares."""
    return None


@dataclass(frozen=True)
class AttemptEnd:
    """What became of an attempt."""

    outcome: str  # done, failed, lost, left
    status: int | None
    why: str = ""


@dataclass
class Steps:
    """What comes next for one job. divide: the batch of workers where no decision has chosen it."""

    divide: Callable[[JobRecord, tuple[str, ...]], Batch | None]
    events: list[Event] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    again_s: float = float("inf")  # when to ask again even if nothing happens

    def stop(self, workers: list[Worker], grace_s: float) -> None:
        """Ask workers to end; those that were asked before are asked again, which does no harm."""
        asked = tuple(worker.id for worker in workers if not worker.stopped)
        if asked:
            self.events.append(WorkersStopped(workers[0].job, asked))
        self.commands += [Stop(worker, grace_s) for worker in workers]


def slots_of(allocation: Allocation | None, gpus_per_worker: int = 1) -> list[Slot]:
    """Where the workers of an allocation are to be: in the order of nodes, lowest GPUs first."""
    if allocation is None:
        return []
    slots: list[Slot] = []
    for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
        gpus = [1 << gpu for gpu in gpus_in(mask)]
        slots += [
            (node, sum(gpus[first : first + gpus_per_worker]))
            for first in range(0, len(gpus), gpus_per_worker)
        ]
    return slots


def wanted_slots(state: State, record: JobRecord) -> list[Slot]:
    """Where the workers of a job are to be."""
    wanted = state.wanted(record.id)
    if wanted is None:
        return []
    return slots_of(wanted, record.job.worker_gpus(state.nodes[wanted.nodes[0]].gpu_type))


def next_steps(
    state: State,
    record: JobRecord,
    taken: GpuOccupancy,
    now_s: float,
    divide: Divide = as_script_says,
) -> Steps:
    """The next steps of one job.

    taken: GPUs that processes hold, ours by the log or strays that the backend shows. divide: the batch of
    workers, by rank, where no decision has chosen one.
    """
    steps = Steps(partial(divide, state))
    if record.has_ended:
        return steps
    alive = record.alive
    if record.is_open:
        end = ending_of(record)
        if not alive:
            _close(steps, record, end, now_s)
        elif end is not None or record.ending or record.held:
            _leave(steps, record, alive)
        else:
            _adjust(steps, state, record, alive, taken, now_s)
    elif record.ending:
        steps.events += what_follows(record, None, now_s)
    elif record.spec.depends_on and dependencies(state, record) is Reason.NEVER:
        why = f"after {', '.join(names_of(record))}"
        steps.events.append(Ended(record.id, "CANCELLED", None, why, Reason.NEVER.value))
    else:
        _begin(steps, state, record, taken)
    return steps


def _close(steps: Steps, record: JobRecord, end: AttemptEnd | None, now_s: float) -> None:
    """No worker is left: say what became of the attempt, and of the job."""
    outcome, status, why = (end.outcome, end.status, end.why) if end else ("left", None, "")
    if outcome == "left" and not why and is_found_silent(record, now_s) and is_unheard(record):
        why = BEGINS_ANEW
    steps.events.append(AttemptClosed(record.id, record.attempt, outcome, status, why))
    steps.events += what_follows(record, end, now_s)


def _leave(steps: Steps, record: JobRecord, alive: list[Worker]) -> None:
    """All are to save what they can and end: over the channel where they listen, and by signal."""
    if record.members.have_begun and not record.members.leaves:
        steps.events.append(Generation(record.id, record.attempt, record.members.number + 1, ()))
    steps.stop(alive, record.spec.grace_period_s)


def _begin(steps: Steps, state: State, record: JobRecord, taken: GpuOccupancy) -> None:
    """Start a new attempt once all its GPUs are free of other processes."""
    slots = wanted_slots(state, record)
    closed = _closed(state, record, slots)
    if closed:
        steps.events.append(Requeued(record.id, 0.0, f"node {closed} takes nobody new"))
    elif slots and not _any_taken(slots, taken):
        _want(steps, state, record, record.attempt + 1, slots)


def _closed(state: State, record: JobRecord, slots: list[Slot]) -> str:
    """The first node of these that takes no new worker of a job; "" for none."""
    nodes = (state.nodes[node] for node, _ in slots)
    return next((node.name for node in nodes if node.is_closed_to(record)), "")


def _want(steps: Steps, state: State, record: JobRecord, attempt: int, slots: list[Slot]) -> None:
    """Record workers; they are started when the record is folded and the job is asked about again."""
    is_new = attempt != record.attempt
    first = 0 if is_new else record.next_worker
    incarnation = state.incarnation if is_new else incarnation_in(next(iter(record.workers), ""))
    steps.events.append(
        WorkersWanted(
            record.id,
            attempt,
            tuple(
                {
                    "id": worker_id(record.id, attempt, first + index, incarnation),
                    "node": state.nodes[node].name,
                    "mask": mask,
                }
                for index, (node, mask) in enumerate(slots)
            ),
        )
    )


# What becomes of each worker of an attempt that goes on, by its phase:
#
#   phase     its GPUs are wanted                        its GPUs are not wanted any more
#   WANTED    start it                                   stop it: it ends before it has taken part
#   RUNNING   wait until it is ready, or not elastic     stop it
#   READY     call it once all newcomers are ready       stop it
#   JOINING   wait; give the attempt up after SWITCH_S   the same: generations come one after another
#   TRAINING  goes on                                    leave it out of the next generation
#   LEFT      ends by itself; stop it after its grace    the same
#   STOPPING  ask it again: a command may be lost        the same
#   ENDED     want another one there, once it is free    nothing


def _adjust(
    steps: Steps,
    state: State,
    record: JobRecord,
    alive: list[Worker],
    taken: GpuOccupancy,
    now_s: float,
) -> None:
    """Bring the workers of a running attempt to what is wanted."""
    asked = wanted_slots(state, record)
    trains = record.members.have_begun  # in generations; else its workers start, or do not use the SDK
    leaving = trains and record.members.leaves  # a worker that was told to go is not called back
    stopped = not trains and any(worker.stopped for worker in alive if not worker.has_trained)
    if not asked or leaving or stopped:
        _leave(steps, record, alive)
        return
    # Commands are repeated until their effect is seen: a service may have died between record and command.
    for worker in alive:
        match record.phase_of(worker):
            case WorkerPhase.STOPPING:
                steps.commands.append(Stop(worker, record.spec.grace_period_s))
            case WorkerPhase.WANTED:
                steps.commands.append(Start(worker))
    if _is_finishing(record):
        if trains and not any(worker.has_trained for worker in alive):
            _leave(steps, record, alive)  # newcomers that have nothing left to train with
        return
    in_place = {(worker.node, worker.mask): worker for worker in alive if not worker.stopped}
    missing = [slot for slot in asked if slot not in in_place]
    extra = [worker for slot, worker in in_place.items() if slot not in set(asked)]
    if not trains:
        _first_generation(steps, record, alive, bool(missing or extra), now_s)
        return
    if record.failed_joiners >= MAX_FAILED_JOINERS:
        _leave(steps, record, alive)
        return
    _stop_left(steps, record, alive, now_s)
    if not _have_all_joined(record):
        _await_joining(steps, record, alive, now_s)
        return
    newcomers = [worker for worker in extra if not worker.has_trained]
    steps.stop(newcomers, record.spec.grace_period_s)  # not wanted any more
    if not missing:
        _next_generation(steps, record, [in_place[slot] for slot in asked], bool(extra))
    elif not _any_taken(missing, taken):
        _want(steps, state, record, record.attempt, missing)
    elif _gives_way(state, record, taken):
        _leave(steps, record, alive)


def _gives_way(state: State, record: JobRecord, taken: GpuOccupancy) -> bool:
    """Whether jobs wait for each other's GPUs in a circle, and this is the one of them that came last.

    In place a job leaves GPUs only once it has others, so that two which swap theirs would wait for ever. The
    last one saves and stops. The others then move in place, and it starts again on what it is to have.
    """
    waits_for: dict[str, set[str]] = {}
    open_ends = [record.id]
    while open_ends:
        name = open_ends.pop()
        if name not in waits_for:
            waits_for[name] = _waits_for(state, name, taken)
            open_ends += waits_for[name]
    circle = {record.id}  # who waits for this job, directly or by way of others
    while more := {name for name, others in waits_for.items() if others & circle} - circle:
        circle |= more
    is_waited_for = any(record.id in waits_for[name] for name in circle)
    return is_waited_for and record.number == max(state.jobs[name].number for name in circle)


def _waits_for(state: State, name: str, taken: GpuOccupancy) -> set[str]:
    """The jobs that hold GPUs on which a running job is to have workers and has none."""
    record = state.jobs[name]
    if not record.is_open:
        return set()
    has = {(worker.node, worker.mask) for worker in record.alive}
    missing = [slot for slot in wanted_slots(state, record) if slot not in has]
    holders = {holder for slot in missing for holder in taken.holders(slot)}
    return {holder for holder in holders if holder in state.jobs} - {name}


def _is_finishing(record: JobRecord) -> bool:
    """Whether a worker that trains has ended well by itself: the others are about to, and sizes stay."""
    names = record.members.workers or tuple(record.workers)
    return any(
        worker.life is WorkerPhase.ENDED and worker.status == 0 and not worker.stopped
        for worker in (record.workers[name] for name in names)
    )


def _first_generation(
    steps: Steps, record: JobRecord, alive: list[Worker], differs: bool, now_s: float
) -> None:
    """Workers without the SDK never say ready: what is wanted of them now is what they were started for."""
    if all(worker.life is WorkerPhase.READY for worker in alive):
        names = tuple(worker.id for worker in alive)
        steps.events.append(Generation(record.id, record.attempt, 1, names, "", _batch(steps, record, names)))
        return
    if not differs:
        return
    # A resize while an elastic job starts waits until its workers are ready: then it is done in place.
    began_s = max((worker.began_s for worker in alive if worker.has_begun), default=now_s)
    if record.spec.elastic is not None and now_s < began_s + STARTING_S and record.uses_sdk is not False:
        steps.again_s = began_s + STARTING_S
        return
    _leave(steps, record, alive)


def _stop_left(steps: Steps, record: JobRecord, alive: list[Worker], now_s: float) -> None:
    """A worker that has left the generation ends by itself within its grace, or is made to."""
    until_s = record.members.at_s + record.spec.grace_period_s
    left = [worker for worker in alive if record.phase_of(worker) is WorkerPhase.LEFT]
    if left and now_s < until_s:
        steps.again_s = min(steps.again_s, until_s)
        return
    for worker in left:
        steps.stop([worker], record.spec.grace_period_s)


def _have_all_joined(record: JobRecord) -> bool:
    """Whether the newest generation trains; of a member that has ended it counts whether it had."""
    members = record.members
    return all(record.workers[name].joined >= members.number for name in members.workers)


def _await_joining(steps: Steps, record: JobRecord, alive: list[Worker], now_s: float) -> None:
    """Wait until all members train in the newest generation; give up where that takes too long."""
    until_s = record.members.at_s + SWITCH_S
    if now_s >= until_s:
        _leave(steps, record, alive)
    else:
        steps.again_s = min(steps.again_s, until_s)


def _next_generation(steps: Steps, record: JobRecord, wanted: list[Worker], has_extra: bool) -> None:
    """Grow, shrink or move in place, once there is a worker on all GPUs that are wanted."""
    members = record.members
    current = [record.workers[name] for name in members.workers]
    if not has_extra and set(members.workers) == {worker.id for worker in wanted}:
        # The same workers go on with another batch.
        if _batch(steps, record, members.workers) != (members.batch.to_json() if members.batch else ()):
            _publish(steps, record, members.workers, "")
        return
    newcomers = [worker for worker in wanted if not worker.has_trained]
    if any(worker.life is not WorkerPhase.READY for worker in newcomers):
        return
    staying = [worker for worker in current if worker in wanted]
    # In a move to other GPUs no worker stays to hand on the state: for one generation all train together.
    kept = staying or current
    names = tuple(worker.id for worker in (*kept, *newcomers))
    if names != members.workers:
        _publish(steps, record, names, kept[0].id)


def _publish(steps: Steps, record: JobRecord, names: tuple[str, ...], source: str) -> None:
    number, batch = record.members.number + 1, _batch(steps, record, names)
    steps.events.append(Generation(record.id, record.attempt, number, names, source, batch))


def _batch(steps: Steps, record: JobRecord, names: tuple[str, ...]) -> tuple[int, ...]:
    """The batch for these workers, by rank; split evenly where they are others than it was chosen for."""
    batch = record.batch
    if batch is None:
        divided = steps.divide(record, names)
        return () if divided is None else divided.to_json()
    if len(names) != len(batch.by_worker):
        return replace(batch, by_worker=()).to_json()
    workers = [record.workers[name] for name in names]
    by_gpu = sorted(workers, key=lambda worker: (worker.node, worker.mask & -worker.mask))
    samples = {worker.id: share for worker, share in zip(by_gpu, batch.by_worker, strict=True)}
    return replace(batch, by_worker=tuple(samples[name] for name in names)).to_json()


def _any_taken(slots: list[Slot], taken: GpuOccupancy) -> bool:
    return any(
        (node, gpu) in taken for node, mask in slots for gpu in range(mask.bit_length()) if mask >> gpu & 1
    )


# ── how an attempt ended, by the ends of its workers, and what follows for the job ──────────────────────────


FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0  # before a failed attempt is tried again; doubled each time
LOST_PAUSE_S = 1.0  # before a lost one is
MAX_CRASH_LOOPS = 3  # times in a row that a job may be killed without getting further; the last is a failure


def ending_of(record: JobRecord) -> AttemptEnd | None:
    """What the workers that have ended say of the attempt; None while it may go on.

    What we stopped says nothing, unless the training itself has reported that it was finished. A worker not
    or no more in the generation leaves with status 0; where all are to leave, those count that trained last.
    """
    members = record.members.workers
    latest = max((worker.joined for worker in record.workers.values()), default=0)
    last = [worker for worker in record.workers.values() if worker.joined == latest]
    trainers = [record.workers[name] for name in members] if members else last
    finished = bool(record.learned.latest.get("finished"))
    ended = [worker for worker in trainers if worker.life is WorkerPhase.ENDED]
    own = [worker for worker in ended if finished or not worker.stopped]
    for outcome, of in (("failed", _failed), ("lost", _killed), ("lost", _lost)):
        for worker in own:
            if of(worker):
                return _judged(record, AttemptEnd(outcome, worker.status, _words(worker)))
    if trainers and len(own) == len(trainers):
        return AttemptEnd("done", 0)
    if trainers and len(ended) == len(trainers):
        return AttemptEnd("left", None)
    return None


def _judged(record: JobRecord, end: AttemptEnd) -> AttemptEnd:
    """Whose fault it was: a node's, which excuses all, or the job's own where it is killed over and over."""
    if node := orphaned_by(record):
        words = next((f": {each.why}" for each in record.workers.values() if each.orphaned and each.why), "")
        return AttemptEnd("lost", end.status, f"node {node} was lost{words}")
    times = record.crash_loops + 1
    if (
        end.outcome == "lost"
        and end.status == KILLED
        and not record.made_progress
        and times >= MAX_CRASH_LOOPS
    ):
        why = f"killed {times} times in a row without a checkpoint or a further step; is it out of memory?"
        return AttemptEnd("failed", KILLED, why)
    return end


def what_follows(record: JobRecord, end: AttemptEnd | None, now_s: float) -> list[Event]:
    """Events by which the job ends or waits anew, once none of its workers is left."""
    status = end.status if end else None
    if end is not None and end.outcome == "done":
        return [Ended(record.id, "COMPLETED", 0)]
    if record.ending:
        return [Ended(record.id, record.ending, status, record.why)]
    if end is None or end.outcome == "left":
        return []
    if end.outcome == "lost":
        pause_s = min(LOST_PAUSE_S * 2.0**record.losses, LONGEST_PAUSE_S)
        return [Requeued(record.id, now_s + pause_s, end.why)]
    restart = record.spec.restart
    again = record.failures < restart.max and (not restart.on_exit or status in restart.on_exit)
    if not again:
        return [Ended(record.id, "FAILED", status, end.why)]
    pause_s = min(FIRST_PAUSE_S * 2.0**record.failures, LONGEST_PAUSE_S)
    return [Requeued(record.id, now_s + pause_s, end.why)]


def _failed(worker: Worker) -> bool:
    return worker.status not in (0, TERMINATED, KILLED)


def _killed(worker: Worker) -> bool:
    return worker.status == KILLED


def _lost(worker: Worker) -> bool:
    return worker.status in (TERMINATED, KILLED)


def _words(worker: Worker) -> str:
    said = f"worker {worker.id} ended with status {worker.status}"
    return f"{said}: {worker.why}" if worker.why else said
