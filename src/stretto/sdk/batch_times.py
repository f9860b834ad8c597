"""How long a worker takes for batches of requests, and how many it may answer together.

A request may just miss a batch, and then waits for two of them. So the largest batch is the one of which two
fit into the latency. It is found by trying: one more request while that fits, fewer where it does not.
"""

from dataclasses import dataclass

WARM_UP = 3  # batches that are not counted: caches are cold; chosen
LEAST_BATCHES = 3  # of a size before anything follows from it; chosen
FORGETS = 20  # batches of a size whose mean counts; chosen
AGAIN = 200  # batches after which a size that was too large is tried again; chosen


@dataclass(slots=True)
class Mean:
    """Of the times of one size of batch."""

    count: int = 0
    seconds: float = 0.0
    last: int = 0  # the number of the last such batch

    def add(self, seconds: float, number: int) -> None:
        """Older ones count less and less."""
        self.count += 1
        self.seconds += (seconds - self.seconds) / min(self.count, FORGETS)
        self.last = number


class BatchTimes:
    """Of one worker. latency_s: 0 where none was promised, so that only `most` bounds a batch."""

    def __init__(self, most: int, latency_s: float) -> None:
        self.most, self.latency_s = most, latency_s
        self.largest = 1 if latency_s else most
        self._times: dict[int, Mean] = {}
        self._number = 0

    def add(self, size: int, seconds: float) -> None:
        """A batch took so long."""
        self._number += 1
        if self._number <= WARM_UP:
            return
        self._times.setdefault(size, Mean()).add(seconds, self._number)
        if self.latency_s and size >= self.largest and self._times[size].count >= LEAST_BATCHES:
            self.largest = self._next(size, self._times[size].seconds)

    def _next(self, size: int, seconds: float) -> int:
        """The largest batch after batches of the largest size took so long."""
        share = self.latency_s / (2 * seconds)  # of what they may take
        if share < 1:
            smaller = [known for known in self._times if known < size and self._fits(known)]
            return max(smaller, default=max(int(size * share), 1))
        # A batch of k times as many takes at most k times as long.
        larger = max(min(int(size * share), 2 * size), size + 1)
        if not self._fits(size + 1, unknown=True):
            return size
        return min(larger, self.most)

    def _fits(self, size: int, unknown: bool = False) -> bool:
        """Whether two such batches fit into the latency; unknown: of a size that was not tried of late."""
        known = self._times.get(size)
        if known is None or known.count < LEAST_BATCHES:
            return unknown
        fits = 2 * known.seconds <= self.latency_s
        return fits or (unknown and self._number - known.last > AGAIN)

    def forget(self) -> None:
        """Other workers serve beside this one from now on, which may be in its way."""
        self._times = {}

    def points(self, nodes: int, gpus: int) -> list[list[float]]:
        """As reports have them: of powers of two, and from the largest batch on."""
        return [
            [nodes, gpus, size, 1, mean.seconds, mean.seconds]
            for size, mean in sorted(self._times.items())
            if mean.count >= LEAST_BATCHES and (size >= self.largest or size & (size - 1) == 0)
        ]
