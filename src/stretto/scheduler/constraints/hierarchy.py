"""Queues within queues: what a queue is guaranteed and limited to counts for all that is in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stretto.model import DEFAULT_QUEUE, Constraints
from stretto.model.fair_share import ROOT
from stretto.model.queue import line_of


@dataclass(frozen=True)
class Hierarchy:
    """The tree of queues. A queue is on its own line, the last of it."""

    constraints: Constraints
    _lines: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def line(self, queue: str) -> tuple[str, ...]:
        """A queue and those that it is in, the outermost first."""
        if queue not in self._lines:
            name = queue or self._default()
            self._lines[queue] = tuple(line_of(name, self.constraints.parents))
        return self._lines[queue]

    def _default(self) -> str:
        """The queue of jobs that name none, where it has a quota."""
        default = self.constraints.queues.get(DEFAULT_QUEUE)
        return DEFAULT_QUEUE if default is not None and default.is_default else ROOT

    def guarded(self, queue: str, beside: str | None = None) -> list[str]:
        """Queues on the line of one that have a quota, without those that another one is in, too."""
        shared = () if beside is None else self.line(beside)
        return [one for one in self.line(queue) if one in self.constraints.queues and one not in shared]

    def parent(self, queue: str) -> str:
        """The queue that one is a part of; the root for none."""
        return self.constraints.parents.get(queue, ROOT)

    def claims(self, queue: str) -> Iterator[tuple[str, str | None]]:
        """Where a job of a queue may claim, nearest first: (queue around it, part of that which it is in).

        Of a part it is compared with its siblings. A job without a queue is beside the outermost ones.
        """
        line = self.line(queue)
        if not line:
            yield ROOT, None
        for part in reversed(line):
            yield self.parent(part), part

    def quota(self, queue: str) -> int:
        """GPUs that a queue with a quota is guaranteed."""
        return self.constraints.queues[queue].quota_gpus or 0

    def most(self, queue: str) -> int:
        """GPUs that a queue with a quota may hold."""
        return self.quota(queue) + self.constraints.queues[queue].borrow_gpus

    def innermost_first(self) -> list[str]:
        """Queues with a quota, as they were set, those in others before these."""
        names = list(self.constraints.queues)
        return sorted(names, key=lambda name: -len(self.line(name)))

    def add(self, held: dict[str, int], queue: str, gpus: int) -> None:
        """A job of a queue comes to hold so many more GPUs, in place."""
        for one in self.line(queue):
            if one in held:
                held[one] += gpus

    def spare(self, held: Mapping[str, int], queue: str, beside: str | None = None) -> int | None:
        """What a queue can give to another without any quota around its jobs being broken; None: anything."""
        return min((held[one] - self.quota(one) for one in self.guarded(queue, beside)), default=None)
