"""From the log to the backend and back: steps are taken, and what the backend shows is written down."""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from stretto.live.backends.protocol import (
    Backend,
    BackendUnreachable,
    NodeState,
    NoSuchWorker,
    StartRefused,
    TellsChanges,
    WorkerState,
)
from stretto.live.clock import Clock
from stretto.live.environment import Secrets, start_of
from stretto.live.events import (
    Event,
    NodeDead,
    NodeLost,
    NodeSeen,
    WorkerEnded,
    WorkersEnded,
    WorkersRan,
    WorkersWanted,
)
from stretto.live.ledger import Ledger
from stretto.live.occupied import Occupied
from stretto.live.reconcile import Command, Start, Stop, next_steps
from stretto.live.records import JobRecord, Life, NodeRecord
from stretto.live.state import State

DEAD_AFTER_S = 300.0  # chosen: longer than most machines take to restart
BURIAL_CHECK_S = 1.0  # the longest between two looks at who has been silent for too long; chosen
AGAIN_S = 1.0  # before a command is repeated that the backend did not take; chosen
REFUSED = (
    126  # the status recorded of a worker that a node refused to start, as a shell says "cannot execute"
)
VANISHED = 137  # of one that its node does not know any more
_SEEN = "seen:"  # before the id of a worker, as a holder of GPUs


@dataclass
class Driver:
    """Reconciles every job that changed, and follows the backend."""

    ledger: Ledger
    backend: Backend
    clock: Clock
    secrets: Secrets
    dead_after_s: float = DEAD_AFTER_S  # of silence; 0: never
    seen: dict[str, WorkerState] = field(default_factory=dict)  # as the backend last showed them
    troubles: dict[str, str] = field(default_factory=dict)  # job → why a start is still being tried
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _later: list[tuple[float, str]] = field(default_factory=list)  # (time, job) to look at again
    _given: dict[tuple[str, str], float] = field(default_factory=dict)  # commands under way, or taken
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _occupied: Occupied = field(default_factory=Occupied)
    _waiting: set[str] = field(default_factory=set)  # jobs that are to start once their GPUs are free
    _nodes: Sequence[NodeState] | None = None  # as last shown
    _looked: bool = False
    _began_s: float = field(init=False)  # nobody is silent for longer than we listen

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self._began_s = self.clock.now_s()
        self.ledger.listeners.append(self._heard)

    def _heard(self, told: Sequence[tuple[int, Event]]) -> None:
        self._changed.set()

    # ── from the log to the backend ───────────────────────────────────────────────────────────────

    async def reconcile_for_ever(self) -> None:
        """Take steps for every job that changed, or whose time has come, until cancelled."""
        self.ledger.state.touched.update(record.id for record in self.ledger.state.open_jobs())
        while True:
            self._changed.clear()
            await self.reconcile_once()
            wait_s = self.clock.wall_s(self._later[0][0] - self.clock.now_s()) if self._later else None
            try:
                async with asyncio.timeout(None if wait_s is None else max(wait_s, 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def reconcile_once(self) -> None:
        """Ask every job that changed: record what follows of all, then carry out what was recorded."""
        state = self.ledger.state
        now_s = self.clock.now_s()
        while self._later and self._later[0][0] <= now_s:
            state.touched.add(heapq.heappop(self._later)[1])
        touched = state.take_touched()
        if not touched:
            return
        for name in touched:
            self._note(state.jobs[name])
        events: list[Event] = []
        commands: list[tuple[JobRecord, Command]] = []
        # Who waits for GPUs is asked whenever anybody changes: it may be that those have become free.
        for name in sorted(touched | self._waiting, key=lambda one: state.jobs[one].number):
            record = state.jobs[name]
            steps = next_steps(state, record, self._occupied, now_s)
            events += steps.events
            commands += [(record, command) for command in steps.commands]
            if steps.again_s < float("inf"):
                heapq.heappush(self._later, (steps.again_s, name))
            for event in steps.events:
                if isinstance(event, WorkersWanted):
                    self._occupied.put(name, [*_slots(record), *_wanted_slots(state, event)])
        if events:
            await self.ledger.record(*events)
        for record, command in commands:
            self._give(record, command)

    def _note(self, record: JobRecord) -> None:
        """What a job that changed holds, and whether it waits for GPUs to be free."""
        self._occupied.put(record.id, _slots(record))
        if not any(worker.life is Life.WANTED for worker in record.alive):
            self.troubles.pop(record.id, None)
        if not record.has_ended and not record.is_open and self.ledger.state.wanted(record.id) is not None:
            self._waiting.add(record.id)
        else:
            self._waiting.discard(record.id)

    def _give(self, record: JobRecord, command: Command) -> None:
        """Carry out a command beside the loop, unless the same one is under way."""
        key = (type(command).__name__, command.worker.id)
        if key in self._given or (isinstance(command, Start) and command.worker.id in self.seen):
            return
        self._given[key] = self.clock.now_s()
        task = asyncio.create_task(self._carry_out(record, command, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, record: JobRecord, command: Command, key: tuple[str, str]) -> None:
        worker = command.worker
        try:
            if isinstance(command, Start):
                start = start_of(self.ledger.state, record, worker, self.secrets)
                self._see(await self.backend.start(start))
                self.troubles.pop(record.id, None)
            else:
                await self.backend.stop(worker.id, command.grace_s)
        except BackendUnreachable as trouble:
            if isinstance(command, Start):
                self.troubles[record.id] = str(trouble)
            self._given.pop(key, None)
            heapq.heappush(self._later, (self.clock.now_s() + AGAIN_S, record.id))
            self._changed.set()
        except StartRefused as refused:
            await self.ledger.record(WorkerEnded(record.id, worker.id, REFUSED, str(refused)))
        except NoSuchWorker:
            # Its start was recorded and never reached the node, or the node has lost it: it does not run.
            if isinstance(command, Stop) and ("Start", worker.id) not in self._given:
                await self.ledger.record(
                    WorkerEnded(record.id, worker.id, VANISHED, "its node does not know it")
                )
            else:
                self._given.pop(key, None)
                heapq.heappush(self._later, (self.clock.now_s() + AGAIN_S, record.id))
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
        nodes = await self.backend.nodes()
        events = [] if nodes is self._nodes else self._about_nodes(nodes)
        self._nodes = nodes
        if self._looked and isinstance(self.backend, TellsChanges):
            shown = await self.backend.changed_workers()
        else:
            shown = await self.backend.workers()
            there = {one.id for one in shown}
            for name in [name for name in self.seen if name not in there]:
                self._unsee(name)
        self._looked = True
        for one in shown:
            self._see(one)
        events += self._about_workers(shown)
        if events:
            await self.ledger.record(*events)
        await self._forget_ended(shown)

    def _see(self, one: WorkerState) -> None:
        """Note what a worker was shown to be."""
        self.seen[one.id] = one
        node = self.ledger.state.node_index.get(one.node)
        held = sum(1 << gpu for gpu in one.gpus) if one.holds_gpus and node is not None else 0
        self._occupied.put(_SEEN + one.id, [(node, held)] if node is not None and held else [])

    def _unsee(self, name: str) -> None:
        self.seen.pop(name, None)
        self._occupied.put(_SEEN + name, [])

    def _about_nodes(self, nodes: Sequence[NodeState]) -> list[Event]:
        state = self.ledger.state
        events: list[Event] = []
        for node in nodes:
            index = state.node_index.get(node.name)
            known = None if index is None else state.nodes[index]
            if node.up and (known is None or _has_changed(known, node)):
                events.append(
                    NodeSeen(node.name, node.gpu_type, node.gpus, node.cpus, node.memory_gb, node.address)
                )
            elif not node.up and known is not None and known.up:
                events.append(NodeLost(node.name, node.why))
        return events

    async def bury_for_ever(self) -> None:
        """Stop waiting for nodes that have been silent for too long, until cancelled."""
        while self.dead_after_s > 0:
            now_s = self.clock.now_s()
            silent = [
                (node.name, now_s - max(node.silent_s, self._began_s))
                for node in self.ledger.state.nodes
                if not node.up and not node.dead and not isnan(node.silent_s)
            ]
            dead = [NodeDead(name, round(for_s, 3)) for name, for_s in silent if for_s >= self.dead_after_s]
            if dead:
                await self.ledger.record(*dead)
            await asyncio.sleep(self.clock.wall_s(min(BURIAL_CHECK_S, self.dead_after_s / 4)))

    def _about_workers(self, shown: Sequence[WorkerState]) -> list[Event]:
        state = self.ledger.state
        ran: dict[str, list[str]] = {}
        ended: dict[str, list[dict[str, object]]] = {}
        for one in shown:
            record = state.jobs.get(one.id.split(".")[0])
            worker = record.workers.get(one.id) if record is not None else None
            if worker is None or worker.life is Life.ENDED:
                if one.holds_gpus and one.phase == "running":
                    self._stop(one, 0.0)
                continue
            if one.phase == "running" and one.status is not None and record is not None:
                self._stop(one, record.spec.grace_period_s)
            if one.phase == "running" and worker.began_s != worker.began_s:
                ran.setdefault(worker.job, []).append(worker.id)
            elif one.phase == "ended":
                status = 0 if one.status is None else one.status
                said = {"id": worker.id, "status": status, **({"why": one.why} if one.why else {})}
                ended.setdefault(worker.job, []).append(said)
        return [
            *(WorkersRan(job, tuple(workers)) for job, workers in ran.items()),
            *(WorkersEnded(job, tuple(workers)) for job, workers in ended.items()),
        ]

    def _stop(self, one: WorkerState, grace_s: float) -> None:
        """What nobody wants must not go on holding GPUs.

        That is a worker that the log knows nothing of, or counts as ended, and what a worker's command
        started and left behind when it ended.
        """
        key = ("Stop", one.id)
        if key in self._given:
            return
        self._given[key] = self.clock.now_s()

        async def stop() -> None:
            try:
                await self.backend.stop(one.id, grace_s)
            except (BackendUnreachable, NoSuchWorker):
                self._given.pop(key, None)

        task = asyncio.create_task(stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget_ended(self, shown: Sequence[WorkerState]) -> None:
        """Workers whose end is in the log need no longer be listed."""
        state = self.ledger.state
        for one in shown:
            record = state.jobs.get(one.id.split(".")[0])
            worker = record.workers.get(one.id) if record is not None else None
            if one.phase == "ended" and (worker is None or worker.life is Life.ENDED):
                try:
                    await self.backend.forget(one.id)
                except (BackendUnreachable, NoSuchWorker):
                    continue
                self._unsee(one.id)
                for kind in ("Start", "Stop"):
                    self._given.pop((kind, one.id), None)


def _has_changed(known: NodeRecord, node: NodeState) -> bool:
    """Whether a node that answers is not what the log says of it."""
    if node.gpu_type == known.gpu_type and node.gpus >= known.gpus:
        return not known.up
    return known.other != (node.gpus, node.gpu_type)


def _slots(record: JobRecord) -> list[tuple[int, int]]:
    """(node, mask) of workers of which processes may exist."""
    if record.has_ended:
        return []
    return [(worker.node, worker.mask) for worker in record.workers.values() if worker.life is not Life.ENDED]


def _wanted_slots(state: State, event: WorkersWanted) -> list[tuple[int, int]]:
    return [(state.node_index[one["node"]], int(one["mask"])) for one in event.workers]
