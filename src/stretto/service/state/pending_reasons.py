"""Which jobs may be given GPUs at all, and what keeps the others from it before any policy is asked."""

from enum import StrEnum

from stretto.jobfile import After
from stretto.service.state.records import JobRecord
from stretto.service.state.relations import known_outcome
from stretto.service.state.state import State


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
    first = dependencies(state, record)
    if first is not Reason.NONE or record.max_parallel is None:
        return first

    def ready(task: JobRecord) -> bool:
        shut = task.ending or task.held or task.not_before_s > now_s
        return not shut and dependencies(state, task) is Reason.NONE

    admitted = state.relations.admitted(record, state.jobs, ready, (state.seq, now_s))
    return Reason.NONE if admitted else Reason.ARRAY_LIMIT


def dependencies(state: State, record: JobRecord) -> Reason:
    """Whether everybody who comes first has done what was asked; what can never be is said at once."""
    reason = Reason.NONE
    for dependency, name in zip(record.spec.depends_on, names_of(record), strict=True):
        fate = state.relations.fate(state.jobs, name)
        if fate is None:
            if name not in record.outcomes:
                return Reason.NEVER
            fate = known_outcome(record.outcomes[name])
        met = {
            After.STARTED: fate.started,
            After.SUCCEEDED: fate.succeeded,
            After.FAILED: fate.ended and fate.failed,
            After.ENDED: fate.ended,
        }[dependency.when]
        never = {After.SUCCEEDED: fate.failed, After.FAILED: fate.succeeded}.get(dependency.when, False)
        if never:
            return Reason.NEVER
        if not met:
            reason = Reason.DEPENDENCY
    return reason


def names_of(record: JobRecord) -> tuple[str, ...]:
    """Who comes first, by id; as they were written where nobody has looked them up."""
    return record.after or tuple(one.job for one in record.spec.depends_on)


def depends_on_others(record: JobRecord) -> bool:
    """Whether `why_not_yet` looks at more than the record and the clock."""
    return bool(record.spec.depends_on) or record.max_parallel is not None
