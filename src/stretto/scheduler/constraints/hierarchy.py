"""Queues within queues: what a queue is guaranteed and limited to counts for all that is in it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stretto.model import DEFAULT_QUEUE, Constraints, Queue
from stretto.model.queue import ROOT, guarantor_of, line_of


@dataclass(frozen=True)
class Hierarchy:
    """The tree of queues.

    Jobs directly in a queue that has parts with quotas are in a part of their own. It is guaranteed what the
    others leave of the quota. Methods that take the queue of a job mean that part.
    """

    constraints: Constraints
    queues: dict[str, Queue] = field(init=False)  # those with a quota, and such parts
    _own_parts: dict[str, str] = field(default_factory=dict)  # by queue
    _lines: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add the parts for jobs directly in a queue; decisions of old logs knew none."""
        configured, parents = self.constraints.queues, self.constraints.parents
        object.__setattr__(self, "queues", dict(configured))
        if not parents or not self.constraints.quotas_kept:
            return
        in_parts: Counter[str] = Counter()
        for name, queue in configured.items():
            if around := guarantor_of(name, configured, parents):
                in_parts[around] += queue.quota_gpus or 0
        for name, gpus in in_parts.items():
            quota = max((configured[name].quota_gpus or 0) - gpus, 0)
            borrow = (configured[name].quota_gpus or 0) + configured[name].borrow_gpus - quota
            own = f"{name} outside of its parts"
            self._own_parts[name] = own
            self.queues[own] = Queue(own, quota, borrow, parent=name)

    def line(self, queue: str) -> tuple[str, ...]:
        """What a job of a queue is in, the outermost first."""
        if queue not in self._lines:
            line = line_of(queue or self._default(), self.constraints.parents)
            nearest = next((one for one in reversed(line) if one in self.queues), ROOT)
            own = self._own_parts.get(nearest)
            self._lines[queue] = (*line, own) if own is not None else tuple(line)
        return self._lines[queue]

    def path(self, queue: str) -> tuple[str, ...]:
        """A queue, the last of it, and those that it is in."""
        if self._is_own_part(queue):
            return (*line_of(self.parent(queue), self.constraints.parents), queue)
        return tuple(line_of(queue, self.constraints.parents))

    def _is_own_part(self, name: str) -> bool:
        """Whether this is the part for jobs directly in a queue."""
        return name in self.queues and name not in self.constraints.queues

    def _default(self) -> str:
        """The queue of jobs that name none, where it has a quota."""
        default = self.constraints.queues.get(DEFAULT_QUEUE)
        return DEFAULT_QUEUE if default is not None and default.is_default else ROOT

    def guarded(self, queue: str, beside: str | None = None, within: str | None = None) -> list[str]:
        """Queues with a quota that a job of one is in.

        beside: without those that a job of this one is in, too; within: without this one and those around it.
        """
        shared = () if beside is None else self.line(beside)
        around = () if within is None else self.path(within)
        return [
            name
            for name in self.line(queue)
            if name in self.queues and name not in shared and name not in around
        ]

    def guarded_path(self, queue: str) -> list[str]:
        """A queue and those that it is in, as far as they have a quota."""
        return [one for one in self.path(queue) if one in self.queues]

    def parent(self, queue: str) -> str:
        """The queue that one is a part of; the root for none."""
        if self._is_own_part(queue):
            return self.queues[queue].parent
        return self.constraints.parents.get(queue, ROOT)

    def claims(self, queue: str) -> Iterator[tuple[str, str | None]]:
        """Where a job of a queue may claim, nearest first: (queue around it, part of that which it is in).

        Of a part it is compared with its siblings. A job without a queue is beside the outermost ones.
        """
        line = self.line(queue)
        if not line:
            yield ROOT, None
        has_own_part = bool(line) and self._is_own_part(line[-1])
        for part in reversed(line):
            if part in self.queues or not has_own_part:
                yield self.parent(part), part

    def quota(self, queue: str) -> int:
        """GPUs that a queue with a quota is guaranteed."""
        return self.queues[queue].quota_gpus or 0

    def most(self, queue: str) -> int:
        """GPUs that a queue with a quota may hold."""
        return self.quota(queue) + self.queues[queue].borrow_gpus

    def innermost_first(self) -> list[str]:
        """Queues with a quota, as they were set, those in others before these."""
        return sorted(self.queues, key=lambda name: -len(self.path(name)))

    def add(self, held: dict[str, int], queue: str, gpus: int) -> None:
        """A job of a queue comes to hold so many more GPUs, in place."""
        for one in self.line(queue):
            if one in held:
                held[one] += gpus

    def spare(
        self, held: Mapping[str, int], queue: str, beside: str | None = None, within: str | None = None
    ) -> int | None:
        """What a queue can give to another without any quota around its jobs being broken; None: anything."""
        guarded = self.guarded(queue, beside, within)
        return min((held[one] - self.quota(one) for one in guarded), default=None)
