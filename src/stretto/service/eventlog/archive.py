"""Jobs that have left memory, and jobs wherever they are.

A job that has left the state: as the table of ended jobs keeps it, and as a record again.

A record of it shows what it showed at its end, and nothing can be done with it any more.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite, nan
from typing import Any, TypeVar

from stretto.jobfile import JobSpec
from stretto.jobfile.to_job import plain_fields
from stretto.model import Adaptivity, Job, JobId
from stretto.service.eventlog import EndedJob, EndedJobs, UsedRow
from stretto.service.state.events import Retired
from stretto.service.state.records import (
    NOBODY,
    NOTHING_LEARNED,
    Accounting,
    Attempt,
    JobRecord,
    Learned,
)
from stretto.service.state.relations import Named, named
from stretto.service.state.state import State
from stretto.service.state.usage import Cause, CauseKind, Spell, Use

USUAL = JobSpec("usual").to_json()  # what of a specification need not be written
JOB = ("submitted_s", "gpus", "min_gpus", "max_gpus", "priority", "weight")
ACCOUNTED = (
    *("executed_s", "attained_gpu_s", "first_start_s", "last_stop_s", "largest_held", "starts"),
    *("resizes", "switches", "lost_s", "profiled_s"),
)
RECORD = (
    *("index", "max_parallel", "held", "ending", "why", "attempt", "closed", "failures", "losses"),
    *("uses_sdk", "status", "checkpoint", "checkpoint_step", "reason", "incarnations", "attempts"),
)
# What rows call two of these fields: tables of older versions are read, and newer ones by older versions.
STORED_AS = {"max_parallel": "at_once", "uses_sdk": "speaks"}


def row_of(record: JobRecord, with_spec: bool = True) -> EndedJob:
    """What is kept of a job that has ended. with_spec: unless the log has one for all tasks of its array."""
    spec = {key: value for key, value in record.spec.to_json().items() if value != USUAL.get(key)}
    body: dict[str, Any] = {
        **({"spec": spec} if with_spec else {}),
        "job": {name: getattr(record.job, name) for name in JOB},
        "books": _changed(record.accounting, ACCOUNTED),
        **{STORED_AS.get(name, name): value for name, value in _changed(record, RECORD).items()},
    }
    if record.members.number:
        body["members"] = record.members.number
    if record.learned is not NOTHING_LEARNED:
        body |= {"latest": dict(record.learned.latest), "reported_s": _number(record.learned.reported_s)}
    return EndedJob(
        number=record.number,
        job=record.id,
        owner=record.user,
        name=record.spec.name,
        queue=record.queue,
        array=record.array,
        key=record.key,
        state=record.state,
        ended_s=record.ended_s,
        body=json.dumps(body, separators=(",", ":")),
        used=tuple(used_row(spell) for spell in record.usage.spells),
    )


def used_row(spell: Spell) -> UsedRow:
    """How the table of usage keeps a spell."""
    cause = spell.cause
    return UsedRow(
        spell.from_us,
        spell.until_us,
        spell.gpu_type,
        spell.queue,
        spell.use.value,
        cause.kind.value,
        cause.name,
        cause.user,
        cause.queue,
        spell.gpu_us,
    )


def spell_of(row: UsedRow) -> Spell:
    """The spell that a row of the table of usage keeps."""
    cause = Cause(CauseKind(row.cause), row.cause_name, row.cause_user, row.cause_queue)
    return Spell(row.from_us, row.until_us, row.gpu_type, row.queue, Use(row.use), cause, row.gpu_us)


def rows_of(state: State, event: Retired) -> list[EndedJob]:
    """The rows that an event brings; also of a job that will turn out to be needed still: they do no harm."""
    leaving = [state.jobs[name] for name in event.jobs if name in state.ended]
    shared = {name for name, array in state.relations.arrays.items() if array.one_spec}
    return [row_of(record, record.array not in shared) for record in leaving]


def record_of(row: EndedJob, shared: JobSpec | None = None) -> JobRecord:
    """The record of a job, as far as it is kept; fields that an older version did not write are defaults.

    shared: the specification of its array, for a task whose row has none.
    """
    body = json.loads(row.body)
    spec = JobSpec.from_json(body["spec"]) if "spec" in body else shared
    assert spec is not None
    job = Job(
        JobId(row.job),
        adaptivity=Adaptivity.STRONG_SCALING,
        user=row.owner,
        queue=row.queue,
        **(plain_fields(spec) | body["job"]),
    )
    record = JobRecord(spec, job, row.owner, row.key, "", row.number, array=row.array)
    for name in RECORD:
        if (stored := STORED_AS.get(name, name)) in body:
            setattr(record, name, body[stored])
    record.accounting = Accounting(**body["books"])
    record.members = replace(NOBODY, number=body.get("members", 0))
    if "latest" in body:
        reported_s = body.get("reported_s")
        record.learned = Learned(body["latest"], reported_s=nan if reported_s is None else reported_s)
    record.attempts = tuple(Attempt(*each) for each in record.attempts)
    record.incarnations = tuple((first, name) for first, name in record.incarnations)
    record.state, record.ended_s = row.state, row.ended_s
    if row.logs_deleted_s is not None:
        record.logs_deleted_s = row.logs_deleted_s
    return record


def _changed(one: JobRecord | Accounting, names: tuple[str, ...]) -> dict[str, Any]:
    """These fields, those that are not as they were in the beginning."""
    defaults = {field.name: field.default for field in fields(one)}
    found = {name: _number(getattr(one, name)) for name in names}
    return {name: value for name, value in found.items() if value != _number(defaults[name])}


def _number(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not isfinite(value) else value


# ── jobs wherever they are: in the state, or, once they have left it, in the table of ended jobs ────────────


Found = TypeVar("Found")


@dataclass(frozen=True)
class Archive:
    """Answers requests that know a job by its id, name or key. Raises StoreError where the store fails."""

    state: State
    table: EndedJobs

    async def job(self, name: str) -> JobRecord | None:
        """A job; None where there is none."""
        return next(iter(await self.jobs([name])), None)

    async def jobs(self, names: Sequence[str]) -> list[JobRecord]:
        """Those of these jobs that there are, in this order."""
        found = {name: record for name in names if (record := self.state.jobs.get(name)) is not None}
        missing = [name for name in names if name not in found]
        if missing:
            found |= {one.id: one for one in await self._records(lambda: self.table.of(missing))}
        return [found[name] for name in names if name in found]

    async def meant(self, word: str, user: str) -> list[JobRecord]:
        """A job, or the tasks of an array: by id, also of other users, or by the name of the newest."""
        state = self.state
        if word in state.jobs or word in state.relations.arrays:
            return await self.jobs(state.relations.jobs_of(word))
        left = await self._left(word, user)
        by_id = [job for job in left if word in (job.id, job.array)]
        name = state.relations.newest.get((user, word), "")
        if by_id or not name:
            return by_id or left
        return await self.jobs(state.relations.jobs_of(name))

    async def named(self, spec: JobSpec, user: str) -> dict[str, Named]:
        """What the words of `depends_on` mean among jobs that have left."""
        found = {}
        for word in dict.fromkeys(one.job for one in spec.depends_on):
            one = named(await self._left(word, user), word, user)
            if one is not None:
                found[word] = one
        return found

    async def by_key(self, user: str, key: str) -> JobRecord | None:
        """The first job of a submission with this key that has left."""

        def look() -> list[EndedJob]:
            row = self.table.by_key(user, key)
            return [] if row is None else [row]

        return next(iter(await self._records(look)), None)

    async def owners_of(self, names: Collection[str]) -> dict[str, str]:
        """The users of these jobs, by job, as far as there are such."""
        found = {name: record.user for name in names if (record := self.state.jobs.get(name)) is not None}
        missing = [name for name in names if name not in found]
        if missing:
            nobody: dict[str, str] = {}
            found |= await self._asked(lambda: self.table.owners_of(missing), nobody)
        return found

    async def left(self, look: Callable[[EndedJobs], list[EndedJob]]) -> list[JobRecord]:
        """What a look at the table finds."""
        return await self._records(lambda: look(self.table))

    async def _left(self, word: str, user: str) -> list[JobRecord]:
        """Of jobs that have left, one or the tasks of an array by id, and the newest of a user by name."""

        def look() -> list[EndedJob]:
            table = self.table
            by_id = table.of([word]) or table.tasks_of(word)
            newest = table.newest_named(user, word)
            if newest is None:
                return by_id
            return [*by_id, *(table.tasks_of(newest.array) if newest.array else [newest])]

        return await self._records(look)

    async def _records(self, look: Callable[[], list[EndedJob]]) -> list[JobRecord]:
        def records() -> list[JobRecord]:
            rows = look()
            specs = self.table.specs_of({row.array for row in rows if row.array})
            shared = {array: JobSpec.from_json(spec) for array, spec in specs.items()}
            return [record_of(row, shared.get(row.array)) for row in rows]

        return await self._asked(records, [])

    async def _asked(self, look: Callable[[], Found], nothing: Found) -> Found:
        """What a look finds, beside the loop; nothing is looked for where none has left."""
        return await asyncio.to_thread(look) if self.state.past.jobs else nothing
