"""The elastic allocator of Cornucopia, section 4.4: greedy allocation and partial preemption.

Algorithm 2 is `allocate_greedily`, algorithm 3 is `preempt`. Both work on the GPUs of one type, on arrays.
Work per call is a few passes over columns, and Python steps for the jobs that run. It takes steps for as many
waiting jobs as there are GPUs to be had, never for all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from stretto.model import BoolArray, IntArray
from stretto.policies.cornucopia.mlfq import BATCH, INTERACTIVE, LONG
from stretto.policies.cornucopia.profiler import factor_of_last_gpu, is_linear

ScalingFactors = Callable[[int], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The jobs that may hold GPUs of one type, by when they joined their queues; columns are (jobs,)."""

    queue: IntArray  # 1, 2 or 3
    held: IntArray  # GPUs now
    least: IntArray  # fewest GPUs to run on: all that it asks for where it is not elastic
    asked: IntArray  # R: GPUs up to which it comes before lower queues
    most: IntArray  # 2R: GPUs up to which it takes what no other job wants
    largest: IntArray  # GPUs beyond which it may keep what it holds, but get no other number
    elastic: BoolArray
    fixed: BoolArray  # keeps exactly what it holds
    factors: ScalingFactors  # S by position: scaling factor of the GPU on top of 0, 1, …


def allocate_greedily(jobs: Candidates, idle: int) -> IntArray:
    """Algorithm 2: (jobs,) GPUs of every job, starting from what they hold and W = `idle` GPUs.

    No job of queue 1 gets less than it holds, or than it asks for. While a job of queue 1 that one GPU would
    let run holds none, no elastic job of a lower queue holds any.

    Deviations (decision 0004). W counts what lower queues would have to give. So lines 8 to 13 preempt by
    algorithm 3 where the paper does it in a step of its own. A job that is not elastic gets all or nothing.
    What is left when every job has what it asked for is handed out too, up to the profiled 2R.
    """
    allocator = _Allocator(jobs, idle)
    # Lines 6 to 14: an interactive job gets R, or what is left.
    allocator.meet_requests(allocator.below_request(INTERACTIVE), INTERACTIVE)
    for queue in (BATCH, LONG):
        below = allocator.below_request(queue)
        # Jobs that are not elastic have a scaling factor of 1 (section 4.3), the largest, so they come first.
        allocator.meet_requests(below[~jobs.elastic[below]], queue)
        # Lines 15 to 17: GPU by GPU to the job with the largest scaling factor of the same priority.
        allocator.grow_by_scaling_factor(below[jobs.elastic[below]], queue)
    allocator.hand_out_surplus()
    return allocator.gpus


class _Allocator:
    """Counts while they are being worked out: R, S and W of algorithms 2 and 3."""

    def __init__(self, jobs: Candidates, idle: int) -> None:
        self.jobs = jobs
        self.idle = idle  # W, without what could be preempted
        self.gpus = jobs.held.astype(np.int64)
        self._profiles: dict[int, tuple[float, ...]] = {}
        running = np.flatnonzero((jobs.held > 0) & ~jobs.fixed)
        self.elastic = running[jobs.elastic[running]]  # may be made smaller
        self.whole = running[~jobs.elastic[running]]  # may only be stopped
        # Heaps of jobs to take from, made at the first need: most decisions take nothing.
        self._surplus: list[tuple[float, int, int, int]] | None = None
        self._victims: list[tuple[int, bool, float, int, int]] | None = None

    # ── algorithm 2 ───────────────────────────────────────────────────────────────────────────────

    def below_request(self, queue: int) -> IntArray:
        """Positions in a queue that have less than they ask for, in order."""
        jobs = self.jobs
        return np.flatnonzero((jobs.queue == queue) & (self.gpus < jobs.asked) & ~jobs.fixed)

    def available_to(self, queue: int) -> int:
        """W for a queue: idle GPUs, surplus ones, and those of strictly lower queues."""
        held = self.gpus[self.elastic]
        lower = self.jobs.queue[self.elastic] > queue
        surplus = np.maximum(held - self.jobs.asked[self.elastic], 0)
        stopped = self.gpus[self.whole][self.jobs.queue[self.whole] > queue]
        return self.idle + int(np.where(lower, held, surplus).sum()) + int(stopped.sum())

    def meet_requests(self, positions: IntArray, queue: int) -> None:
        """Lines 6 to 14: what they ask for, in order; an elastic job takes less where there is less."""
        left = self.available_to(queue) if positions.size else 0
        # W only falls, so a job whose first step does not fit now never will: it is not looked at.
        for position in positions[self._first_step(positions) <= left].tolist():
            if left <= 0:
                return  # line 4
            missing = int(self.jobs.asked[position] - self.gpus[position])
            step = self._step(position)
            if step > left:
                continue
            wanted = min(missing, left) if self.jobs.elastic[position] else missing  # lines 8 and 12
            self.preempt(wanted, queue)
            self._give(position, wanted)
            left -= wanted  # line 18

    def grow_by_scaling_factor(self, positions: IntArray, queue: int) -> None:
        """Lines 15 to 17: one GPU at a time to the largest S; ties: fewest GPUs, then the first in order."""
        asked = self.jobs.asked
        left = self.available_to(queue) if positions.size else 0
        while left > 0:  # line 2
            before = left
            heap = [self._bid(position) for position in self._bidders(positions, left)]
            heapify(heap)
            while heap and left > 0:
                negative, _, position = heappop(heap)
                step = self._step(position)
                if negative >= 0:
                    break  # no job is faster with one more
                if step > left:
                    continue
                self.preempt(step, queue)
                self._give(position, step)
                left -= step
                if self.gpus[position] < asked[position]:
                    heappush(heap, self._bid(position))  # line 18: S has changed
            positions = positions[self.gpus[positions] < asked[positions]]
            # Another pass lets in jobs that `_bidders` left out; without progress there are none.
            if left == before:
                return

    def hand_out_surplus(self) -> None:
        """Idle GPUs go beyond R to the jobs that they make faster; queue 1 comes last."""
        jobs = self.jobs
        if self.idle <= 0:
            return
        grows = jobs.elastic & ~jobs.fixed & (self.gpus > 0) & (self.gpus < jobs.most)
        self._surplus = []  # no job is made smaller for this
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
        """Sorts a job among those that want one more GPU: the largest S first."""
        gpus = int(self.gpus[position])
        factors = self._factors(position)
        factor = factors[gpus] if gpus < len(factors) else 0.0
        key = -1.0 if is_linear(factor) else -factor  # linear jobs are alike, as for algorithm 3
        return key, gpus, position

    def _first_step(self, positions: IntArray) -> IntArray:
        waits = self.gpus[positions] == 0
        steps: IntArray = np.where(waits, self.jobs.least[positions], 1)
        return steps

    def _step(self, position: int) -> int:
        return int(self.jobs.least[position]) if self.gpus[position] == 0 else 1

    def _give(self, position: int, count: int) -> None:
        self.gpus[position] += count
        self.idle -= count

    # ── algorithm 3 ───────────────────────────────────────────────────────────────────────────────

    def preempt(self, required: int, queue: int) -> None:
        """Algorithm 3: GPU by GPU from the job with the smallest S, until req_high = `required` are idle.

        Surplus beyond R goes first, whatever its queue, then the lowest queue gives. Model-parallel jobs, and
        all that are not elastic, are stopped whole, and only when no elastic job has anything left to give.
        """
        while self.idle < required:  # line 2
            if not (self._take_surplus() or self._preempt_one_gpu(queue)):
                self._stop_below(queue, required - self.idle)

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
        return (self._last_factor(position, gpus), -int(self.jobs.queue[position]), -gpus, -position)

    def _preempt_one_gpu(self, queue: int) -> bool:
        """Lines 3 to 6: one GPU of the lowest queue, of sub-linear jobs first, by the smallest S.

        Linear jobs are alike: of those, the one with most GPUs (section 4.4), then the last in order.
        """
        if self._victims is None:
            lower = self.elastic[self.jobs.queue[self.elastic] > INTERACTIVE]
            self._victims = [self._victim(position) for position in lower.tolist() if self.gpus[position] > 0]
            heapify(self._victims)
        # The heap has the lowest queue on top: where that is not below `queue`, no other is.
        if not self._victims or -self._victims[0][0] <= queue:
            return False
        position = -heappop(self._victims)[-1]
        self._take_one(position)  # line 5
        if self.gpus[position] > 0:
            heappush(self._victims, self._victim(position))  # line 6
        return True

    def _victim(self, position: int) -> tuple[int, bool, float, int, int]:
        gpus = int(self.gpus[position])
        factor = self._last_factor(position, gpus)
        linear = is_linear(factor)
        return (-int(self.jobs.queue[position]), linear, 0.0 if linear else factor, -gpus, -position)

    def _last_factor(self, position: int, gpus: int) -> float:
        """S of a job's last GPU; 1 where it would stop without that."""
        return factor_of_last_gpu(self._factors(position), gpus) if gpus > self.jobs.least[position] else 1.0

    def _factors(self, position: int) -> tuple[float, ...]:
        if position not in self._profiles:
            self._profiles[position] = self.jobs.factors(position)
        return self._profiles[position]

    def _take_one(self, position: int) -> None:
        """One GPU, all of a job that cannot run on fewer, or all beyond the most that it may have by now.

        A quota or its owner may have lowered that since.
        """
        gpus = int(self.gpus[position])
        taken = max(1, gpus - int(self.jobs.largest[position])) if gpus > self.jobs.least[position] else gpus
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
