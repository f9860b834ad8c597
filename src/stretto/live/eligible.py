"""Which jobs may be given GPUs at all, and what keeps the others from it before any policy is asked."""

from enum import StrEnum

from stretto.live.jobfile import After
from stretto.live.records import JobRecord
from stretto.live.state import State


class Reason(StrEnum):
    """Why a job is not shown to the policy."""

    NONE = ""
    ENDING = "ENDING"  # it was cancelled, or ran out of time; its processes are ending
    HELD = "HELD"  # until somebody releases it
    NOT_BEFORE = "NOT_BEFORE"  # its start time, or the pause before it is tried again, has not come
    DEPENDENCY = "DEPENDENCY"  # another job comes first
    NEVER = "DEPENDENCY_FAILED"  # another job came first, and ended in the wrong way
    ARRAY_LIMIT = "ARRAY_LIMIT"  # as many of its array run as may
    QUOTA = "QUOTA"  # its queue holds as many GPUs as it may


def why_not_yet(state: State, record: JobRecord, now_s: float) -> Reason:
    """The first reason that applies. A job that holds GPUs keeps its place in the snapshot."""
    if record.ending:
        return Reason.ENDING
    if record.held:
        return Reason.HELD
    if record.books.held_gpus:
        return Reason.NONE
    if record.not_before_s > now_s:
        return Reason.NOT_BEFORE
    return _dependencies(state, record)


def _dependencies(state: State, record: JobRecord) -> Reason:
    for one in record.spec.depends_on:
        first = state.jobs.get(one.job)
        if first is None:
            return Reason.NEVER
        succeeded = first.state == "COMPLETED"
        started = first.attempt > 0 or first.has_ended
        if one.when is After.STARTED and started:
            continue
        if not first.has_ended:
            return Reason.DEPENDENCY
        met = {After.SUCCEEDED: succeeded, After.FAILED: not succeeded, After.ENDED: True}
        if not met.get(one.when, True):
            return Reason.NEVER
    return Reason.NONE


def depends_on_others(record: JobRecord) -> bool:
    """Whether `why_not_yet` looks at more than the record and the clock."""
    return bool(record.spec.depends_on)
