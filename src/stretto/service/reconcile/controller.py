"""From the log to the backend and back: which jobs are to be looked at, and what both sides hold."""

import asyncio
import contextlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from stretto.agent import open_files
from stretto.backends.protocol import Backend, IncrementalListing, NodeState, WorkerState
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
SILENCE_CHECK_S = 1.0  # the longest between two looks at nodes that are silent; chosen
AGAIN_S = 1.0  # before a command is repeated that the backend did not take; chosen


@dataclass(frozen=True)
class Difference:
    """What the backend shows, against what the log says."""

    events: Sequence[Event]  # that are missing in the log
    strays: Sequence[tuple[WorkerState, float]]  # workers that no job wants, each with its time to end in s
    shown: Sequence[WorkerState]  # all that the backend has shown this time


@dataclass(frozen=True)
class NextSteps:
    """What follows for all jobs that were looked at."""

    events: Sequence[Event] = ()
    commands: Sequence[tuple[JobRecord, Command]] = ()


@dataclass
class Reconciler:
    """Which jobs are to be looked at, and what both sides are known to hold. `control_loop` has its loops."""

    log_writer: LogWriter
    backend: Backend
    clock: Clock
    context: WorkerContext
    dead_after_s: float = DEAD_AFTER_S  # of silence; 0: never
    leadership: Leadership | None = None
    dispatcher: Dispatcher = field(init=False)
    seen: WorkerCache = field(init=False)
    dirty: set[str] = field(default_factory=set)  # jobs to look at: they have changed, or their time has come
    _heard_seq: int = field(init=False)  # changes up to this event are in it
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    later: list[tuple[float, str]] = field(default_factory=list)  # (time, job) to look at again, a heap
    _planned: set[tuple[float, str]] = field(default_factory=set)  # what is in it
    _occupied: GpuOccupancy = field(default_factory=GpuOccupancy)
    _waiting: set[str] = field(default_factory=set)  # jobs that are to start or grow once GPUs are free
    _nodes: Sequence[NodeState] | None = None  # as last shown
    _has_listed: bool = False  # all workers, once
    _began_s: float = field(init=False)  # no node has been silent for longer than we listen

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self._began_s = self.clock.now_s()
        self.seen = WorkerCache(self.log_writer, self._occupied, self._let_go)
        self.dispatcher = Dispatcher(
            self.log_writer, self.backend, self.context, self.seen, self._again, self.leadership
        )
        self._heard_seq = self.log_writer.state.seq
        self.log_writer.listeners.append(self._heard)

    def _heard(self, told: Sequence[tuple[int, Event]]) -> None:
        state = self.log_writer.state
        self.dirty.update(record.id for record in state.changed_since(self._heard_seq))
        self._heard_seq = state.seq
        self._changed.set()

    async def record(self, events: Sequence[Event]) -> None:
        """Durable and folded when awaited; nothing is waited for where there is nothing to record."""
        if events:
            await self.log_writer.record(*events)

    # ── from the backend to the log ───────────────────────────────────────────────────────────────

    async def observe(self) -> Difference:
        """Compare what the backend shows now with the log."""
        state, cache = self.log_writer.state, self.seen
        nodes = tuple(await self.backend.nodes())
        events = [] if nodes == self._nodes else about_nodes(state, nodes)
        self._nodes = nodes
        # A backend that can says only what has changed; the first time all workers are asked for.
        if self._has_listed and isinstance(self.backend, IncrementalListing):
            workers = await self.backend.changed_workers()
        else:
            known_ids = set(cache.workers)
            workers = await self.backend.workers()
            there = {listed.id for listed in workers}
            gone = known_ids - there
            for name in gone:
                cache.unsee(name)
            if gone or events or not self._has_listed:
                events += about_vanished(state, nodes, there, gone)
        self._has_listed = True
        for listed in workers:
            cache.see(listed)
        about, strays = about_workers(state, workers)
        return Difference([*events, *about], strays, workers)

    def dead_nodes(self) -> list[NodeDead]:
        """Nodes that have been silent for longer than a restart takes."""
        now_s = self.clock.now_s()
        if not open_files.can_open():
            self._began_s = now_s  # we are deaf: that we hear nothing is no evidence
        silent = [
            (node.name, now_s - max(node.silent_s, self._began_s))
            for node in self.log_writer.state.nodes
            if not node.up and not node.dead and not isnan(node.silent_s)
        ]
        return [NodeDead(name, round(for_s, 3)) for name, for_s in silent if for_s >= self.dead_after_s]

    @property
    def check_silence_s(self) -> float:
        """Wall time between two looks at nodes that are silent."""
        return self.clock.wall_s(min(SILENCE_CHECK_S, self.dead_after_s / 4))

    # ── from the log to the backend ───────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """A service that has just started looks at every job."""
        self.dirty.update(record.id for record in self.log_writer.state.open_jobs())

    async def wait_until_dirty(self) -> None:
        """Until something has happened since the last steps, or the time of a job has come."""
        wait_s = self.clock.wall_s(self.later[0][0] - self.clock.now_s()) if self.later else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wait_s is None else max(wait_s, 0.0)):
                await self._changed.wait()

    def next_steps(self) -> NextSteps:
        """What follows for jobs that have changed, or whose time has come."""
        self._changed.clear()
        state, now_s = self.log_writer.state, self.clock.now_s()
        while self.later and self.later[0][0] <= now_s:
            due = heapq.heappop(self.later)
            self._planned.discard(due)
            self.dirty.add(due[1])
        dirty = {name for name in self.dirty if name in state.jobs}
        self.dirty.clear()
        if not dirty:
            return NextSteps()
        for name in dirty:
            self._note(state.jobs[name])
        events: list[Event] = []
        commands: list[tuple[JobRecord, Command]] = []
        # A job that waits for GPUs is asked whenever any job changes: it may be that they have become free.
        for name in sorted(dirty | self._waiting, key=lambda job: state.jobs[job].number):
            record = state.jobs[name]
            steps = next_steps(state, record, self._occupied, now_s)
            events += steps.events
            commands += [(record, command) for command in steps.commands]
            if steps.again_s < float("inf"):
                self._ask_again(steps.again_s, name)
            for event in steps.events:  # what is about to be recorded is taken for the jobs that follow
                if isinstance(event, WorkersWanted):
                    self._occupied.put(name, [*_slots(record), *_wanted_slots(state, event)])
        return NextSteps(events, commands)

    def _note(self, record: JobRecord) -> None:
        """What a job that changed holds, and whether it waits for GPUs to be free."""
        self._occupied.put(record.id, _slots(record))
        if not any(worker.life is WorkerPhase.WANTED for worker in record.alive):
            self.dispatcher.start_errors.pop(record.id, None)
        wanted = slots_of(self.log_writer.state.wanted(record.id), record.job.gpus_per_worker)
        if not record.has_ended and not {(worker.node, worker.mask) for worker in record.alive}.issuperset(
            wanted
        ):
            self._waiting.add(record.id)
        else:
            self._waiting.discard(record.id)

    def _again(self, job: str) -> None:
        """Look at a job again soon: a command was not taken."""
        self._ask_again(self.clock.now_s() + AGAIN_S, job)
        self._changed.set()

    def _ask_again(self, at_s: float, job: str) -> None:
        """Look at a job again at a time; a job that waits names the same time over and over."""
        if (at_s, job) not in self._planned:
            self._planned.add((at_s, job))
            heapq.heappush(self.later, (at_s, job))

    def _let_go(self) -> None:
        """GPUs are free of a process: where it was a stray, no event says that other jobs may begin."""
        if self._waiting:
            self.dirty |= self._waiting
            self._changed.set()


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
