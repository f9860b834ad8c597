"""Thousands of GPUs in one process: a backend whose workers are values, in time as fast as the clock.

It plays two parts. To the service it is a `Backend` like any other. And as the SDK of its workers would over
their channel, it records that they are ready, have joined, what they report, and their checkpoints.

Nothing of it is kept anywhere. What it needs after a restart of the service follows from the log. Every
change of what a job trains on leaves a report, and between two reports its speed is known.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, isnan
from typing import Any, ClassVar

from stretto.backends.protocol import (
    LogPiece,
    LongPoll,
    NodeState,
    NoSuchWorker,
    NotNow,
    StartRefused,
    WorkerStart,
    WorkerState,
)
from stretto.model import Cluster, InputError, Node, View
from stretto.policies.registry import load_policy
from stretto.service.emulated.truth import SAVING, EmulatedJob, EmulatedWorker, Granted, Truths, seconds_of
from stretto.service.eventlog.archive import Archive
from stretto.service.eventlog.writer import LogWriter
from stretto.service.state.events import (
    ArraySubmitted,
    Checkpointed,
    Ended,
    Event,
    Generation,
    Reported,
    Requeued,
    Submitted,
    TypesSeen,
    WorkersJoined,
    WorkersReady,
)
from stretto.service.state.records import LEVELS, JobRecord, WorkerPhase
from stretto.sim.settings import SimSettings
from stretto.sim.truth.profiles import ProfileLibrary

TERMINATED, KILLED, WRONG = 143, 137, 2  # statuses: 128 + SIGTERM, 128 + SIGKILL, and of a job that cannot be
FIRST_STEPS_S = 1.0  # from the first step to the first report; chosen
REPORT_S, LEAST_WALL_S = 30.0, 1.0  # between reports: as the SDK, and no more than a real cluster would send
LOG_LOOK_S = 0.25  # between looks for more of a log; chosen
TOGETHER_S = 1.0  # workers that are started so soon after another are ready together; chosen


@dataclass
class EmulatedBackend:
    """Nodes of a cluster file, and workers that follow `Truths`."""

    hands_secrets: ClassVar[bool] = True  # to nobody: nothing runs

    cluster: Cluster
    log_writer: LogWriter
    settings: SimSettings = field(default_factory=SimSettings)
    profiles: ProfileLibrary | None = None
    jobs: dict[str, EmulatedJob] = field(default_factory=dict)
    _lenders: dict[str, str] = field(default_factory=dict)  # by node that is with one
    _truths: Truths | None = None
    _nodes: Sequence[NodeState] = ()
    _poll: LongPoll = field(default_factory=LongPoll)
    _changed: dict[str, WorkerState] = field(default_factory=dict)  # since they were last taken
    _agenda: list[tuple[float, int, str, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    _alarm: asyncio.Event = field(default_factory=asyncio.Event)
    _task: "asyncio.Task[None] | None" = None

    def open(self) -> "EmulatedBackend":
        """Take up what the log says that runs, and begin."""
        state = self.log_writer.state
        types = [
            {
                "name": gpu_type.name,
                "memory_gb": gpu_type.memory_gb,
                "speed": gpu_type.speed,
                "aliases": list(gpu_type.aliases),
                "max_nodes_per_job": gpu_type.max_nodes_per_job,
                "stand_ins": gpu_type.stand_ins,
            }
            for gpu_type in self.cluster.types
        ]
        if any(state.types.get(gpu_type.name) != gpu_type for gpu_type in self.cluster.types):
            self.log_writer.record(TypesSeen(tuple(types)))
        for record in state.open_jobs():
            if record.is_open and record.alive:
                self._adopt(record)
        self._nodes = [
            NodeState(
                str(node.id),
                node.gpu_type,
                node.gpus,
                node.cpus,
                node.memory_gb,
                **_topology_of(self.cluster, node),
            )
            for node in self.cluster.nodes
        ]
        self._lenders = {node.name: node.in_hands_of for node in state.nodes if node.in_hands_of}
        self.log_writer.listeners.append(self._heard)
        self._task = asyncio.create_task(self._live())
        return self

    # ── Backend ───────────────────────────────────────────────────────────────────────────────────

    async def nodes(self) -> Sequence[NodeState]:
        """Every node of the file, always up."""
        return self._nodes

    async def workers(self) -> Sequence[WorkerState]:
        """Every worker that is not forgotten."""
        return [worker.shown() for job in self.jobs.values() for worker in job.workers.values()]

    async def changed_workers(self) -> Sequence[WorkerState]:
        """Those that differ from what was shown when this was last asked."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    async def changes(self, after: int, wait_s: float = 20.0) -> int:
        """The newest number, once it is not `after` any more or `wait_s` is over."""
        version = await self._poll.wait(after, wait_s)
        if self._task is not None and self._task.done():
            self._task.result()  # time stands still: every waiting caller is told why
        return version

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Start a worker unless it was started before."""
        record = self.log_writer.state.jobs.get(worker.job)
        recorded = record.workers.get(worker.id) if record is not None else None
        if record is None or recorded is None:
            raise StartRefused(f"worker {worker.id}: no such job or worker was submitted")
        try:
            job = self.job_of(record)
        except InputError as wrong:
            raise StartRefused(f"worker {worker.id}: {wrong}") from None
        if worker.id in job.workers:
            return job.workers[worker.id].shown()
        if lender := self._lenders.get(worker.node):
            raise NotNow(f"worker {worker.id}: node {worker.node} is with its lender {lender}")
        now_s = self._now_s()
        peers = int(worker.env.get("WORLD_SIZE", 1))
        emulated = EmulatedWorker(
            worker.id,
            worker.job,
            recorded.attempt,
            worker.node,
            recorded.node,
            recorded.kind,
            worker.gpus,
            peers,
            worker.grace_s,
            started_s=now_s,
        )
        job.workers[worker.id] = emulated
        self._show(emulated)
        self._started(job, emulated, now_s)
        return emulated.shown()

    async def hand_over(self, nodes: Sequence[str], to: str | None) -> None:
        """Nodes of a lender take no worker until they are back; raises NotNow while one lives there."""
        for job in self.jobs.values():
            for worker in job.alive():
                if to and worker.node in nodes:
                    raise NotNow(f"node {worker.node} cannot go to {to}: {worker.id} still runs there")
        for name in nodes:
            self._lenders.pop(name, None)
            if to:
                self._lenders[name] = to

    async def stop(self, worker_id: str, grace_s: float) -> None:
        """Saves what it has done and ends; at the latest after the grace."""
        job, worker = self._find(worker_id)
        if not worker.lives:
            return
        now_s = self._now_s()
        first = not worker.stopped
        worker.stopped = True
        if worker_id in job.training:
            self._part(job, now_s, saves=job.saving_s <= grace_s)
        if not worker.lives:  # its training has just come to its end
            return
        if job.saving_s <= 0.0:
            self._end(worker, TERMINATED, now_s)
        elif first or grace_s < job.saving_s:
            status = TERMINATED if job.saving_s <= grace_s else KILLED
            self.do_at(
                now_s + min(job.saving_s, grace_s),
                job.id,
                lambda: self._end(worker, status, self._now_s()),
            )

    async def signal(self, worker_id: str, signal: int) -> None:
        """A signal that ends it; what its job has not saved is lost."""
        job, worker = self._find(worker_id)
        if not worker.lives or signal not in (9, 15):
            return
        if worker_id in job.training:
            self._part(job, self._now_s(), saves=signal == 15)
        self._end(worker, 128 + signal, self._now_s())

    async def log(
        self, worker_id: str, offset: int = 0, limit: int = 1 << 20, wait_s: float = 0.0
    ) -> LogPiece:
        """A few lines, made when they are asked for; waits for more while the worker lives."""
        end_s = time.monotonic() + wait_s
        while True:
            piece = await self._log(worker_id, offset, limit)
            left_s = end_s - time.monotonic()
            if piece.data or piece.complete or left_s <= 0:
                return piece
            await asyncio.sleep(min(left_s, LOG_LOOK_S))

    async def _log(self, worker_id: str, offset: int, limit: int) -> LogPiece:
        record = await Archive(self.log_writer.state, self.log_writer.store.ended).job(
            worker_id.split(".")[0]
        )
        if record is None:
            raise NoSuchWorker(f"no worker {worker_id}")
        job = self.jobs.get(record.id)
        worker = job.workers.get(worker_id) if job is not None else None
        latest = record.learned.latest
        lines = [f"emulated worker {worker_id}"]
        if job is not None and worker is not None:
            lines.append(f"{job.run.words} on GPUs {list(worker.gpus)} of {worker.node}")
        lines += [f"{key} {latest[key]:g}" for key in ("epoch", "step", "work_left_s") if key in latest]
        text = ("\n".join(lines) + "\n").encode()
        begin = max(len(text) + offset, 0) if offset < 0 else min(offset, len(text))
        data = text[begin : begin + limit]
        return LogPiece(data, begin, begin + len(data), worker is None or not worker.lives)

    async def forget(self, worker_id: str) -> None:
        """List an ended worker no more."""
        job = self.jobs.get(worker_id.split(".")[0])
        worker = job.workers.get(worker_id) if job is not None else None
        if job is None or worker is None or worker.lives:
            return
        del job.workers[worker_id]
        self._changed.pop(worker_id, None)
        self._drop_if_over(job.id)

    async def delete_logs(self, job: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Time stands still from here on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def _now_s(self) -> float:
        return self.log_writer.clock.now_s()

    def do_at(self, due_s: float, job: str, act: Callable[[], None]) -> None:
        """Do something at a time."""
        self._count += 1
        heapq.heappush(self._agenda, (due_s, self._count, job, act))
        if self._agenda[0][1] == self._count:
            self._alarm.set()

    @property
    def due_s(self) -> float:
        """When something happens next; infinity where nothing does by itself."""
        return self._agenda[0][0] if self._agenda else inf

    def catch_up(self) -> None:
        """Do everything whose time has come."""
        while self._agenda and self._agenda[0][0] <= self._now_s():
            heapq.heappop(self._agenda)[3]()

    async def _live(self) -> None:
        """Do everything at its time, until cancelled."""
        while True:
            self._alarm.clear()
            self.catch_up()
            wait_s = self.log_writer.clock.wall_s(self.due_s - self._now_s()) if self._agenda else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._alarm.wait()
            except TimeoutError:
                continue

    # ── lives of workers ──────────────────────────────────────────────────────────────────────────

    def _started(self, job: EmulatedJob, worker: EmulatedWorker, now_s: float) -> None:
        """Its start takes time; without in-place changes, it begins once all its peers are there."""
        alive = job.alive()
        if job.in_place:
            waiting = [peer.ready_s for peer in alive if peer.phase == "starting" and not isnan(peer.ready_s)]
            gpus = sum(len(peer.gpus) for peer in alive)
            ready_s = now_s + job.run.start_s(job.has_run, gpus)
            near = [other_s for other_s in waiting if abs(other_s - ready_s) <= TOGETHER_S]
            worker.ready_s = near[0] if near else ready_s
            if not near:
                self.do_at(ready_s, job.id, lambda: self._ready(job, ready_s))
            return
        peers = [peer for peer in alive if peer.attempt == worker.attempt]
        if len(peers) >= worker.peers:
            ready_s = now_s + job.run.start_s(job.has_run, sum(len(peer.gpus) for peer in peers))
            for peer in peers:
                peer.ready_s = ready_s
            if ready_s > now_s:
                self.do_at(ready_s, job.id, lambda: self._ready(job, ready_s))
            else:
                self._ready(job, ready_s)

    def _ready(self, job: EmulatedJob, ready_s: float) -> None:
        """The start of some workers is over."""
        ready = [peer for peer in job.alive() if peer.phase == "starting" and peer.ready_s <= ready_s]
        if not ready:
            return
        for peer in ready:
            peer.phase = "running"
            self._show(peer)
        names = tuple(peer.id for peer in ready)
        if job.in_place:
            self.log_writer.record(WorkersReady(job.id, names))
        elif not any(peer.stopped for peer in ready):
            self._train(job, names, ready_s, 0.0)

    def _train(self, job: EmulatedJob, names: tuple[str, ...], now_s: float, pause_s: float) -> None:
        """These and no others train together from now on."""
        try:
            job.run.give(job.granted_to(names), now_s, pause_s)
        except InputError as wrong:
            for name in names:
                self._end(job.workers[name], WRONG, now_s, str(wrong))
            return
        job.training, job.has_run, job.fresh = names, True, True
        self._look_at(now_s + pause_s + FIRST_STEPS_S if job.run.reports else inf, job)

    def _look_at(self, due_s: float, job: EmulatedJob) -> None:
        """Look at a job at a time, or when it next ends an epoch or itself, instead of what was planned."""
        job.stamp += 1
        stamp = job.stamp
        due_s = min(due_s, job.run.next_s())
        if isfinite(due_s):
            self.do_at(due_s, job.id, lambda: self._look(job, stamp, due_s))

    def _look(self, job: EmulatedJob, stamp: int, due_s: float) -> None:
        if stamp != job.stamp or not job.training:
            return
        now_s = self._now_s()
        epoch_ended = job.run.advance(due_s)
        if job.run.done:
            self._finish(job, due_s)
            return
        least_s = LEAST_WALL_S * self.log_writer.clock.pace
        # Times are compared, not stretches between them: where a sum of times was rounded down, a stretch
        # would never be long enough, and the job would be looked at for ever at one instant.
        next_s = job.reported_s + max(REPORT_S, least_s)
        if job.fresh or now_s >= next_s or (epoch_ended and now_s >= job.reported_s + least_s):
            epoch_ended |= job.run.advance(now_s)
            if job.run.done:
                self._finish(job, now_s)
                return
            self._report(job, now_s, epoch_ended)
            next_s = now_s + max(REPORT_S, least_s)
        self._look_at(next_s if job.run.reports else inf, job)

    def _finish(self, job: EmulatedJob, now_s: float) -> None:
        """All work is done: the workers that train end well."""
        training, job.training, job.finished = job.training, (), True
        self.log_writer.record(Reported(job.id, {**job.run.report(), "finished": True, "left_s": 0.0}))
        for name in training:
            self._end(job.workers[name], 0, now_s)

    def _part(self, job: EmulatedJob, now_s: float, saves: bool) -> None:
        """No workers train together any more; what was done is saved, or lost."""
        job.run.advance(now_s)
        if job.run.done:
            self._finish(job, now_s)
            return
        training, job.training = job.training, ()
        if not saves:
            job.run.restore(job.saved)
        job.run.give(Granted(), now_s, 0.0)
        job.saved = job.run.report()
        job.reported_s = now_s
        self.log_writer.record(
            Reported(job.id, job.saved),
            *(
                [Checkpointed(job.id, int(job.saved.get("step", 0)), "emulated")]
                if saves and training
                else []
            ),
        )

    def _report(self, job: EmulatedJob, now_s: float, epoch_ended: bool) -> None:
        told = job.run.report()
        job.fresh, job.reported_s = False, now_s
        self.log_writer.record(Reported(job.id, {**told, "epoch_end": True} if epoch_ended else told))

    def _end(self, worker: EmulatedWorker, status: int, now_s: float, why: str = "") -> None:
        if worker.lives:
            worker.phase, worker.status, worker.ended_s, worker.why = "ended", status, now_s, why
            self._show(worker)

    def _show(self, worker: EmulatedWorker) -> None:
        """All followers are told."""
        self._changed[worker.id] = worker.shown()
        self._poll.notify()

    # ── what the log says ─────────────────────────────────────────────────────────────────────────

    def _heard(self, told: Sequence[tuple[int, Event]]) -> None:
        for _, event in told:
            if isinstance(event, Submitted):
                self._submitted(event.job)
            elif isinstance(event, ArraySubmitted):
                for task in event.tasks():
                    self._submitted(task.job)
            elif isinstance(event, Generation):
                self._generation(event)
            elif isinstance(event, Ended):
                self._drop_if_over(event.job)

    def _submitted(self, name: str) -> None:
        """What a short run on one GPU of each type would tell, and whether it is resized in place."""
        record = self.log_writer.state.jobs[name]
        try:
            job = self.job_of(record)
        except InputError:
            return  # it is refused when it is to start
        told: dict[str, object] = {}
        profile = job.run.profile()
        if profile:
            told["profile"] = profile
        if record.spec.elastic is not None and not job.in_place:
            told["in_place"] = False
        if told:
            self.log_writer.record(Reported(name, told))
        if profile and self.settings.profile_s > 0 and self._is_shown_goodput():
            # As in a simulation: the runs take no GPUs from others, and the job starts once they are over.
            ready_s = self._now_s() + self.settings.profile_s
            self.log_writer.record(Requeued(name, ready_s, "is profiled on one GPU of each type first"))

    def _is_shown_goodput(self) -> bool:
        """Whether the policy looks at what profiles tell, for which a simulation charges them."""
        return View.GOODPUT_MODEL in load_policy(self.log_writer.state.configured.policy).views

    def _generation(self, event: Generation) -> None:
        """What the workers that listen to the channel do."""
        job = self.jobs.get(event.job)
        if job is None or (event.attempt, event.number) <= job.generation:
            return
        now_s = self._now_s()
        before, job.generation = job.training, (event.attempt, event.number)
        if not event.workers:
            if before:
                self._part(job, now_s, saves=True)
            for name in before:
                self._end(job.workers[name], TERMINATED, now_s)
            return
        if any(name not in job.workers or not job.workers[name].lives for name in event.workers):
            return
        job.run.advance(now_s)
        if before and job.run.done:
            self._finish(job, now_s)
            return
        if event.workers == tuple(before):  # another batch, and emulated trainings choose theirs themselves
            self._join_at(now_s, job, WorkersJoined(job.id, event.workers, event.number))
            return
        pause_s = (self.settings.resize_s or 0.0) if event.number > 1 else 0.0
        if before and not job.run.reports:  # what is left after a restart of the service follows from this
            self._report(job, now_s, epoch_ended=False)
        self._train(job, event.workers, now_s, pause_s)
        for name in before:
            if name not in event.workers:
                self._end(job.workers[name], 0, now_s)
        step = int(job.run.report().get("step", 0))
        joined = WorkersJoined(job.id, event.workers, event.number, step, pause_s)
        self._join_at(now_s + pause_s, job, joined)

    def _join_at(self, due_s: float, job: EmulatedJob, joined: WorkersJoined) -> None:
        """Say that all train, unless they are to train with others by then."""
        generation = job.generation

        def join() -> None:
            if job.generation == generation:
                self.log_writer.record(joined)

        self.do_at(due_s, job.id, join)

    def _adopt(self, record: JobRecord) -> None:
        """Make again what the log says that runs, as it stood when the service ended."""
        now_s = self._now_s()
        try:
            job = self.job_of(record)
        except InputError:
            return  # it never ran: its start is refused again, or what was wanted of it has vanished
        members = record.members.workers
        for recorded in record.alive:
            if recorded.life is WorkerPhase.WANTED:
                continue  # its start is asked for again
            worker = EmulatedWorker(
                recorded.id,
                record.id,
                recorded.attempt,
                self.log_writer.state.nodes[recorded.node].name,
                recorded.node,
                recorded.kind,
                recorded.gpus,
                len(record.workers),
                record.spec.grace_period_s,
                phase="running",
                ready_s=recorded.began_s,
                started_s=recorded.began_s,
            )
            job.workers[recorded.id] = worker  # nobody follows yet: the first look is at all workers
        job.generation = (record.attempt, record.members.number)
        unready = [recorded.id for recorded in record.alive if recorded.life is WorkerPhase.RUNNING]
        if job.in_place and unready:
            self.log_writer.record(WorkersReady(job.id, tuple(unready)))
        names = members if job.in_place else tuple(record.workers)
        if not names or any(name not in job.workers for name in names):
            return
        began_s = max(job.workers[name].started_s for name in names)
        told_s = record.learned.reported_s
        self._train(job, names, began_s if isnan(told_s) else max(told_s, began_s), 0.0)
        job.run.advance(now_s)
        number = record.members.number
        if job.in_place and any(record.workers[name].joined < number for name in names):
            self._join_at(now_s, job, WorkersJoined(job.id, names, number))

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    def job_of(self, record: JobRecord) -> EmulatedJob:
        """A job, made when it is first looked for. Raises InputError for labels that say nothing sensible."""
        job = self.jobs.get(record.id)
        if job is None:
            if self._truths is None:
                assert self.log_writer.state.cluster is not None
                self._truths = Truths(self.log_writer.state.cluster, self.settings, self.profiles)
            run = self._truths.run_of(record)
            run.restore(record.learned.latest)
            in_place = record.spec.elastic is not None and self.settings.resize_s is not None
            job = EmulatedJob(record.id, run, in_place, seconds_of(record.spec.labels, SAVING))
            job.has_run = record.attempt > 0
            job.saved = dict(record.learned.latest)
            self.jobs[record.id] = job
        return job

    def _find(self, worker_id: str) -> tuple[EmulatedJob, EmulatedWorker]:
        job = self.jobs.get(worker_id.split(".")[0])
        worker = job.workers.get(worker_id) if job is not None else None
        if job is None or worker is None:
            raise NoSuchWorker(f"no worker {worker_id}")
        return job, worker

    def _drop_if_over(self, name: str) -> None:
        """Of jobs that have ended nothing is kept once their workers are forgotten."""
        record, job = self.log_writer.state.jobs.get(name), self.jobs.get(name)
        if job is not None and not job.workers and (record is None or record.has_ended):
            del self.jobs[name]


def _topology_of(cluster: Cluster, node: Node) -> dict[str, Any]:
    """The domains of a node on those levels that a service knows."""
    return {
        level: domain for level, domain in zip(cluster.levels, node.domains, strict=False) if level in LEVELS
    }
