"""What is given out of a limit, so that parts of its queue have what their quotas guarantee them."""

from collections import Counter
from collections.abc import Iterable

from stretto.scheduler.constraints.hierarchy import Hierarchy


class Parts:
    """Parts of a queue while GPUs of it are given out, job by job, to who comes first.

    As long as jobs of a part are to come, what they can have within its quota is kept for them.
    """

    def __init__(self, tree: Hierarchy, around: str, planned: Iterable[tuple[str, int]]) -> None:
        """Nothing is given out. planned: queue and GPUs of each job that is to come."""
        self._tree, self._around = tree, around
        self._to_come: Counter[str] = Counter()  # GPUs planned for jobs of a part
        self._given: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()  # for a part
        self._kept_in: Counter[str] = Counter()  # for all parts of a queue
        for queue, gpus in planned:
            for part in self._line(queue):
                self._to_come[part] += gpus
        for part in sorted(self._to_come, key=lambda one: -len(tree.path(one))):
            self._keep(part)

    def kept_for_others(self, queue: str) -> int:
        """GPUs that a job of a queue has to leave to jobs of other parts."""
        line = self._line(queue)
        return sum(self._kept_in[one] for one in (self._around, *line)) - sum(self._kept[one] for one in line)

    def give(self, queue: str, planned: int, given: int) -> None:
        """A job of a queue was to have so many GPUs, and has been given so many."""
        for part in reversed(self._line(queue)):
            self._to_come[part] -= planned
            self._given[part] += given
            self._keep(part)

    def _line(self, queue: str) -> list[str]:
        """Parts that a queue is in, the outermost first."""
        return self._tree.guarded(queue, within=self._around)

    def _keep(self, part: str) -> None:
        around = self._tree.guarded_path(part)[-2]
        own = min(self._tree.quota(part) - self._given[part], self._to_come[part])
        kept = max(own, self._kept_in[part], 0)
        self._kept_in[around] += kept - self._kept[part]
        self._kept[part] = kept
