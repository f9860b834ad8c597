"""The parts of a running service, and what its interfaces ask of it."""

import asyncio
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, TypeVar

from stretto.backends.protocol import Backend, FetchesUploads, HandsSecrets, RunsImages, Validates
from stretto.errors import KeyTaken
from stretto.jobfile import Array, JobSpec
from stretto.jobfile.to_job import spec_to_job
from stretto.model import InputError, JobOutlook, PromisesDeadlines, Trigger
from stretto.service import control_loop
from stretto.service.autoscaling import WAITS, Autoscaler
from stretto.service.budgets import BudgetWatch
from stretto.service.eventlog.archive import Archive
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.clock_watch import ClockWatch
from stretto.service.eventlog.report_sampling import ReportSampler
from stretto.service.eventlog.writer import LogWriter
from stretto.service.gpu_use import GpuWatch, IdleRule
from stretto.service.kept_forecasts import KeptForecasts
from stretto.service.leadership import Leadership
from stretto.service.lending.feeds import Lender, run_feeds
from stretto.service.lending.hand_over import NodeExchange
from stretto.service.pool import Pool, Turns
from stretto.service.reconcile.controller import Reconciler
from stretto.service.reconcile.worker_env import WorkerContext
from stretto.service.retention.checkpoint_gc import CheckpointGC, has_been_deleted
from stretto.service.retention.job_retention import RetentionPolicy, retire_periodically
from stretto.service.retention.log_retention import LogRetention
from stretto.service.retention.upload_gc import UploadGC
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.scheduling.scheduler import check_types
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state.admission import admitted
from stretto.service.state.events import ArraySubmitted, Cancelled, Event, Submitted
from stretto.service.state.job_events import WrittenSpec
from stretto.service.state.records import LEVELS, JobRecord
from stretto.service.state.relations import outcomes_of, resolved
from stretto.service.state.state import State
from stretto.service.state.status import JobState, JobStatus, status_of
from stretto.service.uploads import UploadStore
from stretto.service.webhooks import Secrets, Targets, Webhooks

Found = TypeVar("Found")

CHECK_TIMES_S = 1.0  # between two looks for jobs that have run for too long; chosen

# Work that users ask for is done in processes beside the service; every bound is chosen.
LONG_PROCESSES, LONG_S, LONG_WAITING = 2, 45.0, 4  # what-ifs and dry runs, which take up to half a minute
SHORT_PROCESSES, SHORT_S, SHORT_WAITING = 1, 15.0, 32  # explanations and long job files: about a second
MOST_WORK_BYTES = 2 << 30  # of memory, each
NO_NODE = (
    "no node has shown itself yet, and none is known that may come: nothing can be submitted"
    "; if the service has only just begun, try again in some seconds"
)
NAMES_NODES = "pinned"  # the placer of a policy that does
NICE = 10  # of what takes long: jobs and the service come first


class TooManyOpen(InputError):
    """There are as many jobs that have not ended as there may be."""


@dataclass(frozen=True)
class OpenJobs:
    """How many jobs there may be that have not ended; both are chosen."""

    each: int = 20_000  # of one user
    total: int = 100_000


@dataclass(frozen=True)
class Accepted:
    """Jobs that are ours."""

    names: Sequence[str]
    again: bool = False  # they have been for a while: the key was used before


def submission(
    name: str,
    spec: JobSpec,
    user: str,
    key: str,
    after: tuple[str, ...],
    outcomes: Mapping[str, bool] = MappingProxyType({}),
) -> Submitted | ArraySubmitted:
    """The event of a submission, of one job or of all tasks of an array.

    after: the jobs that come first; settled: whether those of them that have ended did so well.
    """
    ends = dict(outcomes)
    spec_json = WrittenSpec.of(replace(spec, array=None) if spec.array is not None else spec)
    if spec.array is None:
        return Submitted(name, spec_json, user, key, after=after, settled=ends)
    ranges = ranges_of(spec.array.indices)
    return ArraySubmitted(name, spec_json, ranges, user, key, spec.array.at_once, after, ends)


@dataclass(frozen=True)
class Begun:
    """A submission that has its place in the log, or had it before."""

    jobs: Callable[[], Accepted]  # once it is durable
    writing: "asyncio.Future[int] | None" = None  # None: it has been durable for a while

    async def accepted(self) -> Accepted:
        """The jobs, once they are ours. A caller that is cancelled cancels nothing of it."""
        if self.writing is not None:
            await asyncio.shield(self.writing)
        return self.jobs()


def tasks_of(spec: JobSpec) -> int:
    """How many jobs a submission makes."""
    return 1 if spec.array is None else len(spec.array.indices)


def ranges_of(indices: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Growing indices as (first, last) of each run without gaps."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], index
        else:
            runs.append((index, index))
    return tuple(runs)


@dataclass
class Service:
    """Everything that runs, behind the few things that can be asked of it."""

    log_writer: LogWriter
    scheduling: SchedulingLoop
    reconciler: Reconciler
    backend: Backend
    clock: Clock
    context: WorkerContext
    open_on_loopback: bool = False
    failed: BaseException | None = None
    ending: bool = False
    keep: RetentionPolicy = field(default_factory=RetentionPolicy)
    targets: Targets = field(default_factory=Targets)  # of webhooks
    most_open: OpenJobs = field(default_factory=OpenJobs)
    leadership: Leadership | None = None  # None: no other process can lead
    watch: ClockWatch | None = None  # None: the time of day does not matter
    secrets: Secrets = field(default_factory=lambda: Secrets(os.urandom(32)))  # of webhooks
    idle: IdleRule = field(default_factory=IdleRule)  # when a job counts as an idle holder
    lenders: tuple[Lender, ...] = ()  # that a file names, with where their need comes from
    archive: Archive = field(init=False)
    long_work: Pool = field(
        default_factory=lambda: Pool(Turns(LONG_PROCESSES, LONG_WAITING), LONG_S, MOST_WORK_BYTES, NICE)
    )
    short_work: Pool = field(
        default_factory=lambda: Pool(Turns(SHORT_PROCESSES, SHORT_WAITING), SHORT_S, MOST_WORK_BYTES)
    )
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _submitting: dict[str, "asyncio.Future[int]"] = field(default_factory=dict)  # by key, on their way
    _on_their_way: Counter[str] = field(default_factory=Counter)  # by user, jobs not in the log yet
    _last_id: int = 0  # that this process has given

    def __post_init__(self) -> None:
        """Listen to what happens, for requests that wait."""
        self.log_writer.listeners.append(self._heard)
        self.archive = Archive(self.log_writer.state, self.log_writer.store.ended)
        self.autoscaler = Autoscaler(
            self.log_writer, self.backend, self.scheduling, self.clock, self.leadership
        )
        self.exchange = NodeExchange(
            self.log_writer, self.backend, self.reconciler, self.clock, self.leadership
        )
        self.budgets = BudgetWatch(self.log_writer, self.clock, self.log_writer.store.ended)
        self.forecasts = KeptForecasts(self.log_writer, self.scheduling, self.clock, self.long_work)
        self.gpu_watch = GpuWatch(self.state, self.backend, self.clock, self.idle)
        self.webhooks = Webhooks(self.log_writer, self.targets, secrets=self.secrets)
        self.reports = ReportSampler(self.log_writer, self.clock)

    @property
    def state(self) -> State:
        """Where everything stands."""
        return self.log_writer.state

    async def run(self) -> None:
        """Everything at once, until cancelled; the first part that fails ends the others."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.backend.close)
            async with asyncio.TaskGroup() as group:
                group.create_task(self.log_writer.run())
                if self.leadership is not None:
                    group.create_task(self.leadership.run())
                if self.watch is not None:
                    group.create_task(self.watch.run())
                await control_loop.start(group, self.scheduling, self.reconciler)
                group.create_task(self.watch_times())
                group.create_task(
                    retire_periodically(self.log_writer, self.clock, self.keep, self.reconciler.dirty)
                )
                ended, keep, leadership = self.log_writer.store.ended, self.keep, self.leadership
                deleting = LogRetention(
                    ended, self.backend, self.clock, keep, leadership, self.state.calendar
                )
                group.create_task(deleting.run())
                clearing = CheckpointGC(self.state, ended, self.context, self.clock, keep, leadership)
                group.create_task(clearing.run())
                if self.context.uploads is not None:
                    group.create_task(UploadGC(self.state, self.context.uploads, leadership).run())
                group.create_task(self.autoscaler.run())
                group.create_task(self.exchange.run())
                group.create_task(run_feeds(self.lenders, self.log_writer, self.clock))
                group.create_task(self.budgets.run())
                group.create_task(self.gpu_watch.run())
                group.create_task(self.forecasts.run())
                group.create_task(self.webhooks.run())
                group.create_task(self.reports.run())

    async def record(self, *events: Event) -> None:
        """Durable and folded when awaited."""
        await self.log_writer.record(*events)

    def _heard(self, told: Sequence[tuple[int, Event]]) -> None:
        self._task = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def end_waits(self) -> None:
        """From now on no request waits: each gets what there is, and its client asks the next service."""
        self.ending = True
        await self._tell()
        await self.long_work.close()
        await self.short_work.close()

    async def wait_for(self, look: Callable[[], Found | None], wait_s: float) -> Found | None:
        """What `look` finds, now or once something has happened; None after `wait_s` of wall time."""
        answer = look()
        if answer is not None or wait_s <= 0:
            return answer
        try:
            async with asyncio.timeout(wait_s), self._changed:
                while answer is None and not self.ending:
                    await self._changed.wait()
                    answer = look()
        except TimeoutError:
            return None
        return answer

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, spec: JobSpec, user: str, key: str = "", is_operator: bool = False) -> "Accepted":
        """The jobs that are ours now, one, or those of an array. Raises InputError, also as NotPermitted.

        A key that its owner has used before gives the jobs of that time, and is refused for another job. The
        caller may go away meanwhile: what was begun is finished, and the key stays taken until it is.
        """
        return await (await self.begin_submission(spec, user, key, is_operator)).accepted()

    async def begin_submission(
        self, spec: JobSpec, user: str, key: str = "", is_operator: bool = False
    ) -> "Begun":
        """As `submit`, but only up to where the jobs have their ids.

        So many submissions become durable together, in the order in which they were begun.
        """
        mark = f"{user}\0{key}"
        if self.context.accounts is not None:
            self.context.accounts.of(user)
        if not (key and mark in self.state.by_key):
            self.check_image(spec)
            self.check_level(spec)
        if isinstance(self.backend, Validates) and not (key and mark in self.state.by_key):
            await self.backend.check(spec)  # first: from the look at the key on, no other may come between
        if not (key and mark in self.state.by_key):
            await self.targets.check([webhook.url for webhook in spec.notify])
            await self.check_secrets(spec, user)
        left, before, past = -1, None, {}
        while left != self.state.past.jobs:  # no job must have left while the table was looked at
            left = self.state.past.jobs
            if key and mark not in self.state.by_key:
                before = await self.archive.by_key(user, key)
            past = await self.archive.named(spec, user) if spec.depends_on else {}
            while key and (writing := self._submitting.get(mark)) is not None and not writing.done():
                await asyncio.shield(writing)
        if key and mark in self.state.by_key:
            before = self.state.jobs[self.state.by_key[mark]]
        if before is not None:
            again = await self._again(before, spec)
            return Begun(lambda: again)
        self._check_open(spec, user)
        spec = admitted(self.state, spec, user, is_operator)
        if self.state.cluster is None:
            raise InputError(NO_NODE)
        spec_to_job(spec, "new", self.clock.now_s(), self.state.cluster, user=user, epoch_s=self.state.unix_s)
        check_types(spec, self.state.configured)
        after = resolved(self.state.relations, self.state.jobs, spec, user, past)
        ends = outcomes_of(self.state.relations, self.state.jobs, after, past)
        name = self._next_id()
        event = submission(name, spec, user, key, after, ends)
        writing = asyncio.ensure_future(self.log_writer.record(event))
        if key:
            self._submitting[mark] = writing
            writing.add_done_callback(lambda _: self._submitting.pop(mark, None))
        self._on_their_way[user] += tasks_of(spec)
        writing.add_done_callback(lambda _: self._has_come(user, tasks_of(spec)))
        return Begun(lambda: Accepted(self.state.relations.jobs_of(name)), writing)

    def _has_come(self, user: str, tasks: int) -> None:
        """Jobs of a user that were on their way into the log are there, or will never be."""
        self._on_their_way[user] -= tasks
        if not self._on_their_way[user]:
            del self._on_their_way[user]

    async def check_secrets(self, spec: JobSpec, user: str) -> None:
        """Raise InputError where a job names a secret that its workers could not have."""
        if not spec.secrets:
            return
        if self.context.secrets is None or not isinstance(self.backend, HandsSecrets):
            raise InputError("secrets: expected none: what runs workers here does not hand them any")
        await asyncio.to_thread(self.context.secrets.check, user, spec.secrets)

    def check_image(self, spec: JobSpec) -> None:
        """Raise InputError where a job names an image that its workers could not run in."""
        if spec.image and not isinstance(self.backend, RunsImages):
            raise InputError(
                f"image: expected none: workers of {self._backend_in_words()} run in no container"
            )

    def check_level(self, spec: JobSpec) -> None:
        """Raise InputError where nothing keeps the nodes of a job within the level that it names."""
        level, policy = spec.resources.within, self.scheduling.scheduler.policy
        if level and level not in LEVELS:
            raise InputError(f"resources.within {level}: expected one of {', '.join(LEVELS)}")
        if level and policy.placer == NAMES_NODES:
            raise InputError(
                f"resources.within {level}: expected none: the policy {policy.name} names nodes itself, and "
                "knows no levels"
            )

    def uploads_here(self) -> UploadStore:
        """Where uploads are kept. Raises InputError where workers could not fetch them."""
        if self.context.uploads is None or not isinstance(self.backend, FetchesUploads):
            raise InputError(f"upload: expected none: workers of {self._backend_in_words()} do not fetch any")
        return self.context.uploads

    def _backend_in_words(self) -> str:
        configured = self.state.configured
        return f"the backend {configured.backend if configured is not None else 'here'}"

    async def with_upload(self, spec: JobSpec, digest: str, user: str) -> JobSpec:
        """The job with the upload that its submission names. Raises InputError where it could not begin."""
        if not digest:
            return spec
        upload, manifest = await asyncio.to_thread(self.uploads_here().complete, user, digest)
        inside = posixpath.normpath(spec.workdir) if spec.workdir else "."
        if inside != "." and not manifest.has_folder(inside):
            raise InputError(
                f"workdir: with an upload expected a folder in it, or none, got {spec.workdir[:200]!r}"
            )
        return replace(spec, upload=upload)

    async def _again(self, before: JobRecord, spec: JobSpec) -> "Accepted":
        """The jobs that were submitted with the same key, if they were the same. Raises InputError."""
        tasks = await self.archive.meant(before.array or before.id, before.user)
        was = before.spec
        if before.array:
            indices = tuple(task.index for task in tasks if task.index is not None)
            was = replace(was, array=Array(indices, before.max_parallel))
        if was != (spec if spec.queue else replace(spec, queue=was.queue)):
            line = f"idempotency key {before.key!r} was used before, for another job: {before.id}"
            raise KeyTaken(line, before.id)
        return Accepted([task.id for task in tasks], again=True)

    def _check_open(self, spec: JobSpec, user: str) -> None:
        """Raise TooManyOpen where a submission would make more open jobs than there may be."""
        new, most, under_way = tasks_of(spec), self.most_open, self._on_their_way
        has, total = self.state.open_of.get(user, 0) + under_way[user], len(self.state.open)
        total += under_way.total()
        if has + new > most.each:
            raise TooManyOpen(
                f"a user may have {most.each} jobs that have not ended, you have {has} and ask for {new} more"
            )
        if total + new > most.total:
            raise TooManyOpen(f"the service takes {most.total} jobs that have not ended, and has {total}")

    def _next_id(self) -> str:
        """A number that no job or array has, nor one whose submission is on its way."""
        self._last_id = max(self._last_id, self.state.submitted, self.state.largest_id) + 1
        return str(self._last_id)

    def status_of(self, record: JobRecord) -> JobStatus:
        """How a job stands, with what the service itself knows of it."""
        record = self.reports.shown(record)
        plan, snapshot = self.scheduling.latest, self.scheduling.latest_snapshot
        status = status_of(self.state, record, self.clock.now_s(), plan, snapshot)
        if record.has_ended and has_been_deleted(record.checkpoint, self.context.checkpoints):
            status = replace(status, checkpoint="")
        if status.reason and not status.gpus and (words := self.autoscaler.message_for(record.id)):
            status = replace(status, reason=WAITS, evidence=words)
        if (use := self.gpu_watch.jobs.get(record.id)) is not None and status.gpus:
            status = replace(
                status,
                gpus_busy=None if use.busy is None else round(use.busy, 3),
                gpu_memory_gb=round(use.used_bytes / 1e9, 2),
                gpu_memory_total_gb=round(use.bytes / 1e9, 2),
                idle_s=round(use.idle_s, 1),
            )
        if status.state is JobState.STARTING and not status.evidence:
            status = replace(status, evidence=self.reconciler.dispatcher.start_errors.get(record.id, ""))
        return status

    async def outlook_of(self, record: JobRecord) -> dict[str, Any] | None:
        """What the policy expects of a job, in seconds from now; None: it says nothing, or nothing yet."""
        policy, now_s = self.scheduling.scheduler.policy, self.clock.now_s()
        if not isinstance(policy, PromisesDeadlines) or self.state.cluster is None or record.has_ended:
            return None
        snapshot = SnapshotBuilder(policy.views).observe(
            self.state, now_s, frozenset({Trigger.ARRIVAL}), self.scheduling.remembered_of(record)
        )
        if record.job.id not in snapshot.jobs.ids:
            return None
        estimator, columns = self.scheduling.scheduler.estimator, policy.configurations(snapshot.cluster)

        def asked() -> JobOutlook:
            return policy.outlook(snapshot, estimator.estimate(snapshot, columns), record.job.id)

        outlook = await asyncio.to_thread(asked)

        def from_now(at_s: float) -> float | None:
            return round(at_s - now_s, 3) if isfinite(at_s) else None

        return {
            "promise": outlook.promise.value if outlook.promise is not None else "",
            "deadline_in_s": from_now(outlook.deadline_s),
            "end_in_s": from_now(outlook.end_s),
            "lease_left_s": from_now(outlook.lease_until_s),
            "suspension_s": round(outlook.suspension_s, 3),
            "suspension": "measured" if outlook.is_measured else "assumed",
        }

    async def watch_times(self) -> None:
        """End jobs that have run longer than they may."""
        while True:
            now_s = self.clock.now_s()
            for record in [self.state.jobs[name] for name in self.state.timed]:
                most_s, accounting = record.spec.max_time_s, record.accounting
                if most_s is None or record.ending or not accounting.held_gpus:
                    continue
                if accounting.executed_s + now_s - accounting.held_since_s >= most_s:
                    await self.record(Cancelled(record.id, f"ran for {most_s:g} s", "TIMEOUT"))
            await asyncio.sleep(self.clock.wall_s(CHECK_TIMES_S))
