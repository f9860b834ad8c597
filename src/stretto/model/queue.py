"""A queue of jobs, with the GPUs that it is guaranteed and those that it may borrow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stretto.model.errors import InputError

DEFAULT_QUEUE = "default"  # of jobs that name none


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with its bounds, which hold for all queues in it, too."""

    name: str
    quota_gpus: int | None = None  # guaranteed to its jobs; None: nothing is, and nothing limits them
    borrow_gpus: int = 0  # that they may hold beyond the quota while others leave them
    weight: float = 1.0
    users: tuple[str, ...] | None = None  # who may use it; None: as what it is in, else everybody
    is_default: bool = False  # of jobs that name none; without a quota it has what is left over
    shares: float = 1.0  # beside those of its siblings
    parent: str = ""  # the queue that it is a part of


def users_of(queues: Mapping[str, Queue], name: str) -> tuple[str, ...] | None:
    """Who may use a queue: its own list counts, else that of the nearest queue around it; None: everybody."""
    for one in reversed(line_of(name, parents_of(queues))):
        if one in queues and queues[one].users is not None:
            return queues[one].users
    return None


def may_use(queues: Mapping[str, Queue], name: str, user: str) -> bool:
    """Whether a user's jobs may be in a queue."""
    users = users_of(queues, name)
    return users is None or user in users


def parents_of(queues: Mapping[str, Queue]) -> dict[str, str]:
    """By queue that is a part of another one, that one."""
    return {name: queue.parent for name, queue in queues.items() if queue.parent}


def line_of(queue: str, parents: Mapping[str, str]) -> list[str]:
    """A queue and those that it is in, the outermost first."""
    found: list[str] = []
    while queue and queue not in found:
        found.append(queue)
        queue = parents.get(queue, "")
    return found[::-1]


def guarantor_of(name: str, queues: Mapping[str, Queue], parents: Mapping[str, str]) -> str:
    """The nearest queue around one that has a quota, of which its own quota is a part; empty for none."""
    around = line_of(name, parents)[-2::-1]
    return next((one for one in around if one in queues and queues[one].quota_gpus is not None), "")


def with_quotas(
    queues: Mapping[str, Queue], capacity_gpus: int, *, counts_parts: bool = True
) -> dict[str, Queue]:
    """Queues that have a quota. The default queue has what is left over, and may borrow everything.

    Only where quotas are set, and where it is marked as such, which old logs do not do. counts_parts: quotas
    count of queues in one without a quota, too; in decisions of old logs they did not.
    """
    limited = {name: queue for name, queue in queues.items() if queue.quota_gpus is not None}
    default = queues.get(DEFAULT_QUEUE)
    if limited and default is not None and default.is_default and default.quota_gpus is None:
        parents = parents_of(queues)
        guaranteed = sum(
            queue.quota_gpus or 0
            for name, queue in limited.items()
            if not (guarantor_of(name, queues, parents) if counts_parts else queue.parent)
        )
        rest = max(capacity_gpus - guaranteed, 0)
        limited[DEFAULT_QUEUE] = replace(default, quota_gpus=rest, borrow_gpus=capacity_gpus)
    return limited


def check_queue_tree(queues: Mapping[str, Queue]) -> None:
    """Raise InputError where a queue is in one that there is not, or in itself, or quotas do not add up."""
    for name, queue in queues.items():
        if queue.parent and (queue.parent not in queues or DEFAULT_QUEUE in (name, queue.parent)):
            others = sorted(set(queues) - {name, DEFAULT_QUEUE})
            raise InputError(
                f"parent of queue {name}: expected one of {', '.join(others)}, got {queue.parent!r}"
                if others and name != DEFAULT_QUEUE
                else f"parent of queue {name}: there is no queue that it can be in, got {queue.parent!r}"
            )
        above, path = queue.parent, [name]
        while above:
            path.append(above)
            if above in path[:-1]:
                raise InputError(f"parent of queue {name}: it would be in itself: {' in '.join(path)}")
            above = queues[above].parent if above in queues else ""
    parents = parents_of(queues)
    for name, queue in queues.items():
        parts = [
            child
            for part, child in queues.items()
            if child.quota_gpus is not None and guarantor_of(part, queues, parents) == name
        ]
        total = sum(child.quota_gpus or 0 for child in parts)
        if queue.quota_gpus is not None and total > queue.quota_gpus:
            raise InputError(
                f"quota of queue {name}: expected at least {total} GPUs, which the queues in it are "
                f"guaranteed ({', '.join(child.name for child in parts)}), got {queue.quota_gpus}"
            )
