"""From the log to the backend and back: steps are taken, and what the backend shows is written down."""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

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
from stretto.live.reconcile import Command, Slot, Start, Stop, next_steps, slots_of
from stretto.live.records import JobRecord, Life, NodeRecord
from stretto.live.state import State

DEAD_AFTER_S = 300.0  # chosen: longer than most machines take to restart
BURIAL_CHECK_S = 1.0  # the longest between two looks at who has been silent for too long; chosen
AGAIN_S = 1.0  # before a command is repeated that the backend did not take; chosen
REFUSED = (
    126  # the status recorded of a worker that a node refused to start, as a shell says "cannot execute"
)
VANISHED, UNKNOWN = 137, "its node does not know it"  # of one that is not there any more
_SEEN = "seen:"  # before the id of a worker, as a holder of GPUs

log = logging.getLogger(__name__)


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
    _later: list[tuple[float, str]] = field(default_factory=list)  # (time, job) to look at again, a heap
    _planned: set[tuple[float, str]] = field(default_factory=set)  # what is in it
    _given: set[tuple[str, str]] = field(default_factory=set)  # commands under way, or taken
    _ended: dict[str, dict[str, None]] = field(default_factory=dict)  # by node, workers that it may forget
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _occupied: Occupied = field(default_factory=Occupied)
    _waiting: set[str] = field(default_factory=set)  # jobs that are to start or grow once GPUs are free
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
            due = heapq.heappop(self._later)
            self._planned.discard(due)
            state.touched.add(due[1])
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
                self._ask_again(steps.again_s, name)
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
        wanted = slots_of(self.ledger.state.wanted(record.id), record.job.gpus_per_worker)
        if not record.has_ended and not {(one.node, one.mask) for one in record.alive}.issuperset(wanted):
            self._waiting.add(record.id)
        else:
            self._waiting.discard(record.id)

    def _give(self, record: JobRecord, command: Command) -> None:
        """Carry out a command beside the loop, unless the same one is under way."""
        key = (type(command).__name__, command.worker.id)
        if key in self._given or (isinstance(command, Start) and command.worker.id in self.seen):
            return
        self._given.add(key)
        self._beside(self._carry_out(record, command, key))

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
            self._repeat(record, key)
        except StartRefused as refused:
            await self.ledger.record(WorkerEnded(record.id, worker.id, REFUSED, str(refused)))
        except NoSuchWorker:
            # Its start was recorded and never reached the node, or the node has lost it: it does not run.
            if isinstance(command, Stop) and ("Start", worker.id) not in self._given:
                await self.ledger.record(WorkerEnded(record.id, worker.id, VANISHED, UNKNOWN))
            else:
                self._repeat(record, key)
        except Exception:  # whatever it is: a worker must not be left without its command
            log.exception("%s of worker %s failed; it is tried again", key[0], worker.id)
            self._repeat(record, key)

    def _repeat(self, record: JobRecord, key: tuple[str, str]) -> None:
        """Ask a job again soon, and so give a command again that was not taken, if it is still wanted."""
        self._given.discard(key)
        self._ask_again(self.clock.now_s() + AGAIN_S, record.id)
        self._changed.set()

    def _ask_again(self, at_s: float, job: str) -> None:
        """Look at a job again at a time; whoever waits says the same time over and over."""
        if (at_s, job) not in self._planned:
            self._planned.add((at_s, job))
            heapq.heappush(self._later, (at_s, job))

    def _beside(self, story: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the loops."""
        task = asyncio.create_task(story)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            known = set(self.seen)
            shown = await self.backend.workers()
            gone = known - {one.id for one in shown}
            for name in gone:
                self._unsee(name)
            if gone or events or not self._looked:
                events += self._about_vanished(nodes, {one.id for one in shown}, gone)
        self._looked = True
        for one in shown:
            self._see(one)
        events += self._about_workers(shown)
        if events:
            await self.ledger.record(*events)
        self._forget_ended(shown)

    def _see(self, one: WorkerState) -> None:
        """Note what a worker was shown to be."""
        self.seen[one.id] = one
        node = self.ledger.state.node_index.get(one.node)
        held = sum(1 << gpu for gpu in one.gpus) if one.holds_gpus and node is not None else 0
        self._show(one.id, [(node, held)] if node is not None and held else [])

    def _unsee(self, name: str) -> None:
        self.seen.pop(name, None)
        self._show(name, [])

    def _show(self, name: str, slots: list[Slot]) -> None:
        """What a worker holds. Where a stray lets go, nothing of the log says that others may begin."""
        had = self._occupied.of.get(_SEEN + name)
        self._occupied.put(_SEEN + name, slots)
        if had and not slots and self._waiting:
            self.ledger.state.touched |= self._waiting
            self._changed.set()

    def _about_nodes(self, nodes: Sequence[NodeState]) -> list[Event]:
        state = self.ledger.state
        events: list[Event] = []
        for node in nodes:
            index = state.node_index.get(node.name)
            known = None if index is None else state.nodes[index]
            if node.up and (known is None or _has_changed(known, node)):
                events.append(
                    NodeSeen(
                        node.name,
                        node.gpu_type,
                        node.gpus,
                        node.cpus,
                        node.memory_gb,
                        node.address,
                        node.shut,
                        node.others,
                    )
                )
            elif not node.up and known is not None:
                if known.up:
                    events.append(NodeLost(node.name, node.why))
                if node.dead and not known.dead:
                    events.append(NodeDead(node.name, 0.0))
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
                status = VANISHED if one.status is None else one.status
                said = {"id": worker.id, "status": status, **({"why": one.why} if one.why else {})}
                ended.setdefault(worker.job, []).append(said)
        return [
            *(WorkersRan(job, tuple(workers)) for job, workers in ran.items()),
            *(WorkersEnded(job, tuple(workers)) for job, workers in ended.items()),
        ]

    def _about_vanished(
        self, nodes: Sequence[NodeState], there: set[str], gone: set[str]
    ) -> list[WorkersEnded]:
        """Workers of nodes that answer and do not know them any more: they will not say how they ended.

        there: whom the backend shows; gone: whom it showed before and does not now. Of a start that was never
        carried out nothing is concluded: it may be under way.
        """
        state, up = self.ledger.state, {node.name for node in nodes if node.up}
        events = []
        for record in state.open_jobs():
            lost = [
                worker.id
                for worker in record.alive
                if worker.id not in there
                and (worker.life is not Life.WANTED or worker.id in gone)
                and state.nodes[worker.node].name in up
            ]
            if lost:
                said = tuple({"id": name, "status": VANISHED, "why": UNKNOWN} for name in lost)
                events.append(WorkersEnded(record.id, said))
        return events

    def _stop(self, one: WorkerState, grace_s: float) -> None:
        """What nobody wants must not go on holding GPUs.

        That is a worker that the log knows nothing of, or counts as ended, and what a worker's command
        started and left behind when it ended.
        """
        key = ("Stop", one.id)
        if key in self._given:
            return
        self._given.add(key)

        async def stop() -> None:
            try:
                await self.backend.stop(one.id, grace_s)
            except (BackendUnreachable, NoSuchWorker):
                self._given.discard(key)
            except Exception:
                log.exception("stop of worker %s failed; it is tried again", one.id)
                self._given.discard(key)

        self._beside(stop())

    def _forget_ended(self, shown: Sequence[WorkerState]) -> None:
        """Workers whose end is in the log need no longer be listed. No node waits for another's answer."""
        state = self.ledger.state
        for one in shown:
            record = state.jobs.get(one.id.split(".")[0])
            worker = record.workers.get(one.id) if record is not None else None
            if one.phase == "ended" and (worker is None or worker.life is Life.ENDED):
                self._ended.setdefault(one.node, {})[one.id] = None
        for node, names in self._ended.items():
            if names and ("Forget", node) not in self._given:
                self._given.add(("Forget", node))
                self._beside(self._forget(node, names))

    async def _forget(self, node: str, names: dict[str, None]) -> None:
        """Have a node forget these, one after the other; a node that does not answer is asked again later."""
        try:
            while names:
                name = next(iter(names))
                with contextlib.suppress(NoSuchWorker):
                    await self.backend.forget(name)
                del names[name]
                self._unsee(name)
                self._given -= {("Start", name), ("Stop", name)}
        except BackendUnreachable:
            pass
        finally:
            self._given.discard(("Forget", node))


def _has_changed(known: NodeRecord, node: NodeState) -> bool:
    """Whether a node that answers is not what the log says of it."""
    if node.gpu_type == known.gpu_type and node.gpus >= known.gpus:
        return not known.up or (node.shut, node.others) != (known.shut, known.others)
    return known.other != (node.gpus, node.gpu_type)


def _slots(record: JobRecord) -> list[tuple[int, int]]:
    """(node, mask) of workers of which processes may exist."""
    if record.has_ended:
        return []
    return [(worker.node, worker.mask) for worker in record.workers.values() if worker.life is not Life.ENDED]


def _wanted_slots(state: State, event: WorkersWanted) -> list[tuple[int, int]]:
    return [(state.node_index[one["node"]], int(one["mask"])) for one in event.workers]
