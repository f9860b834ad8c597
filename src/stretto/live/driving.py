"""From the log to the backend and back: steps are taken, and what the backend shows is written down."""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.live.backends.protocol import (
    Backend,
    BackendUnreachable,
    NodeState,
    NoSuchWorker,
    StartRefused,
    WorkerState,
)
from stretto.live.clock import Clock
from stretto.live.environment import Secrets, start_of
from stretto.live.events import Event, NodeLost, NodeSeen, WorkerEnded, WorkersRan
from stretto.live.ledger import Ledger
from stretto.live.reconcile import Command, Start, Steps, Stop, next_steps
from stretto.live.records import JobRecord, Life

AGAIN_S = 1.0  # before a command is repeated that the backend did not take; chosen
REFUSED = (
    126  # the status recorded of a worker that a node refused to start, as a shell says "cannot execute"
)
VANISHED = 137  # of one that its node does not know any more


@dataclass
class Driver:
    """Reconciles every job that changed, and follows the backend."""

    ledger: Ledger
    backend: Backend
    clock: Clock
    secrets: Secrets
    seen: dict[str, WorkerState] = field(default_factory=dict)  # as the backend last showed them
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _later: list[tuple[float, str]] = field(default_factory=list)  # (time, job) to look at again
    _given: dict[tuple[str, str], float] = field(default_factory=dict)  # commands under way, or taken
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Listen to what happens."""
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
        """Until no job is left that changed: record what follows, then carry out what was recorded."""
        state = self.ledger.state
        now_s = self.clock.now_s()
        while self._later and self._later[0][0] <= now_s:
            state.touched.add(heapq.heappop(self._later)[1])
        touched = state.take_touched()
        if not touched:
            return
        waiting = {
            record.id for record in state.open_jobs() if not record.is_open and state.wanted(record.id)
        }
        taken = self._taken()
        # Who waits for GPUs is asked whenever anybody changes: it may be that those have become free.
        for name in sorted(touched | waiting, key=lambda one: state.jobs[one].number):
            steps = next_steps(state, state.jobs[name], taken, self.clock.now_s())
            await self._take(state.jobs[name], steps)
            if steps.events:
                taken = self._taken()

    async def _take(self, record: JobRecord, steps: Steps) -> None:
        if steps.events:
            await self.ledger.record(*steps.events)
        if steps.again_s < float("inf"):
            heapq.heappush(self._later, (steps.again_s, record.id))
        for command in steps.commands:
            self._give(record, command)

    def _taken(self) -> set[tuple[int, int]]:
        """(node, GPU) that somebody holds: by the log, or as the backend shows."""
        state = self.ledger.state
        taken = {
            (worker.node, gpu)
            for record in state.open_jobs()
            for worker in record.workers.values()
            if worker.life is not Life.ENDED
            for gpu in worker.gpus
        }
        for one in self.seen.values():
            if one.holds_gpus and one.node in state.node_index:
                taken.update((state.node_index[one.node], gpu) for gpu in one.gpus)
        return taken

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
                self.seen[worker.id] = await self.backend.start(start)
            else:
                await self.backend.stop(worker.id, command.grace_s)
        except BackendUnreachable:
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

    # ── from the backend to the log ───────────────────────────────────────────────────────────────

    async def follow_for_ever(self) -> None:
        """Write down what the backend shows, until cancelled."""
        number = 0
        while True:
            await self.look()
            number = await self.backend.changes(number)

    async def look(self) -> None:
        """Compare what the backend shows now with the log; write the difference."""
        events = self._about_nodes(await self.backend.nodes())
        self.seen = {one.id: one for one in await self.backend.workers()}
        events += self._about_workers()
        if events:
            await self.ledger.record(*events)
        await self._forget_ended()

    def _about_nodes(self, nodes: Sequence[NodeState]) -> list[Event]:
        state = self.ledger.state
        events: list[Event] = []
        for node in nodes:
            index = state.node_index.get(node.name)
            known = None if index is None else state.nodes[index]
            if node.up and (known is None or not known.up):
                events.append(
                    NodeSeen(node.name, node.gpu_type, node.gpus, node.cpus, node.memory_gb, node.address)
                )
            elif not node.up and known is not None and known.up:
                events.append(NodeLost(node.name, node.why))
        return events

    def _about_workers(self) -> list[Event]:
        state = self.ledger.state
        ran: dict[str, list[str]] = {}
        ended: list[Event] = []
        for one in self.seen.values():
            record = state.jobs.get(one.id.split(".")[0])
            worker = record.workers.get(one.id) if record is not None else None
            if worker is None or worker.life is Life.ENDED:
                if one.holds_gpus and one.phase == "running" and one.status is None:
                    self._stop_stray(one)
                continue
            if one.phase == "running" and worker.life is Life.WANTED:
                ran.setdefault(worker.job, []).append(worker.id)
            elif one.phase == "ended":
                status = 0 if one.status is None else one.status
                ended.append(WorkerEnded(worker.job, worker.id, status, one.why))
        return [*(WorkersRan(job, tuple(workers)) for job, workers in ran.items()), *ended]

    def _stop_stray(self, one: WorkerState) -> None:
        """A worker that the log knows nothing of, or counts as ended, must not go on."""
        key = ("Stop", one.id)
        if key in self._given:
            return
        self._given[key] = self.clock.now_s()

        async def stop() -> None:
            try:
                await self.backend.stop(one.id, 0.0)
            except (BackendUnreachable, NoSuchWorker):
                self._given.pop(key, None)

        task = asyncio.create_task(stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget_ended(self) -> None:
        """Workers whose end is in the log need no longer be listed."""
        state = self.ledger.state
        for one in list(self.seen.values()):
            record = state.jobs.get(one.id.split(".")[0])
            worker = record.workers.get(one.id) if record is not None else None
            if one.phase == "ended" and (worker is None or worker.life is Life.ENDED):
                try:
                    await self.backend.forget(one.id)
                except (BackendUnreachable, NoSuchWorker):
                    continue
                self.seen.pop(one.id, None)
                for kind in ("Start", "Stop"):
                    self._given.pop((kind, one.id), None)
