"""From queues and scaling factors to counts, on the GPUs of one type: Cornucopia's algorithms 2 and 3.

Arrays in, arrays out. Work per call: a few passes over columns, and Python steps for the jobs that run, and
for as many waiting ones as there are GPUs to be had; never for all that wait.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from stretto.model import BoolArray, IntArray
from stretto.policies.cornucopia.mlfq import BATCH, INTERACTIVE, LONG
from stretto.policies.cornucopia.profiler import is_linear, loss_at

Gains = Callable[[int], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Contenders:
    """The jobs that may hold GPUs of one type, by when they joined their queues; columns are (jobs,)."""

    queue: IntArray  # 1, 2 or 3
    held: IntArray  # GPUs now
    least: IntArray  # fewest GPUs to run on: all that it asks for where it is not elastic
    asked: IntArray  # GPUs up to which it comes before lower queues
    most: IntArray  # GPUs up to which it takes what nobody else wants
    elastic: BoolArray
    fixed: BoolArray  # keeps exactly what it holds
    gains: Gains  # by position: worth of the GPU on top of 0, 1, …


def share_out(jobs: Contenders, idle: int) -> IntArray:
    """(jobs,) GPUs for everybody, starting from what they hold and some idle ones.

    Queue 1 in order gets what it asks for, taking from lower queues; then queue 2, then queue 3: first
    jobs that are not elastic, whole, then GPU by GPU whoever gains most; at last the surplus. A GPU that a
    job holds above what it asked for counts as idle for whoever has less than it asked for.

    Nobody in queue 1 gets less than it holds, or than it asks for. While a job of queue 1 that one GPU
    would let run holds none, no elastic job of a lower queue holds any.
    """
    sharing = _Sharing(jobs, idle)
    sharing.serve_whole(sharing.lacking(INTERACTIVE), INTERACTIVE)
    for queue in (BATCH, LONG):
        lacking = sharing.lacking(queue)
        sharing.serve_whole(lacking[~jobs.elastic[lacking]], queue)
        sharing.serve_greedily(lacking[jobs.elastic[lacking]], jobs.asked, queue)
    sharing.hand_out_surplus()
    return sharing.gpus


class _Sharing:
    """Counts while they are being worked out."""

    def __init__(self, jobs: Contenders, idle: int) -> None:
        self.jobs = jobs
        self.idle = idle
        self.gpus = jobs.held.astype(np.int64)
        self._curves: dict[int, tuple[float, ...]] = {}
        running = np.flatnonzero((jobs.held > 0) & ~jobs.fixed)
        self.elastic = running[jobs.elastic[running]]  # who may be made smaller
        self.whole = running[~jobs.elastic[running]]  # who may be stopped
        self._surplus: list[tuple[float, int, int, int]] | None = None
        self._victims: list[tuple[int, bool, float, int, int]] | None = None

    def lacking(self, queue: int) -> IntArray:
        """Positions in a queue that have less than they ask for, in order."""
        jobs = self.jobs
        return np.flatnonzero((jobs.queue == queue) & (self.gpus < jobs.asked) & ~jobs.fixed)

    def to_be_had(self, queue: int) -> int:
        """GPUs that jobs of a queue may get: idle ones, surplus ones, and those of strictly lower queues."""
        held = self.gpus[self.elastic]
        lower = self.jobs.queue[self.elastic] > queue
        surplus = np.maximum(held - self.jobs.asked[self.elastic], 0)
        stopped = self.gpus[self.whole][self.jobs.queue[self.whole] > queue]
        return self.idle + int(np.where(lower, held, surplus).sum()) + int(stopped.sum())

    def serve_whole(self, positions: IntArray, queue: int) -> None:
        """What they ask for, in order; an elastic job takes less where there is less."""
        left = self.to_be_had(queue) if positions.size else 0
        for position in positions[self._first_step(positions) <= left].tolist():
            if left <= 0:
                return
            missing = int(self.jobs.asked[position] - self.gpus[position])
            step = self._step(position)
            if step > left:
                continue
            wanted = min(missing, left) if self.jobs.elastic[position] else missing
            self._obtain(wanted, queue)
            self._give(position, wanted)
            left -= wanted

    def serve_greedily(self, positions: IntArray, cap: IntArray, queue: int) -> None:
        """GPU by GPU to the largest gain, up to a cap; ties to the fewest GPUs, then the first in order."""
        left = self.to_be_had(queue) if positions.size else 0
        while left > 0:
            before = left
            heap = [self._bid(position) for position in self._bidders(positions, left)]
            heapify(heap)
            while heap and left > 0:
                negative, _, position = heappop(heap)
                step = self._step(position)
                if negative >= 0:
                    break  # nobody gains anything any more
                if step > left:
                    continue
                self._obtain(step, queue)
                self._give(position, step)
                left -= step
                if self.gpus[position] < cap[position]:
                    heappush(heap, self._bid(position))
            positions = positions[self.gpus[positions] < cap[positions]]
            if left == before:
                return

    def hand_out_surplus(self) -> None:
        """What is idle now goes to those who gain by it, beyond what they asked for; queue 1 comes last."""
        jobs = self.jobs
        if self.idle <= 0:
            return
        grows = jobs.elastic & ~jobs.fixed & (self.gpus > 0) & (self.gpus < jobs.most)
        self._surplus = []  # nobody is made smaller for this
        for queue in (BATCH, LONG, INTERACTIVE):
            self._grow_on_idle(np.flatnonzero(grows & (jobs.queue == queue)))

    def _grow_on_idle(self, positions: IntArray) -> None:
        heap = [self._bid(position) for position in positions.tolist()] if self.idle > 0 else []
        heapify(heap)
        while heap and self.idle > 0 and heap[0][0] < 0:
            _, _, position = heappop(heap)
            self._give(position, 1)
            if self.gpus[position] < self.jobs.most[position]:
                heappush(heap, self._bid(position))

    def _bidders(self, positions: IntArray, left: int) -> Iterable[int]:
        """Of those that run all, of those that wait as many as could be served: each takes a GPU at least."""
        waits = self.gpus[positions] == 0
        waiting = positions[waits]
        fits = waiting[self._first_step(waiting) <= left][:left]
        return [*positions[~waits].tolist(), *fits.tolist()]

    def _bid(self, position: int) -> tuple[float, int, int]:
        gpus = int(self.gpus[position])
        gains = self._gains(position)
        gain = gains[gpus] if gpus < len(gains) else 0.0
        return (
            -1.0 if is_linear(gain) else -gain,
            gpus,
            position,
        )  # linear jobs are alike, as for algorithm 3

    def _first_step(self, positions: IntArray) -> IntArray:
        waits = self.gpus[positions] == 0
        steps: IntArray = np.where(waits, self.jobs.least[positions], 1)
        return steps

    def _step(self, position: int) -> int:
        return int(self.jobs.least[position]) if self.gpus[position] == 0 else 1

    def _give(self, position: int, count: int) -> None:
        self.gpus[position] += count
        self.idle -= count

    # ── taking away ───────────────────────────────────────────────────────────────────────────────

    def _obtain(self, wanted: int, queue: int) -> None:
        """Have so many idle GPUs: of the surplus first, then of lower queues, at last by stopping jobs."""
        while self.idle < wanted:
            if not (self._take_surplus() or self._take_from_below(queue)):
                self._stop_below(queue, wanted - self.idle)

    def _take_surplus(self) -> bool:
        """One GPU beyond what its job asked for, the least missed; ties: lower queue, more GPUs, later."""
        if self._surplus is None:
            above = self.elastic[self.gpus[self.elastic] > self.jobs.asked[self.elastic]]
            self._surplus = [self._spare(position) for position in above.tolist()]
            heapify(self._surplus)
        if not self._surplus:
            return False
        position = -heappop(self._surplus)[-1]
        self._take_one(position)
        if self.gpus[position] > self.jobs.asked[position]:
            heappush(self._surplus, self._spare(position))
        return True

    def _spare(self, position: int) -> tuple[float, int, int, int]:
        gpus = int(self.gpus[position])
        return (self._loss(position, gpus), -int(self.jobs.queue[position]), -gpus, -position)

    def _take_from_below(self, queue: int) -> bool:
        """Algorithm 3: one GPU of the lowest queue, of sub-linear jobs first, the least missed.

        Linear jobs are alike: of those, the one with most GPUs, then the last in order.
        """
        if self._victims is None:
            lower = self.elastic[self.jobs.queue[self.elastic] > INTERACTIVE]
            self._victims = [self._victim(position) for position in lower.tolist() if self.gpus[position] > 0]
            heapify(self._victims)
        if not self._victims or -self._victims[0][0] <= queue:
            return False
        position = -heappop(self._victims)[-1]
        self._take_one(position)
        if self.gpus[position] > 0:
            heappush(self._victims, self._victim(position))
        return True

    def _victim(self, position: int) -> tuple[int, bool, float, int, int]:
        gpus = int(self.gpus[position])
        loss = self._loss(position, gpus)
        linear = is_linear(loss)
        return (-int(self.jobs.queue[position]), linear, 0.0 if linear else loss, -gpus, -position)

    def _loss(self, position: int, gpus: int) -> float:
        return loss_at(self._gains(position), gpus) if gpus > self.jobs.least[position] else 1.0

    def _gains(self, position: int) -> tuple[float, ...]:
        if position not in self._curves:
            self._curves[position] = self.jobs.gains(position)
        return self._curves[position]

    def _take_one(self, position: int) -> None:
        """One GPU, or all of a job that cannot run on fewer."""
        gpus = int(self.gpus[position])
        taken = 1 if gpus > self.jobs.least[position] else gpus
        self.gpus[position] -= taken
        self.idle += taken

    def _stop_below(self, queue: int, missing: int) -> None:
        """Stop a job that is not elastic, of the lowest queue: the smallest that suffices, or the largest."""
        lower = [p for p in self.whole.tolist() if self.jobs.queue[p] > queue and self.gpus[p] > 0]
        lowest = max(int(self.jobs.queue[p]) for p in lower)
        able = [p for p in lower if self.jobs.queue[p] == lowest]
        enough = [p for p in able if self.gpus[p] >= missing]
        if enough:
            position = min(enough, key=lambda p: (int(self.gpus[p]), -p))
        else:
            position = max(able, key=lambda p: (int(self.gpus[p]), p))
        self.idle += int(self.gpus[position])
        self.gpus[position] = 0
