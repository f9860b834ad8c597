"""The simulated world: one engine for rounds and events around the same decisions as the live one."""

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import ceil, floor, inf, isfinite, isnan
from typing import NoReturn

import numpy as np

from stretto.model import (
    NO_CONSTRAINTS,
    Action,
    Allocation,
    BadPlan,
    BoolArray,
    CapacityNotice,
    Cluster,
    Constraints,
    EndedJobs,
    IntArray,
    JobTable,
    Kind,
    Loans,
    Memory,
    Placement,
    Plan,
    Requests,
    Snapshot,
    Trigger,
    Triggers,
    Verb,
    View,
    actions_between,
    no_placement,
)
from stretto.scheduler.check import still_apply
from stretto.sim.accounting import Accounting, Charging, Had
from stretto.sim.history import History, Settled
from stretto.sim.lenders import ROUNDING, SETTLE_S, SimulatedLender
from stretto.sim.physics import Physics
from stretto.sim.settings import Fidelity, SimSettings

SAME_MOMENT_S = 1e-6  # chosen: what is due so soon after another look at a job is due with it


class Turn(IntEnum):
    """The order of events at the same instant: what frees GPUs goes before what asks for them."""

    JOB = 0  # a job ends, or ends an epoch
    CAPACITY = 1
    LENDERS = 2
    ARRIVAL = 3
    PROFILED = 4
    WAKE = 5
    ROUND = 6


@dataclass(frozen=True, slots=True)
class CapacityEvent:
    """A node comes or goes at a time, announced beforehand or not."""

    at_s: float
    node: int
    usable: bool
    notice_s: float = 0.0  # how long before it is announced


class Starved(BadPlan):
    """Jobs wait, and nothing will ever start them."""


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
        lenders: Sequence[SimulatedLender] = (),
        foresight: bool = False,
        settle_s: float = SETTLE_S,
        charging: Charging | None = None,
        constraints: Constraints = NO_CONSTRAINTS,
        ended_jobs: EndedJobs | None = None,
        fails: BoolArray | None = None,
    ) -> None:
        """Start at time 0 with no job there and nothing on loan.

        lenders: their own use is followed; without them lent nodes stay out of reach. foresight: decisions
        are shown what lenders will use until they are asked again. settle_s: how often that is. charging:
        which account is charged for what is held, where fair share orders jobs. ended_jobs: before time 0.
        fails: (all jobs,) which of them fail at their end; None: none does.
        """
        self.cluster = cluster
        self.physics = physics
        self.triggers = triggers
        self.views = views
        self.settings = settings
        self.seed = seed
        self.requests: Requests = physics.requests
        jobs = len(self.requests.jobs)
        self.history = History(jobs)
        self.accounting = Accounting(self.history)
        self.now_s = 0.0
        self.version = 0
        self.memory: Memory = None
        self.lenders = tuple(lenders)
        self.foresight = foresight
        self.settle_s = settle_s
        self.charging = charging
        self.constraints = constraints
        self.ended_jobs = ended_jobs or EndedJobs()
        self._fails = fails
        self._lent = np.array([bool(node.lender) for node in cluster.nodes])
        self._up: BoolArray | None = None  # (nodes,) those that have not failed; None: all
        self.usable = ~self._lent
        self.usable_gpus = self._count_usable()
        self.history.capacity.append((0.0, self.usable_gpus))
        self.notices: list[CapacityNotice] = []
        self.placement = no_placement(cluster)
        self.active: list[int] = []  # rows of submitted, unfinished jobs, ascending
        self.unfinished = jobs
        self._row_of = {job.id: row for row, job in enumerate(self.requests.jobs)}
        self._rows: IntArray = np.zeros(0, dtype=np.int64)  # the same as a column
        self._arrivals_s: list[float] = [*self.requests.submitted_s.tolist(), inf]  # the last: none comes
        self._due: set[Trigger] = set()
        self._events: list[tuple[float, int, int, int]] = []  # (time, turn, row or index, stamp)
        self._stamp = np.zeros(jobs, dtype=np.int64)
        self._watched_s = np.full(jobs, inf)  # for when the job's valid event is queued
        self._advanced_s = 0.0  # up to when all training jobs have run
        self._next_arrival = 0
        self._wake_s = inf
        self._round_s = triggers.round_s if Trigger.ROUND in triggers.on else None
        # At rounds every job is looked at anyway, unless an end is what a round waits for.
        ends_matter = bool(triggers.on & {Trigger.COMPLETION, Trigger.EPOCH_END}) or triggers.when_changed
        self._watches_jobs = ends_matter or self._round_s is None
        # The artifact's clock takes one step before its first decision.
        self._rounds_served = 1 if settings.fidelity is Fidelity.ARTIFACT else 0
        self._changed = True  # since the last round
        self._idle = 0
        if self.lenders:
            heapq.heappush(self._events, (0.0, Turn.LENDERS, 0, 0))
        self._capacity_events = sorted(capacity_events, key=lambda event: event.at_s)
        for index, event in enumerate(self._capacity_events):
            heapq.heappush(self._events, (max(event.at_s - event.notice_s, 0.0), Turn.CAPACITY, index, 0))
            if event.notice_s > 0:
                heapq.heappush(self._events, (event.at_s, Turn.CAPACITY, index, 1))

    def resume(
        self, now_s: float, usable: BoolArray, placement: Placement, had: Sequence[Had], memory: Memory = None
    ) -> None:
        """Go on from another moment instead of time 0, before anything has happened.

        usable: (nodes,) that may hold jobs then. placement: what jobs hold. had: (all jobs,) what each has
        had so far. memory: what the policy remembers.
        """
        self.now_s = self._advanced_s = now_s
        self.usable = usable
        self.usable_gpus = self._count_usable()
        self.placement, self.memory = placement, memory
        for row, (name, before) in enumerate(zip(self.requests.ids.tolist(), had, strict=True)):
            self.accounting.resume(row, before, placement.get(name))
        for job, allocation in placement.items():
            row = self._row_of[job]
            self.physics.give(row, allocation, Verb.START, False, now_s)
            self._charge(row, {allocation.kind: allocation.gpus})
            self._watch(row)

    # ── wait ──────────────────────────────────────────────────────────────────────────────────────

    def wait(self) -> bool:
        """Go on to the next moment at which the policy wants to be asked; False once all jobs are done.

        Raises Starved where jobs wait and nothing will ever happen again.
        """
        self._due.clear()
        while self.unfinished:
            if not self._due or self._next_s() <= self.now_s:
                self._step()
                continue
            self._advance_all()
            if self.active or self._due & {Trigger.CAPACITY, Trigger.LENDERS}:
                return True
            self._due.clear()
        return False

    def _next_s(self) -> float:
        queued = self._events[0][0] if self._events else inf
        return min(queued, self._arrival_s(), self._wake_s, self._next_round_s())

    def _arrival_s(self) -> float:
        return self._arrivals_s[self._next_arrival]

    def _next_round_s(self) -> float:
        """The first multiple of the period, not served yet, at which any job is there to be scheduled."""
        if self._round_s is None or (self.triggers.when_changed and not self._changed):
            return inf
        earliest_s = self.now_s if self.active else max(self.now_s, self._arrival_s())
        if not isfinite(earliest_s):
            return inf
        number = max(ceil(earliest_s / self._round_s), self._rounds_served)
        return number * self._round_s

    def _step(self) -> None:
        """Process everything of the next instant."""
        at_s = max(self._next_s(), self.now_s)  # a multiple of the period may lie a rounding error behind
        if not isfinite(at_s):
            self._refuse_endless_wait()
        self.now_s = at_s
        while self._events and self._events[0][0] <= at_s:
            _, turn, index, stamp = heapq.heappop(self._events)
            if turn == Turn.JOB:
                if stamp == self._stamp[index]:
                    self._attend(index)
            elif turn == Turn.CAPACITY:
                self._change_capacity(index, stamp)
            elif turn == Turn.LENDERS:
                self._ask_lenders()
            elif turn == Turn.PROFILED:
                self._admit(index)
                self._note(Trigger.PROFILE_DONE)
                self._note(Trigger.ARRIVAL)  # to a scheduler that knows nothing of profiling it comes now
        while self._arrival_s() <= at_s:
            self._arrive(self._next_arrival)
            self._next_arrival += 1
        if self._wake_s <= at_s:
            self._wake_s = inf
            self._due.add(Trigger.WAKE)
        if self._round_s is not None and self._next_round_s() <= at_s:
            self._rounds_served = round(at_s / self._round_s) + 1
            self._changed = False
            if self.active:
                self._due.add(Trigger.ROUND)

    def _note(self, trigger: Trigger) -> None:
        if trigger in self.triggers.on:
            self._due.add(trigger)

    def _arrive(self, row: int) -> None:
        if self.settings.profile_s > 0 and View.GOODPUT_MODEL in self.views:
            ready_s = self.now_s + self.settings.profile_s
            heapq.heappush(self._events, (ready_s, Turn.PROFILED, row, 0))
            self.accounting.profiled_gpu_s[row] = self.settings.profile_s * self.settings.profile_gpus
            return
        self._admit(row)
        self._note(Trigger.ARRIVAL)

    def _admit(self, row: int) -> None:
        place = bisect_left(self.active, row)
        self.active.insert(place, row)
        self._rows = np.concatenate((self._rows[:place], (row,), self._rows[place:]))
        self._membership_changed()

    def _membership_changed(self) -> None:
        self._changed = True
        self.version += 1

    def _ask_lenders(self) -> None:
        self._due.add(Trigger.LENDERS)
        changes_s = min(lender.next_change_s(self.now_s) for lender in self.lenders)
        next_s = (floor(self.now_s / self.settle_s + ROUNDING) + 1) * self.settle_s
        if isfinite(changes_s) and isfinite(next_s):
            heapq.heappush(self._events, (next_s, Turn.LENDERS, 0, 0))

    def _count_usable(self) -> IntArray:
        """(types,) GPUs of usable nodes."""
        per_node = np.where(self.usable, self.cluster.node_gpus, 0)
        return np.bincount(self.cluster.kind, per_node, len(self.cluster.types)).astype(np.int64)

    def _attend(self, row: int) -> None:
        """A job has come to the end of an epoch, or of itself."""
        self._watched_s[row] = inf
        epochs = self.physics.epochs(row)
        if self._advance(row):
            return
        if self.physics.epochs(row) > epochs:
            self._note(Trigger.EPOCH_END)
        self._watch(row)

    def _advance(self, row: int) -> bool:
        """Run one job up to now; whether it has ended, and so left."""
        completed_s = self.physics.advance(row, self.now_s)
        if isnan(completed_s):
            return False
        self._finish(row, completed_s)
        self._note(Trigger.COMPLETION)
        return True

    def _watch(self, row: int) -> None:
        """Have the job looked at when it next needs it."""
        if not self.physics.needs_watching(row, self._watches_jobs):
            return
        at_s = max(self.physics.next_s(row), self.now_s)
        watched_s = float(self._watched_s[row])
        if at_s == watched_s or abs(at_s - watched_s) <= SAME_MOMENT_S:  # the first: never, and still never
            return
        self._unwatch(row)
        if isfinite(at_s):
            self._watched_s[row] = at_s
            heapq.heappush(self._events, (at_s, Turn.JOB, row, int(self._stamp[row])))

    def _unwatch(self, row: int) -> None:
        """Forget what is queued for a job."""
        self._stamp[row] += 1
        self._watched_s[row] = inf

    def _advance_all(self) -> None:
        """Bring every training job up to now: a decision sees it as it stands; ended jobs leave."""
        if self._advanced_s == self.now_s or not self.physics.training:
            return
        self._advanced_s = self.now_s
        for row in [
            row for row in self.active if self.accounting.held_gpus[row] and self.physics.is_training(row)
        ]:
            epochs = self.physics.epochs(row)
            if not self._advance(row):
                if self.physics.epochs(row) > epochs:
                    self._note(Trigger.EPOCH_END)
                self._watch(row)

    def _finish(self, row: int, completed_s: float) -> None:
        # The artifact's GPUs stay with a job until the round after its end, and count.
        until_s = self.now_s if self.settings.fidelity is Fidelity.ARTIFACT else completed_s
        self.accounting.finish(row, completed_s, until_s)
        self.ended_jobs = self.ended_jobs.with_ended(
            float(self.accounting.executed_s[row]),
            interactive=self.requests.jobs[row].kind is Kind.INTERACTIVE,
            failed=self._fails is not None and bool(self._fails[row]),
        )
        self._charge(row, {})
        self._unwatch(row)
        self.placement = self.placement.changed({self.requests.jobs[row].id: None})
        place = bisect_left(self.active, row)
        del self.active[place]
        self._rows = np.concatenate((self._rows[:place], self._rows[place + 1 :]))
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
            self._set_usable(event.node, event.usable)
            self.history.capacity.append((self.now_s, self.usable_gpus))
            if not event.usable:
                self._evict(event.node)
        self._membership_changed()
        self._note(Trigger.CAPACITY)

    def _set_usable(self, node: int, usable: bool) -> None:
        """A node fails or returns; to a lender, if it has one: what is on loan must then be settled anew."""
        self.usable = self.usable.copy()
        if self._lent[node]:
            self._up = np.ones(len(self.usable), dtype=np.bool_) if self._up is None else self._up.copy()
            self._up[node] = usable
            self.usable[node] &= usable
            if self.lenders:
                self._due.add(Trigger.LENDERS)
        else:
            self.usable[node] = usable
        self.usable_gpus = self._count_usable()

    def _evict(self, node: int) -> None:
        """A job still running on a node that goes away is stopped; one that has ended meanwhile leaves."""
        for job, allocation in list(self.placement.items()):
            row = self._row_of[job]
            if node in allocation.nodes and not self._advance(row):
                self._stop(row)
                self.placement = self.placement.changed({job: None})

    # ── observe ───────────────────────────────────────────────────────────────────────────────────

    def observe(self) -> Snapshot:
        """What the policy's views show of the present."""
        rows = self._rows
        table = JobTable(
            requests=self.requests,
            rows=rows,
            held_gpus=self.accounting.held_gpus[rows],
            held_nodes=self.accounting.held_nodes[rows],
            held_kind=self.accounting.held_kind[rows],
            known_ended=self.ended_jobs if View.ENDED_JOBS in self.views else None,
            **self.physics.known(rows, self.now_s, self.views, self.accounting),
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
            lenders=tuple(
                lender.state(self.now_s, self.foresight, self.settle_s, self._up) for lender in self.lenders
            ),
            memory=self.memory,
            seed=self.seed,
            constraints=self._constraints(),
        )

    def _constraints(self) -> Constraints:
        constraints = self.constraints.at(self.now_s)
        if self.charging is None:
            return constraints
        return replace(constraints, fair_share=self.charging.at(self.now_s))

    # ── act ───────────────────────────────────────────────────────────────────────────────────────

    def act(self, plan: Plan) -> None:
        """Carry out what still applies, release before take; the rest is dropped with a reason."""
        self._advance_all()
        if plan.loans is not None:
            self._settle(plan.loans)
        self._carry_out_all(plan.actions, plan.placement)
        self.memory = plan.memory
        self._wake_s = plan.wake_s if plan.wake_s is not None and plan.wake_s > self.now_s else inf
        self._sample(plan)

    def _carry_out_all(self, planned: Sequence[Action], placement: Placement) -> None:
        """placement: what would come of all that is planned."""
        actions = still_apply(self.placement, planned, self._why_stale, self._drop)
        jobs = tuple(action.job for action in actions)
        if placement.touched_since(self.placement) == jobs:  # it is that to which these actions lead
            self.placement = placement
        elif actions:
            self.placement = self.placement.changed({action.job: action.after for action in actions})
        for action in actions:
            self._carry_out(action)

    def _settle(self, loans: Loans) -> None:
        """Jobs that have to make room do; nodes that go back and nodes that come change hands."""
        running = len(self.placement)
        self._carry_out_all(actions_between(self.placement, loans.placement), loans.placement)
        if (loans.usable == self.usable).all() and not loans.preempted and not loans.scaled_in:
            return
        self.usable = loans.usable
        self.usable_gpus = self._count_usable()
        self.history.capacity.append((self.now_s, self.usable_gpus))
        lent = [node for lender in self.lenders for node in lender.nodes.tolist()]
        self.history.settled.append(
            Settled(
                self.now_s,
                int(self.usable[lent].sum()),
                running,
                len(loans.preempted),
                len(loans.scaled_in),
                loans.vacated_gpus,
                loans.demanded_gpus,
                loans.spared_gpus,
            )
        )
        self._membership_changed()

    def _why_stale(self, action: Action) -> str:
        if not isnan(self.accounting.completed_s[self._row_of[action.job]]):
            return "the job has ended"
        if self.placement.get(action.job) != action.before:
            return "its GPUs have changed since"
        if action.after is not None and not all(self.usable[node] for node in action.after.nodes):
            return "a node has gone"
        return ""

    def _drop(self, action: Action, reason: str) -> None:
        self.history.dropped.append((self.now_s, action.job, reason))

    def _carry_out(self, action: Action) -> None:
        row = self._row_of[action.job]
        after = action.after
        if after is None:
            self._stop(row)
            self.history.preemptions += 1
            return
        resumes = self.accounting.starts[row] > 0
        restarts = self.physics.give(row, after, action.verb, resumes, self.now_s)
        self.history.resizes += action.verb in (Verb.GROW, Verb.SHRINK)
        parts = self._parts(after)
        self.accounting.give(row, after, self.now_s, restarts, parts)
        self._charge(row, parts or {after.kind: after.gpus})
        self._watch(row)

    def _parts(self, after: Allocation) -> dict[int, int] | None:
        """GPUs by type of a job that mixes them."""
        if len(self.cluster.types) == 1 or len(after.nodes) == 1:
            return None
        kinds = self.cluster.kind[list(after.nodes)]
        if (kinds == after.kind).all():
            return None
        counts = np.bincount(kinds, after.shape, len(self.cluster.types)).astype(np.int64)
        return {kind: count for kind, count in enumerate(counts.tolist()) if count}

    def _stop(self, row: int) -> None:
        self.physics.take(row, self.now_s)
        self.accounting.stop(row, self.now_s)
        self._charge(row, {})
        self._unwatch(row)

    def _charge(self, row: int, gpus_of: Mapping[int, int]) -> None:
        """A job holds these GPUs from now on, by type."""
        if self.charging is not None:
            self.charging.hold(row, gpus_of, self.now_s)

    def _sample(self, plan: Plan) -> None:
        history = self.history
        busy = self.cluster.capacity - self.placement.free_by_kind
        history.sample_s.append(self.now_s)
        history.active.append(len(self.active))
        history.waiting.append(len(self.active) - len(self.placement))
        history.busy.append(busy)
        history.usable.append(self.usable_gpus)
        if plan.prices is not None:
            history.prices.append((self.now_s, plan.prices))
        self._idle = 0 if len(self.placement) or self._waits_for_nodes() else self._idle + 1
        if self._idle > self.settings.max_idle_rounds:
            self._refuse_endless_wait()

    def _waits_for_nodes(self) -> bool:
        """Whether there are none, and some will come."""
        may_come = (Turn.CAPACITY, Turn.LENDERS)
        return not self.usable_gpus.any() and any(turn in may_come for _, turn, _, _ in self._events)

    def _refuse_endless_wait(self) -> NoReturn:
        names = ", ".join(self.requests.jobs[row].id for row in self.active[:3])
        raise Starved(
            f"at {self.now_s:g} s {len(self.active)} jobs wait and nothing will start them, first {names}"
        )
