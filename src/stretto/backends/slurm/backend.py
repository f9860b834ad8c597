"""A `Backend` over Slurm: what is asked of it becomes orders at once, and looks show what came of them."""

import asyncio
import errno
import logging
import shutil
import signal as signals
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from stretto.agent import run_directory
from stretto.agent.log_bounds import LogBound
from stretto.agent.requests import WORKER_ID, Refused
from stretto.agent.server import Fence, read_piece
from stretto.backends.protocol import (
    Backend,
    BackendUnreachable,
    IdUsed,
    Line,
    LogPiece,
    NodeState,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    StartRefused,
    WorkerStart,
    WorkerState,
)
from stretto.backends.slurm import worker_jobs
from stretto.backends.slurm.checks import (
    check_job,
    check_partitions,
    check_rights,
    container_tool,
    partition_for,
)
from stretto.backends.slurm.client import Commands, Refusal, SlurmClient, is_closed, is_for_later, require
from stretto.backends.slurm.exec_steps import ExecSteps
from stretto.backends.slurm.nodes import LENDER, NodeResources, gres_of, lender_of, share_of, type_of
from stretto.backends.slurm.options import RESERVATION, SlurmOptions
from stretto.backends.slurm.parsers import SlurmNode
from stretto.backends.slurm.poller import Poller
from stretto.backends.slurm.reservations import Reservations
from stretto.backends.slurm.worker_jobs import WorkerJob, read_notes, worker_job_at
from stretto.errors import InputError
from stretto.jobfile.spec import JobSpec

log = logging.getLogger(__name__)

SECOND_LOOK_S = 1.0  # after the first, where others hold GPUs; chosen
LOG_POLL_S = 0.1  # how often a log that is followed is looked at; chosen
BOUND_LOGS_S = 2.0  # between looks at how much was written; chosen: a shared disk is a slow one


class SlurmBackend:
    """One service's worker jobs on one cluster, kept in directories that all nodes see."""

    hands_secrets = True
    fetches_uploads = True
    runs_images = True

    def __init__(self, options: SlurmOptions, service: str, shared: Path) -> None:
        self.options, self.service = options, service
        self.folder = shared / "slurm" / service
        self.runs, self.forgotten = self.folder / "runs", self.folder / "forgotten"
        self.asking = SlurmClient(Commands(options))
        self.reservations = Reservations(self.asking.commands, service, self.folder / "lenders.json")
        self.lenders: dict[str, str] = {}  # by node that changed hands: its lender, or "" for us
        self.known: dict[str, WorkerJob] = {}
        self.looking = Poller(self.asking, options, service, self.known, self.runs)
        self.looking.reserved_for_us = lambda node: bool(self._reserved(node))
        # Locks of starts, by worker, as long as some start holds or awaits one.
        self.starting = WeakValueDictionary[str, asyncio.Lock]()
        self.writing: dict[str, asyncio.Task[WorkerJob]] = {}  # by worker
        self.supervisor_script = Path()
        self.epoch = 0  # of the service that leads
        self.looking.leads = lambda: Fence(self.folder / "epoch.json").epoch <= self.epoch or not self.epoch
        self.bound = LogBound(options.max_log_bytes)
        self.exec_steps = ExecSteps(self.asking.commands, self.folder)
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self) -> "SlurmBackend":
        """Adopt what is there, and look at Slurm once. Raises InputError, BackendUnreachable."""
        try:
            await asyncio.to_thread(self.adopt)
        except OSError as failure:
            raise InputError(f"--shared {self.folder}: {failure.strerror or failure}") from None
        if self.options.lent_by == RESERVATION:
            self.lenders = await self.reservations.lenders()
        await self.looking.look()
        if any(node.others for node in self.looking.nodes):
            await asyncio.sleep(SECOND_LOOK_S)  # jobs that have just ended may still be shown there
            await self.looking.look()
        self.tasks = [asyncio.create_task(loop) for loop in (self.looking.follow(), self._bound_logs())]
        return self

    def adopt(self) -> None:
        """Take in the workers of before, from their directories. Raises OSError."""
        for folder in (self.folder, self.runs, self.forgotten):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.supervisor_script = worker_jobs.place_supervisor_script(self.folder)
        for run in run_directory.every(self.runs):
            try:
                self.known[run.name] = worker_job_at(run)
            except (
                run_directory.Damaged
            ) as damage:  # the others must not suffer; if it runs, Slurm is to end it
                log.warning("worker %s is set aside: %s", run.name, damage)

    # ── what is known ─────────────────────────────────────────────────────────────────────────────

    async def nodes(self) -> Sequence[NodeState]:
        """Every node that is served, by name, as last seen."""
        return self.looking.nodes

    async def workers(self) -> Sequence[WorkerState]:
        """Every worker job of which Slurm knows or knew, by id, as last seen."""
        return sorted((one.state for one in self.known.values() if one.listed), key=lambda one: one.id)

    async def changes(self, after: int, wait_s: float = 20.0) -> int:
        """The newest number, once it is not `after` any more or `wait_s` is over."""
        for task in self.tasks:
            if task.done():
                task.result()  # nobody looks any more: whoever waits is told why
        return await self.looking.poll.wait(after, wait_s)

    async def check(self, spec: JobSpec) -> None:
        """Raise InputError for a job that this cluster can never take."""
        served = list(self.looking.served.values())
        await check_job(self.asking, self.options, spec, served, answers=not self.looking.silence)

    # ── start ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Submit a worker job, unless that was done before."""
        await self._check_leader()
        async with self.starting.setdefault(worker.id, asyncio.Lock()):
            return await self._start(worker)

    async def _start(self, worker: WorkerStart) -> WorkerState:
        job = await self.written_before(worker.id)
        if job is not None:
            if run_directory.asked_for(job.started) != run_directory.asked_for(_as_started(worker)):
                raise StartRefused(f"worker {worker.id} was started with another request")
            if job.listed:
                return job.state
        elif not WORKER_ID.fullmatch(worker.id):
            raise StartRefused(f"worker id must be letters, digits, '.', '_' and '-', got {worker.id!r}")
        elif (self.forgotten / worker.id).exists():
            raise IdUsed(f"worker {worker.id} has ended and was forgotten; ids are not used twice")
        self.looking.require_answers()
        await self._make_way(worker)
        node, partition = self._place(worker)
        others = self.looking.others.get(node.name, NodeResources())
        resources = worker_jobs.resources_of(worker, share_of(node, len(worker.gpus), others))
        if job is None:
            job = await self.write_down(worker, resources)
        elif await self._was_submitted(job):
            return job.state
        gres = gres_of(node, len(worker.gpus)) if worker.gpus else ""
        command = worker_jobs.submission(
            worker, self.options, self.service, job.run, partition, gres, resources, self._reserved(node.name)
        )
        job.submitting = True
        try:
            job_id = await self.asking.submit(command, worker_jobs.script_of(job.run, self.supervisor_script))
            await self._learn_number(job, job_id)
        except Refusal as refusal:
            if is_for_later(str(refusal)) or is_closed(str(refusal)):
                await self._refused_for_now(job, str(refusal))
                return job.state
            await self._unwrite(job)
            raise StartRefused(f"Slurm does not take worker {worker.id}: {refusal}") from None
        finally:
            job.submitting = False
        return job.state

    async def _make_way(self, worker: WorkerStart) -> None:
        """Withdraw worker jobs that Slurm never said it has, where their GPUs are another's now.

        Such are left where a node was given up while Slurm did not answer: nothing needs them any more.
        """
        for job in list(self.known.values()):
            in_way = job.state.node == worker.node and bool(set(job.state.gpus) & set(worker.gpus))
            idle = not job.listed and not job.submitting and job.id not in self.starting
            if in_way and idle and await self.looking.take(job):
                await self.looking.withdraw(job, "it was not submitted before its GPUs were another's")

    def _place(self, worker: WorkerStart) -> tuple[SlurmNode, str]:
        """Its node and partition; raises StartRefused, or NotNow where a GPU is in use."""
        node = self.looking.served.get(worker.node)
        if node is None:
            raise StartRefused(
                f"worker {worker.id}: no node {worker.node}, expected one of {sorted(self.looking.served)}"
            )
        if lender := self.lenders.get(node.name, lender_of(node)):
            raise NotNow(f"worker {worker.id}: node {node.name} is with its lender {lender}")
        total = node.gpus[type_of(node)]
        if not all(0 <= gpu < total for gpu in worker.gpus) or len(set(worker.gpus)) != len(worker.gpus):
            raise StartRefused(f"worker {worker.id}: gpus must be below {total}, got {list(worker.gpus)}")
        going = [job for job in self.known.values() if not job.ended and job.state.node == worker.node]
        for job in going:
            if job.id != worker.id and (both := set(job.state.gpus) & set(worker.gpus)):
                raise NotNow(f"GPU {min(both)} of {worker.node} is in use by {job.id}")
        asks = worker_jobs.asked_of_slurm(worker)
        partition = partition_for(self.options, asks, node, self.looking.default_partition)
        if not partition:
            raise StartRefused(
                f"worker {worker.id}: node {node.name} is in partition {' '.join(node.partitions)}, "
                f"expected {asks.get('partition', '') or ' '.join(self.options.partitions)}"
            )
        return node, partition

    async def written_before(self, worker_id: str) -> WorkerJob | None:
        """What an earlier start wrote down, or is writing, though it was given up or failed meanwhile."""
        if writing := self.writing.get(worker_id):
            with suppress(OSError):
                return await asyncio.shield(writing)
        return self.known.get(worker_id) or await self.looking.found(worker_id)

    async def write_down(self, worker: WorkerStart, resources: NodeResources) -> WorkerJob:
        """The worker job in a directory of its own; a start that is given up does not end what writes it."""
        writing = asyncio.create_task(self._written_down(worker, resources))
        self.writing[worker.id] = writing
        writing.add_done_callback(lambda done: self._was_written(worker.id, done))
        try:
            return await asyncio.shield(writing)
        except OSError as failure:
            if failure.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another attempt has another name
                raise StartRefused(f"worker {worker.id}: its directory is there, and damaged") from None
            raise NotNow(f"worker {worker.id} cannot be written down: {failure}") from failure

    async def _written_down(self, worker: WorkerStart, resources: NodeResources) -> WorkerJob:
        run = await asyncio.to_thread(worker_jobs.prepare, self.runs, worker, resources, self.options)
        job = self.known[worker.id] = await asyncio.to_thread(worker_job_at, run)
        return job

    def _was_written(self, worker_id: str, done: asyncio.Task[WorkerJob]) -> None:
        del self.writing[worker_id]
        if not done.cancelled():
            done.exception()  # looked at, as the start may have been given up

    async def _was_submitted(self, known: WorkerJob) -> bool:
        """Whether an earlier attempt to start reached Slurm, though its answer did not reach us."""
        await self.looking.look()
        return known.listed

    async def _unwrite(self, known: WorkerJob) -> None:
        """Of a worker job that Slurm refused nothing stays, unless an earlier attempt had been taken."""
        if await asyncio.to_thread(worker_jobs.take, known.run):
            await asyncio.to_thread(shutil.rmtree, known.run, ignore_errors=True)
            self.known.pop(known.id, None)

    async def _refused_for_now(self, known: WorkerJob, why: str) -> None:
        """Raise NotNow, and not for ever: its GPUs may be of use to jobs that Slurm does take."""
        now_s = time.monotonic()
        known.refused_since_s = known.refused_since_s or now_s
        if now_s - known.refused_since_s < self.options.pending_s or not await self.looking.take(known):
            raise NotNow(f"Slurm does not take worker {known.id} now: {why}")
        said = f"Slurm did not take it for {self.options.pending_s:g} s: {why}"
        await self.looking.withdraw(known, said)

    async def _learn_number(self, known: WorkerJob, job_id: int) -> None:
        known.job_id, known.answered_s = job_id, time.monotonic()
        with suppress(OSError):  # then its comment tells, as long as Slurm knows it
            await asyncio.to_thread(worker_jobs.note_job, known.run, job_id)
        self.looking.poll.notify()
        self.looking.hurry()

    # ── hand-over ─────────────────────────────────────────────────────────────────────────────────

    async def hand_over(self, nodes: Sequence[str], to: str | None) -> None:
        """Drain nodes that go to a lender, and resume those that come back, unless an admin has drained them.

        Or release and reserve them: `SlurmOptions.lent_by`. With None neither is left. Raises StaleLeader and
        BackendUnreachable.
        """
        await self._check_leader()
        if self.options.lent_by == RESERVATION:
            for name in nodes:
                if to is None:
                    self._check_unreserved(name)
                await self.reservations.hand_over(name, to)
                self._note_lender([name], to)
            return
        listed = {node.name: node for node in await self.asking.nodes()}
        there = [listed[name] for name in nodes if name in listed]
        if to:
            changing = [node.name for node in there if "DRAIN" not in node.states]
            if changing:
                await self.asking.set_state(changing, "DRAIN", f"{LENDER}{to}")
        elif changing := [node.name for node in there if lender_of(node)]:
            await self.asking.set_state(changing, "RESUME")
        self._note_lender(nodes, to)  # what Slurm shows may come later
        await self.looking.look()

    def _check_unreserved(self, node: str) -> None:
        """Raise BackendUnreachable while a worker is on a node: Slurm deletes no reservation in use."""
        for worker in self.known.values():
            if worker.state.node == node and not worker.ended:
                raise BackendUnreachable(f"node {node} stays reserved until worker {worker.id} has ended")

    def _note_lender(self, nodes: Sequence[str], to: str | None) -> None:
        self.lenders |= dict.fromkeys(nodes, to or "")
        if to is None and self.options.lent_by == RESERVATION:  # where "" would say that one is there
            for name in nodes:
                del self.lenders[name]

    def _reserved(self, node: str) -> str:
        """The reservation of a node that is on loan; "" for none."""
        is_reserved = self.options.lent_by == RESERVATION and self.lenders.get(node) == ""
        return self.reservations.name_of(node) if is_reserved else ""

    # ── who leads ─────────────────────────────────────────────────────────────────────────────────

    async def _check_leader(self) -> None:
        """Raise StaleLeader where a later leader has commanded, by a file that all of them see.

        Supervisors cannot compare: what reaches them are signals of Slurm.
        """
        try:
            await asyncio.to_thread(Fence(self.folder / "epoch.json").admit, self.epoch)
        except Refused as refusal:
            raise StaleLeader(refusal.why, refusal.epoch) from None

    # ── stop, signal ──────────────────────────────────────────────────────────────────────────────

    async def stop(self, worker_id: str, grace_s: float) -> None:
        """Withdraw a worker job that has not begun; have the supervisor of one that has end it."""
        job = self._worker_job(worker_id)
        if job.ended:
            return
        await self._check_leader()
        if await self.looking.take(job):
            await self.looking.withdraw(job, "it was stopped before it began")
            return
        await asyncio.to_thread(worker_jobs.give_order, job.run, {"stop": grace_s})
        job.notes = await asyncio.to_thread(read_notes, job.run)
        await self._send(job, signals.SIGTERM)
        job.told_s = time.monotonic()
        self.looking.hurry()

    async def signal(self, worker_id: str, signal: int) -> None:
        """Have the supervisor send a signal to a worker's process group."""
        job = self._worker_job(worker_id)
        if not job.ended:
            await self._check_leader()
            await asyncio.to_thread(worker_jobs.give_order, job.run, {"signal": signal})
            job.notes = await asyncio.to_thread(read_notes, job.run)
            if job.notes.running is not None:  # else the supervisor finds the order as it begins
                await self._send(job, signals.SIGUSR1)
            self.looking.hurry()

    async def reach(self, worker_id: str) -> Line:
        """A line to a new program beside a worker, as a step of its Slurm job."""
        job = self._worker_job(worker_id)
        await self._check_leader()
        job.notes = await asyncio.to_thread(read_notes, job.run)
        if job.ended or job.notes.running is None:
            raise InputError(f"worker {worker_id} does not run")
        return await self.exec_steps.begin(job.notes.by or job.job_id, job.run)

    async def _send(self, job: WorkerJob, number: signals.Signals) -> None:
        """Have Slurm send a signal to the supervisor. Raises BackendUnreachable."""
        self.looking.require_answers()
        job_id = job.notes.by or job.job_id
        if not job_id:
            await self.looking.look()
            job_id = job.job_id
        if not job_id:
            raise BackendUnreachable(f"worker {job.id}: it is not known which job of Slurm it is")
        await self.asking.signal(job_id, number.name.removeprefix("SIG"))

    def _worker_job(self, worker_id: str) -> WorkerJob:
        if known := self.known.get(worker_id):
            return known
        raise NoSuchWorker(f"no worker {worker_id}")

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────

    async def log(
        self, worker_id: str, offset: int = 0, limit: int = 1 << 20, wait_s: float = 0.0
    ) -> LogPiece:
        """A piece of a log, from the shared directory."""
        until_s = time.monotonic() + wait_s
        while True:
            job = self.known.get(worker_id)
            run = job.run if job else self.forgotten / worker_id
            if job is None and not (WORKER_ID.fullmatch(worker_id) and run.exists()):
                raise NoSuchWorker(f"no worker {worker_id}")
            complete = job is None or job.ended  # before reading: what is read after its end is all
            begin, data, size = await asyncio.to_thread(read_piece, run / "log", offset, max(limit, 0))
            if data or complete or time.monotonic() >= until_s:
                return LogPiece(data, begin, begin + len(data), complete and begin + len(data) >= size)
            await asyncio.sleep(LOG_POLL_S)

    async def _bound_logs(self) -> None:
        """Keep the logs of each job within their bound, until cancelled."""
        while self.bound.most_bytes > 0:
            if self.looking.leads():
                found = [one.run / "log" for one in list(self.known.values())]
                await asyncio.to_thread(self._bound_once, found)
            await asyncio.sleep(BOUND_LOGS_S)

    def _bound_once(self, logs: list[Path]) -> None:
        by_job: dict[str, list[Path]] = {}
        for path in logs:
            by_job.setdefault(job_in(path), []).append(path)
        with suppress(OSError):
            for path in (run / "log" for run in self.forgotten.iterdir()):
                if job_in(path) in by_job:
                    by_job[job_in(path)].append(path)
        for logs_of_job in by_job.values():
            with suppress(OSError):  # of one: the others must not suffer from it
                self.bound.keep(logs_of_job)

    async def forget(self, worker_id: str) -> None:
        """List an ended worker no more."""
        known = self.known.get(worker_id)
        if known is not None and known.ended:
            await self._check_leader()
            await asyncio.to_thread(self._put_aside, known.run)
            self.known.pop(worker_id, None)
            self.looking.poll.notify()

    def _put_aside(self, run: Path) -> None:
        run.rename(self.forgotten / run.name)
        run_directory.delete_copies(run_directory.put_copies_away(self.runs, run.name))

    async def delete_logs(self, job: str) -> None:
        """Remove the directories of a job's forgotten workers."""
        await self._check_leader()
        await asyncio.to_thread(self._delete_logs, job)

    def _delete_logs(self, job: str) -> None:
        for run in run_directory.every(self.forgotten):
            if run.name.startswith(f"{job}.") and run_directory.read_start(run)[0]["job"] == job:
                run_directory.delete(run)

    async def close(self) -> None:
        """Look no more. Worker jobs go on, programs beside them end."""
        await self.exec_steps.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []


def job_in(log: Path) -> str:
    """The job whose worker has written a log, by the directory that it lies in."""
    return log.parent.name.partition(".")[0]


def _as_started(worker: WorkerStart) -> dict[str, object]:
    """A request in the shape of a start.json."""
    return {**worker_jobs.request_of(worker), "asked_env": dict(worker.env)}


# ── the way into a cluster: everything that would keep it from working is said at once, in one line ─────────


async def open_slurm(options: SlurmOptions, service: str, shared: Path) -> Backend:
    """The backend of a cluster. Raises InputError where it cannot be used.

    service: the name under which worker jobs of this service are found again. shared: a directory that all
    nodes see under the same path.
    """
    backend = SlurmBackend(options, service, shared.resolve())
    require(backend.asking.commands)
    try:
        partitions, default = await check_partitions(backend.asking, options)
        backend.looking.partitions, backend.looking.default_partition = partitions, default
        backend.options = replace(options, container=await container_tool(backend.asking, options))
        log.info("images of jobs are run by: %s", backend.options.container)
        await check_rights(backend.asking, options, partitions)
        await backend.open()
    except BackendUnreachable as silence:
        raise InputError(f"--backend slurm: {silence}") from None
    if not backend.looking.nodes:
        await backend.close()
        raise InputError(f"--partition {','.join(partitions)}: Slurm shows no node with GPUs there")
    return backend
