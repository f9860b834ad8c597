"""What events of jobs change: which are there, what is wanted of them, and how they end."""

from bisect import bisect_left, insort
from dataclasses import replace

from stretto.jobfile import JobSpec
from stretto.jobfile.to_job import accepted_job
from stretto.model import DEFAULT_QUEUE, Job, Kind, with_priority_class
from stretto.model.queue import may_use
from stretto.service.state import job_events as happened
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State
from stretto.service.state.usage_events import end_usage

FAILED = "FAILED"  # the last state of a job that ended with an error of its own


def job_submitted(state: State, event: happened.Submitted, now_s: float) -> None:
    """A job is there."""
    if event.job in state.jobs:
        return
    _note_id(state, event.array or event.job)  # before anything can go wrong: no id is given twice
    if state.latest_spec is None or state.latest_spec[0] != event.spec:  # tasks of an array have the same
        read = event.spec.read if isinstance(event.spec, happened.WrittenSpec) else None
        state.latest_spec = event.spec, read or JobSpec.from_json(dict(event.spec))
    spec = state.latest_spec[1]
    assert state.cluster is not None
    queue = queue_of(state, spec.queue, event.user)
    weight = state.queues[queue].weight if queue in state.queues else 1.0
    job = accepted_job(
        spec,
        event.job,
        now_s,
        state.cluster,
        user=event.user,
        weight=weight,
        epoch_s=state.unix_s,
        deadline_worth=state.configured.deadline_worth,
    )
    job = job if job.queue == queue else replace(job, queue=queue)
    job = in_priority_class(state, job)
    number = state.submitted
    record = JobRecord(spec, job, event.user, event.key, event.secret, number)
    record.array, record.index, record.max_parallel = event.array, event.index, event.at_once
    record.after, record.outcomes = event.after, event.settled
    if spec.measured_as:
        record.prior = state.models.get(spec.measured_as, record.prior)
        state.untried.setdefault(spec.measured_as, {})[event.job] = None
    record.held = spec.hold
    if spec.start_after is not None:
        record.not_before_s = spec.start_after.seconds(now_s, state.unix_s)
    state.jobs[event.job] = record
    state.submitted += 1
    insort(state.open, (number, event.job))
    state.open_of[event.user] = state.open_of.get(event.user, 0) + 1
    if spec.max_time_s is not None:
        state.timed[event.job] = None
    if spec.elastic is not None and spec.elastic.sizes:
        state.sized[event.job] = spec.elastic.sizes
    state.relations.add(record)
    if event.key:
        state.by_key[f"{event.user}\0{event.key}"] = event.job
    _membership_changed(state, record)


def in_priority_class(state: State, job: Job) -> Job:
    """The job with the priority of its class; of one whose class is gone by now, as it is."""
    if job.priority_class and job.priority_class not in state.priority_classes:
        return job
    return with_priority_class(job, state.priority_classes)


def array_submitted(state: State, event: happened.ArraySubmitted, now_s: float) -> None:
    """The jobs of an array are there."""
    for task in event.tasks():
        job_submitted(state, task, now_s)
    if (array := state.relations.arrays.get(event.array)) is not None:
        array.one_spec = True


def queue_of(state: State, name: str, user: str) -> str:
    """The queue of a job that asks for this one: the default queue where it may not be there."""
    if name in state.queues:
        return name if may_use(state.queues, name, user) else DEFAULT_QUEUE
    default = state.queues.get(DEFAULT_QUEUE)
    return DEFAULT_QUEUE if default is not None and default.is_default else name


def _note_id(state: State, own: str) -> None:
    if own.isascii() and own.isdecimal():
        state.largest_id = max(state.largest_id, int(own))


def _membership_changed(state: State, record: JobRecord) -> None:
    state.version += 1
    state.touch(record.id)


def job_held(state: State, event: happened.Held, now_s: float) -> None:
    """It is to wait, or may go on."""
    if (record := state.open_job(event.job)) is None:
        return
    record.held = event.held
    if event.held:
        state.release(record, now_s)
    _membership_changed(state, record)


def job_scaled(state: State, event: happened.Scaled, now_s: float) -> None:
    """Its permitted sizes have changed."""
    if (record := state.open_job(event.job)) is None:
        return
    record.resize(event.min_gpus, event.max_gpus)
    _membership_changed(state, record)


def job_prioritised(state: State, event: happened.Prioritised, now_s: float) -> None:
    """Its priority has."""
    if (record := state.open_job(event.job)) is None:
        return
    record.job = replace(record.job, priority=event.priority)
    _membership_changed(state, record)


def job_requeued(state: State, event: happened.Requeued, now_s: float) -> None:
    """It waits again, for a while at least."""
    if (record := state.open_job(event.job)) is None:
        return
    record.not_before_s, record.why = event.not_before_s, event.why
    state.release(record, now_s)
    _membership_changed(state, record)


def job_cancelled(state: State, event: happened.Cancelled, now_s: float) -> None:
    """It is to end as a user, or a limit, has it."""
    if (record := state.open_job(event.job)) is None or record.ending:
        return
    record.ending, record.why = event.state, event.why
    state.release(record, now_s)
    _membership_changed(state, record)


def job_ended(state: State, event: happened.Ended, now_s: float) -> None:
    """Nothing of it runs any more, and nothing will."""
    if (record := state.open_job(event.job)) is None:
        return
    state.release(record, now_s)
    state.duration_errors.note_end(record, now_s)
    end_usage(record, event.state, now_s, state.unix_s)
    record.end(event.state, now_s)
    record.status, record.why, record.reason = event.status, event.why, event.reason
    state.timed.pop(record.id, None)
    state.sized.pop(record.id, None)
    state.tried(record)
    state.ended[record.id] = None
    state.ends[record.state] = state.ends.get(record.state, 0) + 1
    state.ended_jobs = state.ended_jobs.with_ended(
        record.accounting.executed_s,
        interactive=record.job.kind is Kind.INTERACTIVE,
        failed=event.state == FAILED,
    )
    state.tell(event, record)
    del state.open[bisect_left(state.open, (record.number, record.id))]
    state.open_of[record.user] -= 1
    if not state.open_of[record.user]:
        del state.open_of[record.user]
    for name in state.relations.end(record):
        if not state.jobs[name].has_ended:
            state.touch(name)
    _membership_changed(state, record)


def job_retired(state: State, event: happened.Retired, now_s: float) -> None:
    """Whether or not jobs have left, all else is folded alike: nothing changes for one that has ended."""
    for name in event.jobs:
        record = state.jobs.get(name)
        if record is None or not state.relations.may_retire(record):
            continue
        del state.jobs[name], state.ended[name]
        state.unchanged = max(state.unchanged, state.changed.pop(name, 0))
        key = f"{record.user}\0{record.key}"
        if state.by_key.get(key) == name:
            del state.by_key[key]
        state.relations.retire(record)
        state.past.take(record)
