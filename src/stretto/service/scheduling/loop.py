"""When the policy is asked, and what becomes of its answer.

Which events are reasons to ask a policy.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from stretto.model import Memory, Plan, Snapshot, TellsStanding, Trigger
from stretto.scheduler.constraints.memories import of_job
from stretto.scheduler.round import Scheduler, decide
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.line import Line
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import AttemptClosed, Decided, Event, Joined, WorkersWanted
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State

log = logging.getLogger(__name__)

_TRIGGERS: Mapping[type[Event], Trigger] = {
    happened.Submitted: Trigger.ARRIVAL,
    happened.ArraySubmitted: Trigger.ARRIVAL,
    happened.Requeued: Trigger.ARRIVAL,
    happened.Scaled: Trigger.ARRIVAL,
    happened.Prioritised: Trigger.ARRIVAL,
    happened.Ended: Trigger.COMPLETION,
    happened.Cancelled: Trigger.COMPLETION,
    happened.AttemptClosed: Trigger.COMPLETION,
    happened.NodeSeen: Trigger.CAPACITY,
    happened.NodeLost: Trigger.CAPACITY,
    happened.NodeDead: Trigger.CAPACITY,
    happened.NodeCordoned: Trigger.CAPACITY,
    happened.TypesSeen: Trigger.CAPACITY,
    happened.QueueSet: Trigger.CAPACITY,
    happened.UserSharesSet: Trigger.CAPACITY,
    happened.Reserved: Trigger.CAPACITY,
    happened.Unreserved: Trigger.CAPACITY,
    happened.BudgetSet: Trigger.CAPACITY,
    happened.BudgetDeleted: Trigger.CAPACITY,
    happened.BudgetReached: Trigger.CAPACITY,
    happened.LenderSet: Trigger.LENDERS,
    happened.LenderDeleted: Trigger.CAPACITY,
    happened.NeedReported: Trigger.LENDERS,
}
# What else may change what is on loan: nodes of lenders come and go, and jobs need more or fewer.
_SETTLED_AT = frozenset({Trigger.LENDERS, Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY})


def trigger_of(event: Event) -> Trigger | None:
    """The trigger that an event pulls; None for one that changes nothing for a policy."""
    if isinstance(event, happened.Held):
        return Trigger.COMPLETION if event.held else Trigger.ARRIVAL
    if isinstance(event, happened.ClockSet):
        return Trigger.CAPACITY if event.unix_s == event.bound_unix_s else None  # reservations may have moved
    if isinstance(event, happened.Reported) and event.report.get("epoch_end"):
        return Trigger.EPOCH_END
    return _TRIGGERS.get(type(event))


# ── when the policy is asked, and what becomes of its answer ────────────────────────────────────────────────


AT_LEAST_EVERY_S = 60.0  # of wall time, while there are jobs; chosen: a net under whatever was missed


@dataclass
class SchedulingLoop:
    """When the scheduler is to be asked, and what is kept of its answer; one decision at a time.

    The loop itself is `control_loop.schedule`. What is due comes from triggers, rounds, or the policy's wish.

    eager: a policy of rounds is asked at arrivals and completions too, so that no job waits for a round while
    GPUs are idle. at_least_every_s: of wall time. It holds even where nothing has happened, as long as there
    are jobs.
    """

    log_writer: LogWriter
    scheduler: Scheduler
    clock: Clock
    eager: bool = True
    at_least_every_s: float = AT_LEAST_EVERY_S
    memory: Memory = None  # the policy's, after its last decision
    latest: Plan | None = None
    latest_snapshot: Snapshot | None = None
    took_ms: list[float] = field(default_factory=list)
    # Is told when a decision is over, and none is being made.
    after: Callable[[State, Memory], None] | None = None
    is_deciding: bool = False
    line: Line = field(default_factory=Line)
    _due: set[Trigger] = field(default_factory=set)
    _owed: set[Trigger] = field(default_factory=set)  # by decisions that failed
    _failure: str = ""  # of the latest decision; "": it was made
    _wake_s: float | None = None  # when the policy wants to be asked again; None: that time has come
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _next_round_s: float = 0.0
    _next_settlement_s: float = 0.0  # with lenders, whatever happens until then
    _awaits_round: bool = False
    _decided_s: float = 0.0  # when it was last asked
    _seen: int = 0  # the last event that it knew then
    _changed: bool = True
    _interactive_waits: bool = False  # as the last decision left it
    _thread: ThreadPoolExecutor = field(  # its own: others may keep the usual threads busy
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="decisions")
    )

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.observer = SnapshotBuilder(self.scheduler.policy.views)
        on = self.scheduler.policy.triggers.on
        self._on = on | {Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY} if self.eager else on
        self._wake_s = self.log_writer.state.wake_s
        self.log_writer.listeners.append(self.heard)

    def standing_of(self, record: JobRecord) -> str:
        """Where the policy has put a job among the others, in its words; "" where it says nothing."""
        policy = self.scheduler.policy
        if record.has_ended or not isinstance(policy, TellsStanding):
            return ""
        return policy.standing(self.remembered_of(record), record.job.id)

    def remembered_of(self, record: JobRecord) -> Memory:
        """The policy's own memory that a job is in: that of its level, and of its part of the cluster."""
        return of_job(self.memory, record.job)

    def heard(self, recorded: Sequence[tuple[int, Event]]) -> None:
        """Note what happened."""
        for _, event in recorded:
            if isinstance(event, Decided):
                self._wake_s = event.wake_s
            trigger = trigger_of(event)
            if isinstance(event, WorkersWanted) and self._somebody_waits_for(event.job):
                trigger = Trigger.ARRIVAL
            if isinstance(event, Joined) and self._interactive_waits:  # others can be made smaller
                trigger = Trigger.ARRIVAL
            if isinstance(event, AttemptClosed) and not self._makes_room(event.job):
                trigger = None
            if trigger is None:
                continue
            self._changed = True
            self._wake.set()  # also where nothing is due: a round may be waited for from now on
            if (
                trigger in _SETTLED_AT
                and self.scheduler.lending is not None
                and self.log_writer.state.lenders
            ):
                self._due.add(Trigger.LENDERS)
            if trigger in self._on:
                self._due.add(trigger)

    def _somebody_waits_for(self, job: str) -> bool:
        """Whether another job may come once this one has started."""
        relations, record = self.log_writer.state.relations, self.log_writer.state.jobs.get(job)
        return record is not None and (job in relations.waiting or record.array in relations.waiting)

    def _makes_room(self, job: str) -> bool:
        """Whether another task may come once this one's processes are gone.

        To a policy nothing else is new then: it has taken the GPUs away before, or their loss is told by
        what follows. A simulated job that is stopped pulls no trigger either.
        """
        record = self.log_writer.state.jobs.get(job)
        return record is not None and record.max_parallel is not None

    def begin(self) -> None:
        """A service that has just started looks at what it finds."""
        self._due.add(Trigger.CAPACITY)

    def observe(self, due: frozenset[Trigger]) -> Snapshot:
        """All that a decision looks at: the state as it stands now, and what the policy remembers."""
        state = self.log_writer.state
        self.is_deciding = True
        self._decided_s, self._seen = self.clock.now_s(), state.seq
        return snapshot_for(self.scheduler, self.observer, state, self._decided_s, due, self.memory)

    async def decide(self, snapshot: Snapshot) -> tuple[Plan, float]:
        """The plan, and how many milliseconds it took; worked out in a thread of its own."""
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        plan = await loop.run_in_executor(self._thread, decide, snapshot, self.scheduler)
        return plan, (time.perf_counter() - began) * 1e3

    def note_failure(self, failure: Exception, due: frozenset[Trigger]) -> None:
        """A decision has failed: jobs keep what they hold. What was due is due with the next one.

        That is asked for by whatever happens next, or after a while. A fault that repeats is told whole once.
        """
        self.is_deciding = False
        self._owed |= due
        words = f"{type(failure).__name__}: {failure}"
        again = words == self._failure
        self._failure = words
        log.error(
            "a decision failed, and jobs keep what they hold: %s", words, exc_info=None if again else failure
        )

    async def record(self, snapshot: Snapshot, plan: Plan, took_ms: float) -> None:
        """Make the decision durable, by which it is wanted; then keep what the next one needs of it."""
        await self.log_writer.record(decided(snapshot, plan, self._seen, took_ms))
        self.memory = plan.memory
        self.is_deciding, self._failure = False, ""
        if self.after is not None:
            self.after(self.log_writer.state, self.memory)
        self.latest, self.latest_snapshot = plan, snapshot
        jobs = snapshot.jobs
        self._interactive_waits = any(
            jobs.ids[row] not in plan.placement for row in np.flatnonzero(jobs.interactive).tolist()
        )
        self.took_ms = [*self.took_ms[-999:], took_ms]

    async def wait_until_due(self) -> frozenset[Trigger]:
        """What is due, once something is and there is a node."""
        while True:
            now_s = self.clock.now_s()
            at_s = self._next_s(now_s)
            if at_s <= now_s:
                self._note_times(now_s)
            if self._due and self.log_writer.state.cluster is not None:
                return self._take_due()
            self._wake.clear()
            try:
                wait_s = None if math.isinf(at_s) else max(self.clock.wall_s(at_s - now_s), 0.0)
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                self._note_times(max(self.clock.now_s(), at_s))

    def _take_due(self) -> frozenset[Trigger]:
        due = frozenset(self._due | self._owed)
        self._due, self._owed = set(), set()
        if Trigger.ROUND in due:
            self._changed = False
        return due

    def _next_s(self, now_s: float) -> float:
        """When the clock alone makes something due; never before there is a node."""
        state, triggers = self.log_writer.state, self.scheduler.policy.triggers
        if state.cluster is None:
            return math.inf
        times = [self.observer.next_change_s(state, now_s)]
        if self._settles:
            times.append(self._next_settlement_s)
        if self._wake_s is not None:
            times.append(self._wake_s)
        is_awaited = bool(state.open) and (self._changed or not triggers.when_changed)
        if triggers.round_s is not None and is_awaited:
            if not self._awaits_round:  # rounds that no job waited for are over
                now_s = math.ceil(now_s / triggers.round_s) * triggers.round_s
                self._next_round_s = max(self._next_round_s, now_s)
            times.append(self._next_round_s)
        self._awaits_round = is_awaited
        if state.open:
            every_s = self.at_least_every_s / self.clock.wall_s(1.0)
            times.append(self._decided_s + max(every_s, triggers.round_s or 0.0))
        return min(times)

    @property
    def _settles(self) -> bool:
        """Whether there is a lender that has said what it needs, and a rule that settles loans."""
        lenders = self.log_writer.state.lenders
        return self.scheduler.lending is not None and any(lender.needs for lender in lenders.values())

    def _note_times(self, now_s: float) -> None:
        """What the clock alone makes due."""
        triggers, lending = self.scheduler.policy.triggers, self.scheduler.lending
        if lending is not None and self._settles and self._next_settlement_s <= now_s:
            self._next_settlement_s = (math.floor(now_s / lending.period_s) + 1) * lending.period_s
            self._due.add(Trigger.LENDERS)
        if self._wake_s is not None and self._wake_s <= now_s:
            self._wake_s = None
            self._due.add(Trigger.WAKE)
        if triggers.round_s is not None and self._next_round_s <= now_s:
            self._next_round_s = (math.floor(now_s / triggers.round_s) + 1) * triggers.round_s
            self._due.add(Trigger.ROUND)
        if not self._due:  # somebody's time to start has come, or nobody was asked for long
            self._due.add(Trigger.ARRIVAL)
