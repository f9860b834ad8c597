"""In which order, and on which GPU type, do jobs cost least? Branch and bound over sequences.

Hydra (Yang et al., IEEE Trans. Computers 2023). The cost of a sequence is Σ completion time + ω Σ tardiness
when every job starts, in that order, as soon as its type has enough GPUs free.
"""

import heapq
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from stretto.model import FloatArray, IntArray

Free = tuple[tuple[float, ...], ...]  # by type: when each GPU is free, seconds from now, ascending
Prefix = tuple[tuple[int, int, float], ...]  # (job, type, start) in order


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is to be sequenced. Times are seconds from now."""

    duration_s: FloatArray  # (jobs, types) on the GPUs asked for; infinite where a job cannot run
    gpus: IntArray  # (jobs,)
    due_s: FloatArray  # (jobs,) infinite without a deadline, negative once it is over
    age_s: FloatArray  # (jobs,) since submission
    models: tuple[str, ...]  # (jobs,) what they train
    free_s: Free

    def of(self, rows: IntArray) -> "Problem":
        """The same for some of the jobs."""
        return replace(
            self,
            duration_s=self.duration_s[rows],
            gpus=self.gpus[rows],
            due_s=self.due_s[rows],
            age_s=self.age_s[rows],
            models=tuple(self.models[row] for row in rows.tolist()),
        )

    def ends(self, job: int, free_s: Free) -> list[tuple[float, float, int]]:
        """(end, start, type) wherever the job can run."""
        asks = int(self.gpus[job])
        duration_s = self.duration_s[job].tolist()
        return [
            (free[asks - 1] + duration_s[kind], free[asks - 1], kind)
            for kind, free in enumerate(free_s)
            if duration_s[kind] < inf and asks <= len(free)
        ]

    def price(self, job: int, end_s: float, weight: float) -> float:
        """Completion time and weighted tardiness of one job."""
        return float(self.age_s[job] + end_s + weight * max(end_s - self.due_s[job], 0.0))

    def after(self, job: int, kind: int, end_s: float, free_s: Free) -> Free:
        """The GPUs once the first of a type that are free work on a job until a time."""
        asks = int(self.gpus[job])
        taken = tuple(sorted((*free_s[kind][asks:], *([end_s] * asks))))
        return tuple(taken if at == kind else free for at, free in enumerate(free_s))

    def least(self, left: tuple[int, ...], free_s: Free, weight: float) -> float:
        """What these jobs cost at least: of each, the price were it next."""
        return sum(self.price(job, min(self.ends(job, free_s))[0], weight) for job in left)


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """The best sequence found."""

    kind: IntArray  # (jobs,) type, -1 for a job that can run nowhere
    start_s: FloatArray  # (jobs,) infinite for such a job
    cost: float  # seconds
    proven: bool  # no sequence costs less
    nodes: int


def best_sequence(problem: Problem, weight: float, nodes: int) -> Sequence:
    """The cheapest sequence, or the best one found within that many nodes of the search.

    Best first, by the cost so far and `Problem.least` of the rest. Of equal jobs (model, GPUs, durations)
    only the order of their deadlines is tried: another one is never cheaper.
    """
    able = tuple(job for job in range(len(problem.gpus)) if problem.ends(job, problem.free_s))
    ahead = _equal_and_due_sooner(problem)
    best, best_cost = _as_given(problem, able, weight)
    # Entries by bound, then longer prefixes first: those reach whole sequences soon.
    queue: list[tuple[float, int, int, float, Prefix, tuple[int, ...], Free]] = []
    heapq.heappush(queue, (problem.least(able, problem.free_s, weight), 0, 0, 0.0, (), able, problem.free_s))
    spent = count = 0
    while queue and queue[0][0] < best_cost and spent < nodes:
        _, _, _, cost, prefix, left, free_s = heapq.heappop(queue)
        spent += 1
        for job in left:
            # An equal job that is due sooner comes first.
            if not ahead[job].isdisjoint(left):
                continue
            rest = tuple(other for other in left if other != job)
            for end_s, start_s, kind in problem.ends(job, free_s):
                then = cost + problem.price(job, end_s, weight)
                longer = (*prefix, (job, kind, start_s))
                later = problem.after(job, kind, end_s, free_s)
                bound = then + problem.least(rest, later, weight)
                if bound >= best_cost:
                    continue
                if not rest:
                    best, best_cost = longer, then
                    continue
                count += 1
                heapq.heappush(queue, (bound, -len(longer), count, then, longer, rest, later))
    return _sequence(problem, best, best_cost, not queue or queue[0][0] >= best_cost, spent)


def cost_of(problem: Problem, order: tuple[int, ...], weight: float) -> float:
    """What the jobs cost in a given order, each on the type where it ends soonest."""
    return _as_given(problem, order, weight)[1]


def _as_given(problem: Problem, order: tuple[int, ...], weight: float) -> tuple[Prefix, float]:
    prefix: Prefix = ()
    free_s, cost = problem.free_s, 0.0
    for job in order:
        end_s, start_s, kind = min(problem.ends(job, free_s))
        prefix, cost = (*prefix, (job, kind, start_s)), cost + problem.price(job, end_s, weight)
        free_s = problem.after(job, kind, end_s, free_s)
    return prefix, cost


def _sequence(problem: Problem, best: Prefix, cost: float, proven: bool, spent: int) -> Sequence:
    kind = np.full(len(problem.gpus), -1, dtype=np.int64)
    start_s = np.full(len(problem.gpus), inf)
    for job, at, begins_s in best:
        kind[job], start_s[job] = at, begins_s
    return Sequence(kind, start_s, cost, proven, spent)


def _equal_and_due_sooner(problem: Problem) -> list[frozenset[int]]:
    """For each job its equals that go before it: due sooner, ties by row."""
    keys = [
        (model, gpus, row.tobytes())
        for model, gpus, row in zip(problem.models, problem.gpus.tolist(), problem.duration_s, strict=True)
    ]
    due = list(enumerate(problem.due_s.tolist()))
    return [
        frozenset(
            other for other, due_s in due if keys[other] == keys[job] and (due_s, other) < (due[job][1], job)
        )
        for job in range(len(keys))
    ]
