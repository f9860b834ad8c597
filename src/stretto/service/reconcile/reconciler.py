"""What should run, what does run, and the next step from one to the other, job by job.

Pure: the same state gives the same steps. Steps are events, which are recorded first, and commands to the
backend, which may be repeated. After every change of a job it is asked again, and so it does not matter
which of its steps were still carried out when something died.

A worker is recorded as wanted only once nobody else is recorded on its GPUs: what the log says is then that
no GPU is ever given twice.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from math import isnan

from stretto.model import Allocation
from stretto.service.reconcile.exit_policy import AttemptEnd, ending_of, what_follows
from stretto.service.state.events import (
    AttemptClosed,
    Ended,
    Event,
    Generation,
    Requeued,
    WorkersStopped,
    WorkersWanted,
)
from stretto.service.state.pending_reasons import Reason, dependencies, names_of
from stretto.service.state.records import JobRecord, Worker, WorkerPhase, incarnation_in, worker_id
from stretto.service.state.state import State

Slot = tuple[int, int]  # index of a node, mask of GPUs there

MOST_SPOILED = 3  # newcomers of an attempt that may fail before it is given up; chosen
SWITCH_S = 60.0  # for everybody to join a generation, else the attempt is given up; chosen
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


@dataclass
class Steps:
    """What comes next for one job."""

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
        gpus = [1 << gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]
        slots += [(node, sum(gpus[at : at + gpus_per_worker])) for at in range(0, len(gpus), gpus_per_worker)]
    return slots


def next_steps(state: State, record: JobRecord, taken: Container[tuple[int, int]], now_s: float) -> Steps:
    """The next steps of one job.

    taken: (node, GPU) that processes hold, ours by the log or strays that the backend shows.
    """
    steps = Steps()
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
    """Nobody is left: say what became of the attempt, and of the job."""
    outcome, status, why = (end.outcome, end.status, end.why) if end else ("left", None, "")
    steps.events.append(AttemptClosed(record.id, record.attempt, outcome, status, why))
    steps.events += what_follows(record, end, now_s)


def _leave(steps: Steps, record: JobRecord, alive: list[Worker]) -> None:
    """All are to save what they can and end: over the channel where they listen, and by signal."""
    if record.members.number and not record.members.leaves:
        steps.events.append(Generation(record.id, record.attempt, record.members.number + 1, ()))
    steps.stop(alive, record.spec.grace_period_s)


def _begin(steps: Steps, state: State, record: JobRecord, taken: Container[tuple[int, int]]) -> None:
    """Start a new attempt once all its GPUs are free of other processes."""
    slots = slots_of(state.wanted(record.id), record.job.gpus_per_worker)
    closed = _closed(state, slots)
    if closed:
        steps.events.append(Requeued(record.id, 0.0, f"node {closed} takes nobody new"))
    elif slots and not _any_taken(slots, taken):
        _want(steps, state, record, record.attempt + 1, slots)


def _closed(state: State, slots: list[Slot]) -> str:
    """The first node of these that takes nobody new; "" for none."""
    return next((state.nodes[node].name for node, _ in slots if state.nodes[node].closed), "")


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


def _adjust(
    steps: Steps,
    state: State,
    record: JobRecord,
    alive: list[Worker],
    taken: Container[tuple[int, int]],
    now_s: float,
) -> None:
    """Bring the workers of a running attempt to what is wanted."""
    asked = slots_of(state.wanted(record.id), record.job.gpus_per_worker)
    leaving = not _is_first(record) and record.members.leaves  # who was told to go is not called back
    stopped = _is_first(record) and any(worker.stopped for worker in alive if worker.joined == 0)
    if not asked or leaving or stopped:
        _leave(steps, record, alive)
        return
    for worker in alive:  # whoever died meanwhile may have done so between the record and the command
        if worker.stopped:
            steps.commands.append(Stop(worker, record.spec.grace_period_s))
        elif worker.life is WorkerPhase.WANTED:
            steps.commands.append(Start(worker))
    if _is_finishing(record):
        if not _is_first(record) and all(worker.joined == 0 for worker in alive):
            _leave(steps, record, alive)  # newcomers, whom nobody is left to train with
        return
    at = {(worker.node, worker.mask): worker for worker in alive if not worker.stopped}
    missing = [slot for slot in asked if slot not in at]
    extra = [worker for slot, worker in at.items() if slot not in set(asked)]
    if _is_first(record):
        _first_generation(steps, record, alive, bool(missing or extra), now_s)
    else:
        _next_generation(steps, state, record, alive, asked, missing, extra, taken, now_s)


def _is_finishing(record: JobRecord) -> bool:
    """Whether somebody who trains has ended well by itself: the others are about to, and sizes stay."""
    those = record.members.workers or tuple(record.workers)
    return any(
        worker.life is WorkerPhase.ENDED and worker.status == 0 and not worker.stopped
        for worker in (record.workers[name] for name in those)
    )


def _is_first(record: JobRecord) -> bool:
    """Whether nobody of this attempt trains in a generation yet."""
    return record.members.number == 0


def _first_generation(
    steps: Steps, record: JobRecord, alive: list[Worker], differs: bool, now_s: float
) -> None:
    """Workers without the SDK never say ready: what is wanted of them now is what they were started for."""
    if all(worker.life is WorkerPhase.READY for worker in alive):
        names = tuple(worker.id for worker in alive)
        steps.events.append(Generation(record.id, record.attempt, 1, names, "", _batch(record)))
        return
    if not differs:
        return
    began_s = max((worker.began_s for worker in alive if not isnan(worker.began_s)), default=now_s)
    if record.spec.elastic is not None and now_s < began_s + STARTING_S and record.speaks is not False:
        steps.again_s = began_s + STARTING_S
        return
    _leave(steps, record, alive)


def _next_generation(
    steps: Steps,
    state: State,
    record: JobRecord,
    alive: list[Worker],
    asked: list[Slot],
    missing: list[Slot],
    extra: list[Worker],
    taken: Container[tuple[int, int]],
    now_s: float,
) -> None:
    """Grow, shrink or move in place, one generation after another."""
    members = record.members
    current = [record.workers[name] for name in members.workers]
    if record.spoiled >= MOST_SPOILED:
        _leave(steps, record, alive)
        return
    outside = [worker for worker in alive if worker.id not in members.workers]
    for worker in outside:  # who has left the generation ends by itself, or is made to
        if worker.joined and not worker.stopped:
            if now_s >= members.at_s + record.spec.grace_period_s:
                steps.stop([worker], record.spec.grace_period_s)
            else:
                steps.again_s = min(steps.again_s, members.at_s + record.spec.grace_period_s)
    if any(worker.joined < members.number for worker in current):
        if now_s >= members.at_s + SWITCH_S:
            _leave(steps, record, alive)
        else:
            steps.again_s = min(steps.again_s, members.at_s + SWITCH_S)
        return
    # A newcomer that is not wanted any more ends before it has taken part.
    steps.stop([worker for worker in extra if worker.joined == 0], record.spec.grace_period_s)
    if missing:
        if not _any_taken(missing, taken):
            _want(steps, state, record, record.attempt, missing)
        return
    if not extra and {worker.id for worker in current} == _names(alive, asked):
        if record.batch != members.batch:  # the same workers go on with another batch
            _publish(steps, record, members.workers, "")
        return
    by_slot = {(worker.node, worker.mask): worker for worker in alive if not worker.stopped}
    wanted = [by_slot[slot] for slot in asked]
    newcomers = [worker for worker in wanted if worker.joined == 0]
    if any(worker.life is not WorkerPhase.READY for worker in newcomers):
        return
    staying = [worker for worker in current if worker in wanted]
    # In a move to other GPUs nobody would stay to hand on the state: for one generation all train together.
    kept = staying or current
    names = tuple(worker.id for worker in (*kept, *newcomers))
    if names != members.workers:
        _publish(steps, record, names, kept[0].id)


def _publish(steps: Steps, record: JobRecord, names: tuple[str, ...], source: str) -> None:
    number = record.members.number + 1
    steps.events.append(Generation(record.id, record.attempt, number, names, source, _batch(record)))


def _batch(record: JobRecord) -> tuple[int, ...]:
    return record.batch.to_json() if record.batch is not None else ()


def _names(alive: list[Worker], asked: list[Slot]) -> set[str]:
    slots = set(asked)
    return {worker.id for worker in alive if (worker.node, worker.mask) in slots and not worker.stopped}


def _any_taken(slots: list[Slot], taken: Container[tuple[int, int]]) -> bool:
    return any(
        (node, gpu) in taken for node, mask in slots for gpu in range(mask.bit_length()) if mask >> gpu & 1
    )
