"""Why attempts of a job end, and so why the next ones begin, in words for people."""

from stretto.service.state import job_events as happened
from stretto.service.state.messages import gpus_of
from stretto.service.state.records import MOST_ATTEMPTS, Attempt, JobRecord, orphaned_by
from stretto.service.state.size_changes import reason_of
from stretto.service.state.usage import CauseKind


def note_begin(record: JobRecord, number: int, now_s: float) -> None:
    """A new attempt begins."""
    began = Attempt(number, now_s, record.end_why if number > 1 else "")
    record.attempts, record.end_why = (*record.attempts, began)[-MOST_ATTEMPTS:], ""


def note_asked(record: JobRecord) -> None:
    """Workers were asked to end: where these are all, the reason of now is that of the attempt's end."""
    leaves = record.members.have_begun and record.members.leaves
    if not record.end_why and (leaves or all(worker.stopped for worker in record.alive)):
        record.end_why = asked_why(record)


def note_end(record: JobRecord, event: happened.AttemptClosed) -> None:
    """An attempt is over: what it did by itself is its reason, else what it was asked to end for."""
    detail = f": {event.why}" if event.why else ""
    match event.outcome:
        case "failed":
            record.end_why = f"attempt {event.attempt} failed{detail}"
        case "lost" if orphaned_by(record) and event.why:
            record.end_why = event.why
        case "lost":
            record.end_why = f"attempt {event.attempt} was killed by others{detail}"
        case _:
            record.end_why = record.end_why or asked_why(record)


def asked_why(record: JobRecord) -> str:
    """Why the service has an attempt end, as of now."""
    if record.held:
        return "it was held and released"
    if not record.size_changes:
        return record.why
    change = record.size_changes[-1]
    gpus_before = record.size_changes[-2].gpus if len(record.size_changes) > 1 else 0
    match change.cause.kind:
        case CauseKind.OWNER:
            return record.why
        case CauseKind.JOB:
            by = record.preempted
            rank = f" (priority {by.priority})" if by is not None and by.by == change.cause.name else ""
            how = "" if not change.gpus else f", which left it {gpus_of(change.gpus)}"
            return f"preempted by job {change.cause.name}{rank}{how}"
        case CauseKind.POLICY if not change.gpus:
            return f"preempted: {reason_of(change)}"
        case CauseKind.POLICY if not gpus_before:
            return record.why  # it has only just been given these GPUs: something else ended it
        case CauseKind.POLICY if change.gpus != gpus_before:
            return f"resized from {gpus_before} to {gpus_of(change.gpus)} by a restart: {reason_of(change)}"
        case CauseKind.POLICY:
            return f"moved to other GPUs by a restart: {reason_of(change)}"
    return reason_of(change)
