"""Which user may submit what: queues have users, and a priority above 0 is for operators."""

from collections.abc import Iterable
from dataclasses import replace

from stretto.jobfile import JobSpec
from stretto.model import DEFAULT_QUEUE, InputError
from stretto.model.queue import may_use, users_of
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State

LARGEST_OWN_PRIORITY = 0  # that users may give their jobs


class NotPermitted(InputError):
    """A user asks for what only others may have. what: for the audit."""

    def __init__(self, said: str, what: str) -> None:
        super().__init__(said)
        self.what = what


def admitted(state: State, spec: JobSpec, user: str, is_operator: bool) -> JobSpec:
    """The job as it enters: in a queue that its owner may use, with a priority that they may give.

    Raises NotPermitted, and InputError for a queue that there is not.
    """
    check_priority([LARGEST_OWN_PRIORITY], _priority_of(state, spec), is_operator)
    if not has_closed_queues(state):
        return spec
    name = spec.queue or DEFAULT_QUEUE
    queues = state.queues
    check_queue(state, name, [candidate for candidate in queues if may_use(queues, candidate, user)])
    if not may_use(queues, name, user):
        users = " and ".join(users_of(queues, name) or ()) or "nobody"
        raise NotPermitted(
            f"queue {name} is for {users}, not for {user or 'you'}", "submit to a queue of others"
        )
    return replace(spec, queue=name)


def _priority_of(state: State, spec: JobSpec) -> int:
    """What a job asks for, as a number or by the name of a class. Raises InputError for an unknown one."""
    if not spec.priority_class:
        return spec.priority
    if spec.priority_class not in state.priority_classes:
        known = ", ".join(["one of a whole number", *sorted(state.priority_classes)])
        expected = known if state.priority_classes else "a whole number, since no priority class has been set"
        raise InputError(f"priority: expected {expected}, got {spec.priority_class!r}")
    return state.priority_classes[spec.priority_class].value


def has_closed_queues(state: State) -> bool:
    """Whether jobs may name only queues that an operator has set: as soon as one has been."""
    return bool(state.queues) or any(one.queue for one in state.reservations.values())


def check_queue(state: State, name: str, shown: Iterable[str] | None = None) -> None:
    """Raise InputError for a queue that has not been set. shown: those that the message names."""
    if name != DEFAULT_QUEUE and name not in state.queues:
        known = sorted({DEFAULT_QUEUE, *(state.queues if shown is None else shown)})
        raise InputError(f"queue: expected one of {', '.join(known)}, got {name!r}")


def check_new_priority(records: Iterable[JobRecord], priority: int, is_operator: bool) -> None:
    """Raise NotPermitted where some of these jobs would come sooner than their owner may have them come."""
    check_priority([record.job.priority for record in records], priority, is_operator)


def check_priority(before: Iterable[int], priority: int, is_operator: bool) -> None:
    """Raise NotPermitted for what is above 0 and above what an operator has given before."""
    if not is_operator and priority > max(LARGEST_OWN_PRIORITY, min(before, default=LARGEST_OWN_PRIORITY)):
        raise NotPermitted(f"priority {priority}: above 0 needs the role operator", "raise a priority")
