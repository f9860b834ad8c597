"""From the log to the backend and back: which jobs are looked at, and the commands that follow.

Commands go to the backend beside the loops: each once, and again where it was not taken.
"""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan
from typing import Any, TypeVar

from stretto.agent import open_files
from stretto.backends.protocol import (
    Backend,
    BackendUnreachable,
    IdUsed,
    IncrementalListing,
    NodeState,
    NoSuchWorker,
    StartRefused,
    WorkerState,
)
from stretto.service.eventlog import LeadLost
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.leadership import Leadership
from stretto.service.reconcile.diff import (
    UNKNOWN,
    VANISHED,
    WorkerCache,
    about_nodes,
    about_vanished,
    about_workers,
)
from stretto.service.reconcile.held_gpus import HOLDER, GpuOccupancy
from stretto.service.reconcile.reconciler import (
    Command,
    Divide,
    Start,
    Stop,
    as_script_says,
    next_steps,
    wanted_slots,
)
from stretto.service.reconcile.worker_env import WorkerContext, start_of, with_belongings
from stretto.service.state.events import (
    Event,
    NodeDead,
    NodeSeen,
    NodesHandedOver,
    WorkerEnded,
    WorkersWanted,
)
from stretto.service.state.records import JobRecord, WorkerPhase
from stretto.service.state.state import State

REFUSED = 126  # the status of a worker that a node refused to start, as a shell says "cannot execute"

log = logging.getLogger(__name__)

Given = TypeVar("Given")


@dataclass
class Dispatcher:
    """Starts, stops and forgets workers. again: is told of a job whose command was not taken."""

    log_writer: LogWriter
    backend: Backend
    context: WorkerContext
    seen: WorkerCache
    again: Callable[[str], None]
    leadership: Leadership | None = None  # None: nobody else can lead
    start_errors: dict[str, str] = field(default_factory=dict)  # job → why a start is still being tried
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)  # under way
    _given: set[tuple[str, str]] = field(default_factory=set)  # commands under way, or taken
    _ended: dict[str, dict[str, None]] = field(default_factory=dict)  # by node, workers that it may forget

    def dispatch_all(self, commands: Iterable[tuple[JobRecord, Command]]) -> None:
        """Carry out commands in their order."""
        for record, command in commands:
            self.dispatch(record, command)

    def dispatch(self, record: JobRecord, command: Command) -> None:
        """Carry out a command beside the loop, unless the same one is under way."""
        key = (type(command).__name__, command.worker.id)
        if key in self._given or (isinstance(command, Start) and command.worker.id in self.seen.workers):
            return
        self._given.add(key)
        self._beside(self._carry_out(record, command, key))

    async def _carry_out(self, record: JobRecord, command: Command, key: tuple[str, str]) -> None:
        worker = command.worker
        try:
            if isinstance(command, Start):
                start = start_of(self.log_writer.state, record, worker, self.context)
                start = await with_belongings(start, record, self.context)
                self.seen.see(await self._commanded(lambda: self.backend.start(start)))
                self.start_errors.pop(record.id, None)
            else:
                grace_s = command.grace_s
                await self._commanded(lambda: self.backend.stop(worker.id, grace_s))
        except LeadLost:
            return  # the service is ending, and another one takes care of the worker
        except BackendUnreachable as error:
            if isinstance(command, Start):
                self.start_errors[record.id] = str(error)
            self._repeat(record, key)
        except IdUsed:  # in a time that the log has lost
            await self.log_writer.record(WorkerEnded(record.id, worker.id, VANISHED, UNKNOWN))
        except StartRefused as refused:
            await self.log_writer.record(WorkerEnded(record.id, worker.id, REFUSED, str(refused)))
        except NoSuchWorker:
            # Its start was recorded and never reached the node, or the node has lost it: it does not run. A
            # start whose answer was given up may still be under way: then it will be a stray, to be stopped.
            if isinstance(command, Stop) and ("Start", worker.id) not in self._given:
                await self.log_writer.record(WorkerEnded(record.id, worker.id, VANISHED, UNKNOWN))
                self._given.discard(key)
            else:
                self._repeat(record, key)
        except Exception:  # whatever it is: a worker must not be left without its command
            log.exception("%s of worker %s failed; it is tried again", key[0], worker.id)
            self._repeat(record, key)

    def _repeat(self, record: JobRecord, key: tuple[str, str]) -> None:
        """Have the job asked again soon, which gives the command again if it is still wanted."""
        self._given.discard(key)
        self.again(record.id)

    def stop_strays(self, strays: Iterable[tuple[WorkerState, float]]) -> None:
        """Stop workers that no job wants, each within so many seconds."""
        for stray, grace_s in strays:
            key = ("Stop", stray.id)
            if key not in self._given:
                self._given.add(key)
                log.warning(
                    "worker %s of node %s is not wanted: it has %g s to end", stray.id, stray.node, grace_s
                )
                self._beside(self._stop(stray, grace_s, key))

    async def _stop(self, worker: WorkerState, grace_s: float, key: tuple[str, str]) -> None:
        try:
            await self._commanded(lambda: self.backend.stop(worker.id, grace_s))
        except LeadLost:
            return
        except (BackendUnreachable, NoSuchWorker):
            self._given.discard(key)
        except Exception:
            log.exception("stop of worker %s failed; it is tried again", worker.id)
            self._given.discard(key)

    def forget_ended(self, workers: Sequence[WorkerState]) -> None:
        """Workers whose end is in the log need no longer be listed. No node waits for another's answer."""
        state = self.log_writer.state
        for listed in workers:
            record = state.jobs.get(listed.id.split(".")[0])
            worker = record.workers.get(listed.id) if record is not None else None
            if listed.phase == "ended" and (worker is None or worker.life is WorkerPhase.ENDED):
                self._ended.setdefault(listed.node, {})[listed.id] = None
        for node, names in self._ended.items():
            if ("Forget", node) not in self._given:
                self._given.add(("Forget", node))
                self._beside(self._forget(node, names))

    async def _forget(self, node: str, names: dict[str, None]) -> None:
        """Have a node forget these, one after the other; those that it cannot are asked for again later.

        One that cannot be forgotten holds up no other.
        """
        name = ""
        try:
            while names:
                name = next(iter(names))
                with contextlib.suppress(NoSuchWorker):
                    await self._commanded(partial(self.backend.forget, name))
                del names[name]
                self.seen.unsee(name)
                self._given -= {("Start", name), ("Stop", name)}
        except (BackendUnreachable, LeadLost):
            names[name] = names.pop(name, None)  # last in line
        finally:
            self._given.discard(("Forget", node))
            if not names:
                self._ended.pop(node, None)

    async def _commanded(self, give: Callable[[], Awaitable[Given]]) -> Given:
        """What a command gives. Raises LeadLost where another service leads, before anything is done."""
        if self.leadership is None:
            return await give()
        return await self.leadership.command(give)

    def _beside(self, story: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the loops."""
        task = asyncio.create_task(story)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


# ── from the log to the backend and back: which jobs are to be looked at, and what both sides hold ──────────


DEAD_AFTER_S = 300.0  # chosen: longer than most machines take to restart
SILENCE_CHECK_S = 1.0  # the longest between two looks at nodes that are silent; chosen
LENDERS = "lender:"  # before the name of a node that is in the hands of its lender
_CHANGES_HANDS = (NodesHandedOver, NodeSeen)
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
    divide: Divide = as_script_says  # the batch of workers where no decision has chosen it
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
        self._note_hands()
        self.log_writer.listeners.append(self._heard)

    def _heard(self, told: Sequence[tuple[int, Event]]) -> None:
        state = self.log_writer.state
        self.dirty.update(record.id for record in state.changed_since(self._heard_seq))
        self._heard_seq = state.seq
        if any(isinstance(event, _CHANGES_HANDS) for _, event in told):
            self._note_hands()
        self._changed.set()

    def _note_hands(self) -> None:
        """GPUs of nodes in the hands of a lender are held by it: no worker starts there."""
        for index, node in enumerate(self.log_writer.state.nodes):
            whole = [(index, (1 << node.gpus) - 1)] if node.in_hands_of else []
            if whole or LENDERS + node.name in self._occupied.of:
                self._occupied.put(LENDERS + node.name, whole)
        self._let_go()

    @property
    def sees_empty_cluster(self) -> bool:
        """Whether the backend answers, and shows that its cluster has no node with GPUs now."""
        return self._has_listed and not any(node.gpus for node in self._nodes or ())

    def occupied_nodes(self) -> set[int]:
        """Nodes on which processes of ours may be left, by the log or as the backend shows it."""
        nodes = range(len(self.log_writer.state.nodes))
        if not self._has_listed:
            return set(nodes)
        by_log = {worker.node for record in self.log_writer.state.open_jobs() for worker in record.alive}
        seen = {node for node in nodes if any(HOLDER in name for name in self._occupied.on.get(node, ()))}
        return by_log | seen

    def ending_gpus(self) -> dict[int, int]:
        """By node, as a mask, GPUs that no job is to hold and on which workers have not ended yet."""
        used, placement = self._used_masks(), self.log_writer.state.placement
        if placement is None:
            return used
        busy = placement.busy.tolist()
        left = {node: mask & ~busy[node] for node, mask in used.items()}
        return {node: mask for node, mask in left.items() if mask}

    def _used_masks(self) -> dict[int, int]:
        """By node, the GPUs of workers as the backend shows them; before it has, those of the log."""
        if self._has_listed:
            return self._occupied.seen()
        masks: dict[int, int] = {}
        for record in self.log_writer.state.open_jobs():
            for node, mask in _slots(record):
                masks[node] = masks.get(node, 0) | mask
        return masks

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
            for node in self.log_writer.state.node_facts.silent
            if not isnan(node.silent_s)
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
            steps = next_steps(state, record, self._occupied, now_s, self.divide)
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
        slots, errors = _slots(record), self.dispatcher.start_errors
        self._occupied.put(record.id, slots)
        if record.id in errors and not any(worker.life is WorkerPhase.WANTED for worker in record.alive):
            del errors[record.id]
        if not record.has_ended and not set(slots).issuperset(wanted_slots(self.log_writer.state, record)):
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
