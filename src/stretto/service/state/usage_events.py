"""What events of a job tell of what its GPUs were held for."""

from stretto.service.state import job_events as happened
from stretto.service.state.job_events import Event
from stretto.service.state.records import JobRecord, by_owner, orphaned_by
from stretto.service.state.usage import Cause, CauseKind, Use
from stretto.service.state.workers import all_train

# States in which a job ends although nothing went wrong: what it did not save was not lost to anything.
ENDED_ON_PURPOSE = frozenset({"COMPLETED", "CANCELLED", "TIMEOUT"})
BEGINNINGS = (
    happened.WorkersRan,
    happened.WorkerReady,
    happened.WorkersReady,
    happened.Joined,
    happened.WorkersJoined,
)


def note_usage(record: JobRecord, event: Event, now_s: float, unix_s: float) -> None:
    """An event of its workers was folded: they may have begun to train, have saved, or have ended."""
    usage = record.usage
    match event:
        case happened.Checkpointed():
            usage.note(now_s, unix_s)
            usage.settle(Use.USEFUL)
        case happened.AttemptClosed() if event.attempt == record.closed:
            usage.note(now_s, unix_s)
            cause = _cause_of(record, event)
            is_over = event.outcome == "done" or record.ending in ENDED_ON_PURPOSE
            usage.settle(*((Use.USEFUL,) if is_over else (Use.LOST, cause)))
            usage.trains, usage.cause = False, cause
        case happened.Joined() | happened.WorkersJoined() if record.accounting.lost_s > usage.lost_s:
            usage.note(now_s, unix_s)
            usage.lose(record.accounting.lost_s - usage.lost_s, usage.changed_by)
            usage.lost_s = record.accounting.lost_s
    if isinstance(event, BEGINNINGS) and not usage.trains and record.is_open and all_train(record):
        usage.note(now_s, unix_s)
        usage.trains = True


def _cause_of(record: JobRecord, event: happened.AttemptClosed) -> Cause:
    """What is charged for the end of an attempt."""
    if event.outcome == "lost":
        return Cause(CauseKind.NODE, orphaned_by(record))
    return record.usage.changed_by if event.outcome == "left" else by_owner(record)


def end_usage(record: JobRecord, state: str, now_s: float, unix_s: float) -> None:
    """A job has come to its last state."""
    usage = record.usage
    usage.note(now_s, unix_s)
    if state in ENDED_ON_PURPOSE:
        usage.settle(Use.USEFUL)
    else:
        usage.settle(Use.LOST, by_owner(record))
    usage.trains = False
