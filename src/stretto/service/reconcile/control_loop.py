"""From the log to the backend and back: steps are taken, and what the backend shows is written down."""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from stretto.agent import open_files
from stretto.backends.protocol import Backend, IncrementalListing, NodeState
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.leadership import Leadership
from stretto.service.reconcile.diff import about_nodes, about_vanished, about_workers
from stretto.service.reconcile.dispatcher import Dispatcher
from stretto.service.reconcile.reconciler import Command, next_steps, slots_of
from stretto.service.reconcile.worker_cache import GpuOccupancy, WorkerCache
from stretto.service.reconcile.worker_env import WorkerContext
from stretto.service.state.events import Event, NodeDead, WorkersWanted
from stretto.service.state.records import JobRecord, WorkerPhase
from stretto.service.state.state import State

DEAD_AFTER_S = 300.0  # chosen: longer than most machines take to restart
BURIAL_CHECK_S = 1.0  # the longest between two looks at who has been silent for too long; chosen
AGAIN_S = 1.0  # before a command is repeated that the backend did not take; chosen


@dataclass
class Reconciler:
    """Reconciles every job that changed, and follows the backend."""

    ledger: LogWriter
    backend: Backend
    clock: Clock
    secrets: WorkerContext
    dead_after_s: float = DEAD_AFTER_S  # of silence; 0: never
    leadership: Leadership | None = None
    orders: Dispatcher = field(init=False)
    seen: WorkerCache = field(init=False)
    dirty: set[str] = field(default_factory=set)  # jobs to look at: they have changed, or their time has come
    _heard_seq: int = field(init=False)  # changes up to this event are in it
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    later: list[tuple[float, str]] = field(default_factory=list)  # (time, job) to look at again, a heap
    _planned: set[tuple[float, str]] = field(default_factory=set)  # what is in it
    _occupied: GpuOccupancy = field(default_factory=GpuOccupancy)
    _waiting: set[str] = field(default_factory=set)  # jobs that are to start or grow once GPUs are free
    _nodes: Sequence[NodeState] | None = None  # as last shown
    _looked: bool = False
    _began_s: float = field(init=False)  # nobody is silent for longer than we listen

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self._began_s = self.clock.now_s()
        self.seen = WorkerCache(self.ledger, self._occupied, self._let_go)
        self.orders = Dispatcher(
            self.ledger, self.backend, self.secrets, self.seen, self._again, self.leadership
        )
        self._heard_seq = self.ledger.state.seq
        self.ledger.listeners.append(self._heard)

    def _heard(self, told: Sequence[tuple[int, Event]]) -> None:
        state = self.ledger.state
        self.dirty.update(record.id for record in state.changed_since(self._heard_seq))
        self._heard_seq = state.seq
        self._changed.set()

    # ── from the log to the backend ───────────────────────────────────────────────────────────────

    async def reconcile_for_ever(self) -> None:
        """Take steps for every job that changed, or whose time has come, until cancelled."""
        self.dirty.update(record.id for record in self.ledger.state.open_jobs())
        while True:
            self._changed.clear()
            await self.reconcile_once()
            wait_s = self.clock.wall_s(self.later[0][0] - self.clock.now_s()) if self.later else None
            try:
                async with asyncio.timeout(None if wait_s is None else max(wait_s, 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def reconcile_once(self) -> None:
        """Ask every job that changed: record what follows of all, then carry out what was recorded."""
        state = self.ledger.state
        now_s = self.clock.now_s()
        while self.later and self.later[0][0] <= now_s:
            due = heapq.heappop(self.later)
            self._planned.discard(due)
            self.dirty.add(due[1])
        dirty = {name for name in self.dirty if name in state.jobs}
        self.dirty.clear()
        if not dirty:
            return
        for name in dirty:
            self._note(state.jobs[name])
        events: list[Event] = []
        commands: list[tuple[JobRecord, Command]] = []
        # Who waits for GPUs is asked whenever anybody changes: it may be that those have become free.
        for name in sorted(dirty | self._waiting, key=lambda one: state.jobs[one].number):
            record = state.jobs[name]
            steps = next_steps(state, record, self._occupied, now_s)
            events += steps.events
            commands += [(record, command) for command in steps.commands]
            if steps.again_s < float("inf"):
                self._ask_again(steps.again_s, name)
            for event in steps.events:
                if isinstance(event, WorkersWanted):
                    self._occupied.put(name, [*_slots(record), *_wanted_slots(state, event)])
        if events:
            await self.ledger.record(*events)
        for record, command in commands:
            self.orders.give(record, command)

    def _note(self, record: JobRecord) -> None:
        """What a job that changed holds, and whether it waits for GPUs to be free."""
        self._occupied.put(record.id, _slots(record))
        if not any(worker.life is WorkerPhase.WANTED for worker in record.alive):
            self.orders.troubles.pop(record.id, None)
        wanted = slots_of(self.ledger.state.wanted(record.id), record.job.gpus_per_worker)
        if not record.has_ended and not {(one.node, one.mask) for one in record.alive}.issuperset(wanted):
            self._waiting.add(record.id)
        else:
            self._waiting.discard(record.id)

    def _again(self, job: str) -> None:
        """Look at a job again soon: a command was not taken."""
        self._ask_again(self.clock.now_s() + AGAIN_S, job)
        self._changed.set()

    def _ask_again(self, at_s: float, job: str) -> None:
        """Look at a job again at a time; whoever waits says the same time over and over."""
        if (at_s, job) not in self._planned:
            self._planned.add((at_s, job))
            heapq.heappush(self.later, (at_s, job))

    def _let_go(self) -> None:
        """GPUs are free of a process: where it was a stray, nothing of the log says that others may begin."""
        if self._waiting:
            self.dirty |= self._waiting
            self._changed.set()

    # ── from the backend to the log ───────────────────────────────────────────────────────────────

    async def follow_for_ever(self) -> None:
        """Write down what the backend shows, until cancelled."""
        number = 0
        while True:
            await self.look()
            number = await self.backend.changes(number)

    async def look(self) -> None:
        """Compare what the backend shows now with the log; write the difference."""
        state, seen = self.ledger.state, self.seen
        nodes = await self.backend.nodes()
        events = [] if nodes is self._nodes else about_nodes(state, nodes)
        self._nodes = nodes
        if self._looked and isinstance(self.backend, IncrementalListing):
            shown = await self.backend.changed_workers()
        else:
            known = set(seen.workers)
            shown = await self.backend.workers()
            there = {one.id for one in shown}
            gone = known - there
            for name in gone:
                seen.unsee(name)
            if gone or events or not self._looked:
                events += about_vanished(state, nodes, there, gone)
        self._looked = True
        for one in shown:
            seen.see(one)
        happened, unwanted = about_workers(state, shown)
        for one, grace_s in unwanted:
            self.orders.stop(one, grace_s)
        events += happened
        if events:
            await self.ledger.record(*events)
        self.orders.forget_ended(shown)

    async def bury_for_ever(self) -> None:
        """Stop waiting for nodes that have been silent for too long, until cancelled."""
        while self.dead_after_s > 0:
            now_s = self.clock.now_s()
            if not open_files.can_open():
                self._began_s = now_s  # we are deaf: that we hear nothing is no evidence
            silent = [
                (node.name, now_s - max(node.silent_s, self._began_s))
                for node in self.ledger.state.nodes
                if not node.up and not node.dead and not isnan(node.silent_s)
            ]
            dead = [NodeDead(name, round(for_s, 3)) for name, for_s in silent if for_s >= self.dead_after_s]
            if dead:
                await self.ledger.record(*dead)
            await asyncio.sleep(self.clock.wall_s(min(BURIAL_CHECK_S, self.dead_after_s / 4)))


def _slots(record: JobRecord) -> list[tuple[int, int]]:
    """(node, mask) of workers of which processes may exist."""
    if record.has_ended:
        return []
    return [
        (worker.node, worker.mask)
        for worker in record.workers.values()
        if worker.life is not WorkerPhase.ENDED
    ]


def _wanted_slots(state: State, event: WorkersWanted) -> list[tuple[int, int]]:
    return [(state.node_index[one["node"]], int(one["mask"])) for one in event.workers]
