"""A job that has left the state: as the table of ended jobs keeps it, and as a record again.

A record of it shows what it showed at its end, and nothing can be done with it any more.
"""

import json
from dataclasses import fields, replace
from math import isfinite, nan
from typing import Any

from stretto.live.jobfile import JobSpec
from stretto.live.state.events import Retired
from stretto.live.state.records import NOBODY, NOTHING_LEARNED, Books, JobRecord, Learned
from stretto.live.state.state import State
from stretto.live.store import EndedJob
from stretto.model import Adaptivity, Job, JobId

USUAL = JobSpec("usual").to_json()  # what of a specification need not be written
JOB = ("submitted_s", "gpus", "min_gpus", "max_gpus", "priority", "weight")
BOOKS = (
    *("executed_s", "attained_gpu_s", "first_start_s", "last_stop_s", "largest_held", "starts"),
    *("resizes", "switches", "lost_s", "profiled_s"),
)
RECORD = (
    *("index", "at_once", "held", "ending", "why", "attempt", "closed", "failures", "losses"),
    *("speaks", "status", "checkpoint", "checkpoint_step", "reason", "incarnations"),
)


def row_of(record: JobRecord, with_spec: bool = True) -> EndedJob:
    """What is kept of a job that has ended. with_spec: unless the log has one for all tasks of its array."""
    spec = {key: value for key, value in record.spec.to_json().items() if value != USUAL.get(key)}
    said: dict[str, Any] = {
        **({"spec": spec} if with_spec else {}),
        "job": {name: getattr(record.job, name) for name in JOB},
        "books": _changed(record.books, BOOKS),
        **_changed(record, RECORD),
    }
    if record.members.number:
        said["members"] = record.members.number
    if record.learned is not NOTHING_LEARNED:
        said |= {"latest": dict(record.learned.latest), "reported_s": _number(record.learned.reported_s)}
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
        body=json.dumps(said, separators=(",", ":")),
    )


def rows_of(state: State, event: Retired) -> list[EndedJob]:
    """The rows that an event brings; also of a job that will turn out to be needed still: they do no harm."""
    leaving = [state.jobs[name] for name in event.jobs if name in state.ended]
    shared = {name for name, array in state.relations.arrays.items() if array.one_spec}
    return [row_of(record, record.array not in shared) for record in leaving]


def record_of(row: EndedJob, shared: JobSpec | None = None) -> JobRecord:
    """The record of a job, as far as it is kept; fields that an older version did not write are defaults.

    shared: the specification of its array, for a task whose row has none.
    """
    said = json.loads(row.body)
    spec = JobSpec.from_json(said["spec"]) if "spec" in said else shared
    assert spec is not None
    job = Job(
        JobId(row.job), adaptivity=Adaptivity.STRONG_SCALING, user=row.owner, queue=row.queue, **said["job"]
    )
    record = JobRecord(spec, job, row.owner, row.key, "", row.number, array=row.array)
    for name in RECORD:
        if name in said:
            setattr(record, name, said[name])
    record.books = Books(**said["books"])
    record.members = replace(NOBODY, number=said.get("members", 0))
    if "latest" in said:
        reported_s = said.get("reported_s")
        record.learned = Learned(said["latest"], reported_s=nan if reported_s is None else reported_s)
    record.incarnations = tuple((first, name) for first, name in record.incarnations)
    record.state, record.ended_s = row.state, row.ended_s
    if row.logs_deleted_s is not None:
        record.logs_deleted_s = row.logs_deleted_s
    return record


def _changed(one: JobRecord | Books, names: tuple[str, ...]) -> dict[str, Any]:
    """These fields, those that are not as they were in the beginning."""
    defaults = {field.name: field.default for field in fields(one)}
    found = {name: _number(getattr(one, name)) for name in names}
    return {name: value for name, value in found.items() if value != _number(defaults[name])}


def _number(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not isfinite(value) else value
