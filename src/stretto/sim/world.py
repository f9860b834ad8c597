"""The simulated world: one engine for rounds and events around the same decisions as the live one."""

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import ceil, inf, isfinite, isnan

import numpy as np

from stretto.model import (
    Action,
    BadPlan,
    CapacityNotice,
    Cluster,
    JobTable,
    Memory,
    Plan,
    Requests,
    Snapshot,
    Trigger,
    Triggers,
    Verb,
    View,
    no_placement,
)
from stretto.sim.history import Held, History
from stretto.sim.physics import Physics
from stretto.sim.settings import Fidelity, SimSettings


class Turn(IntEnum):
    """The order of events at the same instant (0.5 of the specification of policies)."""

    JOB = 0  # a job ends, or ends an epoch
    CAPACITY = 1
    ARRIVAL = 2
    PROFILED = 3
    WAKE = 4
    ROUND = 5


@dataclass(frozen=True, slots=True)
class CapacityEvent:
    """A node comes or goes at a time, announced beforehand or not."""

    at_s: float
    node: int
    usable: bool
    notice_s: float = 0.0  # how long before it is announced


class SimulatedWorld:
    """Jobs of a workload on a cluster, as if they ran.

    Time jumps from event to event; a round is an event like any other. What is asked of the scheduler and
    when is the policy's choice (`triggers`), and what it is shown are its `views`.
    """

    def __init__(
        self,
        cluster: Cluster,
        physics: Physics,
        triggers: Triggers,
        views: frozenset[View],
        settings: SimSettings,
        seed: int = 0,
        capacity_events: Sequence[CapacityEvent] = (),
    ) -> None:
        """Start at time 0 with nobody there."""
        self.cluster = cluster
        self.physics = physics
        self.triggers = triggers
        self.views = views
        self.settings = settings
        self.seed = seed
        self.requests: Requests = physics.requests
        self.history = History(len(self.requests.jobs))
        jobs = len(self.requests.jobs)
        self.now_s = 0.0
        self.version = 0
        self.memory: Memory = None
        self.usable = np.ones(len(cluster.nodes), dtype=np.bool_)
        self.notices: list[CapacityNotice] = []
        self.placement = no_placement(cluster)
        self.active: list[int] = []  # rows of submitted, unfinished jobs, ascending
        self.unfinished = jobs
        self.held_gpus = np.zeros(jobs, dtype=np.int64)
        self.held_nodes = np.zeros(jobs, dtype=np.int64)
        self.held_kind = np.full(jobs, -1, dtype=np.int64)
        self.held_since_s = np.zeros(jobs)
        self.executed_s = np.zeros(jobs)
        self.attained_gpu_s = np.zeros(jobs)
        self.first_start_s = np.full(jobs, np.nan)
        self.last_stop_s = np.full(jobs, np.nan)
        self.starts = np.zeros(jobs, dtype=np.int64)
        self.largest_held = np.zeros(jobs, dtype=np.int64)
        self.completed_s = np.full(jobs, np.nan)
        self._row_of = {job.id: row for row, job in enumerate(self.requests.jobs)}
        self._rows: np.ndarray | None = None
        self._due: set[Trigger] = set()
        self._events: list[tuple[float, int, int, int]] = []  # (time, turn, row or index, stamp)
        self._stamp = np.zeros(jobs, dtype=np.int64)
        self._next_arrival = 0
        self._wake_s = inf
        self._round_s = triggers.round_s if Trigger.ROUND in triggers.on else None
        self._watches_jobs = bool(triggers.on & {Trigger.COMPLETION, Trigger.EPOCH_END})
        # The artifact's clock takes one step before its first decision.
        self._rounds_served = 1 if settings.fidelity is Fidelity.ARTIFACT else 0
        self._idle = 0
        self._capacity_events = sorted(capacity_events, key=lambda event: event.at_s)
        for index, event in enumerate(self._capacity_events):
            heapq.heappush(self._events, (max(event.at_s - event.notice_s, 0.0), Turn.CAPACITY, index, 0))
            if event.notice_s > 0:
                heapq.heappush(self._events, (event.at_s, Turn.CAPACITY, index, 1))

    # ── wait ──────────────────────────────────────────────────────────────────────────────────────

    def wait(self) -> bool:
        """Go on to the next moment at which the policy wants to be asked; False once all jobs are done."""
        self._due.clear()
        while self.unfinished:
            if not self._due or self._next_s() <= self.now_s:
                if not self._step():
                    return False
                continue
            if self.active or self._due & {Trigger.CAPACITY}:
                return True
            self._due.clear()
        return False

    def _next_s(self) -> float:
        queued = self._events[0][0] if self._events else inf
        return min(queued, self._arrival_s(), self._wake_s, self._next_round_s())

    def _arrival_s(self) -> float:
        submitted_s = self.requests.submitted_s
        return float(submitted_s[self._next_arrival]) if self._next_arrival < len(submitted_s) else inf

    def _next_round_s(self) -> float:
        """The first multiple of the period, not served yet, at which anybody is there to be scheduled."""
        if self._round_s is None:
            return inf
        earliest_s = self.now_s if self.active else max(self.now_s, self._arrival_s())
        if not isfinite(earliest_s):
            return inf
        number = max(ceil(earliest_s / self._round_s), self._rounds_served)
        return number * self._round_s

    def _step(self) -> bool:
        """Process everything of the next instant; False where nothing will ever happen again."""
        at_s = self._next_s()
        if not isfinite(at_s):
            self._refuse_to_wait_for_ever()
            return False
        self.now_s = at_s
        while self._events and self._events[0][0] <= at_s:
            _, turn, index, stamp = heapq.heappop(self._events)
            if turn == Turn.JOB:
                if stamp == self._stamp[index]:
                    self._attend(index)
            elif turn == Turn.CAPACITY:
                self._change_capacity(index, stamp)
            elif turn == Turn.PROFILED:
                self._admit(index)
                self._note(Trigger.PROFILE_DONE)
        while self._arrival_s() <= at_s:
            self._arrive(self._next_arrival)
            self._next_arrival += 1
        if self._wake_s <= at_s:
            self._wake_s = inf
            self._due.add(Trigger.WAKE)
        if self._next_round_s() <= at_s:
            self._advance_all()
            self._rounds_served = round(at_s / self._round_s) + 1 if self._round_s else 0
            if self.active:
                self._due.add(Trigger.ROUND)
        return True

    def _note(self, trigger: Trigger) -> None:
        if trigger in self.triggers.on:
            self._due.add(trigger)

    def _arrive(self, row: int) -> None:
        if self.settings.profile_s > 0 and View.GOODPUT_MODEL in self.views:
            ready_s = self.now_s + self.settings.profile_s
            heapq.heappush(self._events, (ready_s, Turn.PROFILED, row, 0))
            self.attained_gpu_s[row] += self.settings.profile_s * self.settings.profile_gpus
            return
        self._admit(row)
        self._note(Trigger.ARRIVAL)

    def _admit(self, row: int) -> None:
        insort(self.active, row)
        self._membership_changed()

    def _membership_changed(self) -> None:
        self._rows = None
        self.version += 1

    def _attend(self, row: int) -> None:
        """A job has come to the end of an epoch, or of itself."""
        completed_s = self.physics.advance(row, self.now_s)
        if not isnan(completed_s):
            self._finish(row, completed_s)
            self._note(Trigger.COMPLETION)
            return
        self._note(Trigger.EPOCH_END)
        self._watch(row)

    def _watch(self, row: int) -> None:
        """Have the job looked at when it next needs it."""
        if not self.physics.needs_watching(row, self._watches_jobs):
            return
        self._stamp[row] += 1
        at_s = self.physics.next_s(row)
        if isfinite(at_s):
            heapq.heappush(self._events, (max(at_s, self.now_s), Turn.JOB, row, int(self._stamp[row])))

    def _advance_all(self) -> None:
        """Bring every training job up to a round; those that ended since the last one leave."""
        for row in [row for row in self.active if self.held_gpus[row] and self.physics.is_training(row)]:
            completed_s = self.physics.advance(row, self.now_s)
            if not isnan(completed_s):
                self._finish(row, completed_s)
                self._note(Trigger.COMPLETION)
            elif self._watches_jobs:
                self._watch(row)

    def _finish(self, row: int, completed_s: float) -> None:
        self.completed_s[row] = completed_s
        # The artifact's GPUs stay with a job until the round after its end, and count.
        until_s = self.now_s if self.settings.fidelity is Fidelity.ARTIFACT else completed_s
        self._release(row, until_s, ran_until_s=completed_s)
        self.placement = self.placement.changed({self.requests.jobs[row].id: None})
        self.active.remove(row)
        self.unfinished -= 1
        self._membership_changed()

    def _change_capacity(self, index: int, stamp: int) -> None:
        event = self._capacity_events[index]
        if event.at_s > self.now_s:
            self.notices.append(CapacityNotice(event.node, event.usable, event.at_s))
        else:
            self.notices = [
                notice for notice in self.notices if (notice.node, notice.by_s) != (event.node, event.at_s)
            ]
            self.usable = self.usable.copy()
            self.usable[event.node] = event.usable
            if not event.usable:
                self._evict(event.node)
        self._membership_changed()
        self._note(Trigger.CAPACITY)

    def _evict(self, node: int) -> None:
        """Whoever still runs on a node that goes away is stopped."""
        for job, allocation in list(self.placement.items()):
            if node in allocation.nodes:
                row = self._row_of[job]
                self.physics.advance(row, self.now_s)
                self._stop(row)
                self.placement = self.placement.changed({job: None})

    # ── observe ───────────────────────────────────────────────────────────────────────────────────

    def observe(self) -> Snapshot:
        """What the policy's views show of the present."""
        if self._rows is None:
            self._rows = np.array(self.active, dtype=np.int64)
        rows = self._rows
        table = JobTable(
            requests=self.requests,
            rows=rows,
            held_gpus=self.held_gpus[rows],
            held_nodes=self.held_nodes[rows],
            held_kind=self.held_kind[rows],
            **self.physics.known(rows, self.now_s, self.views, self),
        )
        return Snapshot(
            version=self.version,
            now_s=self.now_s,
            cluster=self.cluster,
            usable=self.usable,
            jobs=table,
            placement=self.placement,
            due=frozenset(self._due),
            notices=tuple(self.notices),
            memory=self.memory,
            seed=self.seed,
        )

    # ── act ───────────────────────────────────────────────────────────────────────────────────────

    def act(self, plan: Plan) -> None:
        """Carry out what still applies, release before take."""
        valid = [action for action in plan.actions if self._applies(action)]
        if len(valid) == len(plan.actions) and self.placement is plan.placement:
            pass
        elif valid:
            changes = {action.job: action.after for action in valid}
            self.placement = self.placement.changed(changes)
        for action in valid:
            self._carry_out(action)
        self.memory = plan.memory
        if plan.wake_s is not None:
            self._wake_s = plan.wake_s if plan.wake_s > self.now_s else inf
        self._sample(plan)

    def _applies(self, action: Action) -> bool:
        row = self._row_of[action.job]
        reason = ""
        if not isnan(self.completed_s[row]):
            reason = "the job has ended"
        elif self.placement.get(action.job) != action.before:
            reason = "its GPUs have changed since"
        elif action.after is not None and not self.usable[list(action.after.nodes)].all():
            reason = "a node has gone"
        if reason:
            self.history.dropped.append((self.now_s, action.job, reason))
        return not reason

    def _carry_out(self, action: Action) -> None:
        row = self._row_of[action.job]
        after = action.after
        if after is None:
            self.physics.advance(row, self.now_s)
            self._stop(row)
            return
        self.physics.advance(row, self.now_s)
        shape = after.shape
        gpus = sum(shape)
        moved = action.verb is not Verb.RETUNE
        if self.physics.give(row, after, shape, moved, resumes=self.starts[row] > 0, now_s=self.now_s):
            self.starts[row] += 1
        if action.before is None and isnan(self.first_start_s[row]):
            self.first_start_s[row] = self.now_s
        if action.before is not None:
            self._release(row, self.now_s, self.now_s)
        self.held_gpus[row] = gpus
        self.held_nodes[row] = len(shape)
        self.held_kind[row] = after.kind
        self.held_since_s[row] = self.now_s
        self.largest_held[row] = max(self.largest_held[row], gpus)
        self._watch(row)

    def _stop(self, row: int) -> None:
        self.physics.take(row, self.now_s)
        self._release(row, self.now_s, self.now_s)
        self.last_stop_s[row] = self.now_s
        self._stamp[row] += 1
        self.history.preemptions += 1

    def _release(self, row: int, until_s: float, ran_until_s: float) -> None:
        """Book the stretch that ends, and hold nothing."""
        gpus = int(self.held_gpus[row])
        if gpus:
            since_s = float(self.held_since_s[row])
            self.executed_s[row] += ran_until_s - since_s
            self.attained_gpu_s[row] += gpus * (until_s - since_s)
            self.history.held.append(Held(row, since_s, until_s, int(self.held_kind[row]), gpus))
        self.held_gpus[row] = 0
        self.held_nodes[row] = 0
        self.held_kind[row] = -1

    def _sample(self, plan: Plan) -> None:
        history = self.history
        busy = self.cluster.capacity - self.placement.free_by_kind
        history.sample_s.append(self.now_s)
        history.active.append(len(self.active))
        history.waiting.append(len(self.active) - len(self.placement))
        history.busy.append(busy)
        if plan.prices is not None:
            history.prices.append((self.now_s, plan.prices))
        self._idle = 0 if len(self.placement) else self._idle + 1
        if self._idle > self.settings.max_idle_rounds:
            self._refuse_to_wait_for_ever()

    def _refuse_to_wait_for_ever(self) -> None:
        names = [self.requests.jobs[row].id for row in self.active[:3]]
        raise BadPlan(f"{len(self.active)} jobs wait and nothing will start them, among them {names}")
