"""Hydra: least completion time and lateness by sequencing jobs, without preemption."""

import heapq
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
)
from stretto.policies.common.admission import (
    NO_CONFIGURATIONS,
    admit_waiting,
    most_gpus_of_one_job,
    reasons_after,
)
from stretto.settings import CheckedSettings, setting

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


@dataclass(frozen=True)
class Hydra(CheckedSettings, space="policy"):
    """Start first the jobs with a deadline, then the others, each by shortest remaining time; stop none.

    Hydra (Yang et al., IEEE Trans. Computers 2023) in the form in which UniSched (TPDS 2024), section IV-D,
    compares itself with it. There is one GPU type. Deadline jobs come before best effort, shortest remaining
    time within both classes, and whatever fits starts. A decision sorts the waiting jobs: n log n.

    `original`: the method of Hydra's own paper. Branch and bound finds sequences of jobs and a GPU type for
    each, on the speeds measured for each type. They have the least Σ completion time + ω Σ tardiness. ω grows
    with the lateness that there is. The search takes at most `nodes` nodes over the `most_jobs` jobs that the
    rule above puts first. Those that the sequence starts now start, then others that fit. Deviations: jobs
    need several GPUs at once here, so that a start waits for that many; ω's growth is chosen.

    There is no bound on waiting. Shorter jobs, and jobs with deadlines, can pass a best-effort job for ever.
    A job of many GPUs can be passed by small ones as long as these keep coming.
    """

    original: bool = False  # branch and bound over sequences instead of the order by classes
    # ω, seconds of completion time that a second of lateness counts; chosen
    tardiness_weight: float = setting(2.0, at_least=0)
    # waiting jobs that are sequenced at once; chosen: 8! orders times types
    most_jobs: int = setting(8, at_least=1)
    nodes: int = setting(10_000, at_least=1)  # of the branch and bound; chosen

    name: ClassVar[str] = "hydra"
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Hydra (IEEE Trans. Computers 2023), as in UniSched (TPDS 2024)",
        order="deadlines, then least left to run; ties by fair share",
        starvation=(
            "unbounded: within a class long jobs wait for shorter ones, "
            "best effort for every job with a deadline"
        ),
    )

    @property
    def views(self) -> frozenset[View]:
        """Estimated durations; the original also measures its jobs on every type."""
        measured = {View.THROUGHPUT_TABLE} if self.original else set()
        return frozenset({View.ESTIMATED_DURATION} | measured)

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: the speed on the GPUs asked for is enough."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests; a running job keeps what it holds."""
        order = by_class_and_time(snapshot)
        if not self.original:
            return admit_waiting(snapshot, order, skip=True)
        began = self._begin_sequence(snapshot, speeds, order[: self.most_jobs])
        behind = order[self.most_jobs :]
        return _with_others(snapshot, began, behind)

    def _begin_sequence(self, snapshot: Snapshot, speeds: Speeds, rows: IntArray) -> IntArray:
        """(jobs,) the type on which each of these rows starts now, -1 for every other."""
        kind = np.full(len(snapshot.jobs), -1, dtype=np.int64)
        problem = self._problem(snapshot, speeds, rows)
        able = np.flatnonzero(np.isfinite(problem.duration_s).any(axis=1))
        sequence = best_sequence(problem.of(able), self._weight(snapshot), self.nodes)
        now = sequence.start_s == 0
        kind[rows[able[now]]] = sequence.kind[now]
        return kind

    def _problem(self, snapshot: Snapshot, speeds: Speeds, rows: IntArray) -> Problem:
        jobs, types = snapshot.jobs, len(snapshot.cluster.types)
        fits = jobs.gpus[rows, None] <= np.minimum(most_gpus_of_one_job(snapshot.cluster), snapshot.capacity)
        allowed = jobs.allowed_kinds[rows] & fits
        per_s = np.nan_to_num(speeds.requested_per_s[rows], nan=0.0)
        fastest = np.where(jobs.allowed_kinds[rows], per_s, 0.0).max(axis=1, initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = np.where(fastest[:, None] > 0, fastest[:, None] / per_s, 1.0)
        remaining_s = jobs.estimates.remaining_s
        return Problem(
            duration_s=np.where(allowed, np.maximum(remaining_s[rows, None], 1e-9) * slower, inf),
            gpus=jobs.gpus[rows],
            due_s=jobs.deadline_s[rows] - snapshot.now_s,
            age_s=snapshot.now_s - jobs.submitted_s[rows],
            models=tuple(jobs[row].model for row in rows.tolist()),
            free_s=tuple(_freed_s(snapshot, remaining_s, kind) for kind in range(types)),
        )

    def _weight(self, snapshot: Snapshot) -> float:
        """ω: grows with the lateness of the active jobs, as a part of the time since they came."""
        jobs = snapshot.jobs
        late_s = np.maximum(snapshot.now_s - jobs.deadline_s, 0.0).sum()
        age_s = (snapshot.now_s - jobs.submitted_s).sum()
        return float(self.tardiness_weight * (1.0 + (late_s / age_s if age_s > 0 else 0.0)))


def by_class_and_time(snapshot: Snapshot) -> IntArray:
    """Waiting rows: deadline jobs first, each class by remaining time, ties by submission."""
    jobs = snapshot.jobs
    waiting = np.flatnonzero(jobs.held_gpus == 0)
    remaining_s = jobs.estimates.remaining_s[waiting]
    return waiting[np.lexsort((remaining_s, np.isinf(jobs.deadline_s[waiting])))]


def _freed_s(snapshot: Snapshot, remaining_s: FloatArray, kind: int) -> tuple[float, ...]:
    """When each GPU of a type is free, seconds from now, ascending."""
    jobs = snapshot.jobs
    on = np.flatnonzero(jobs.held_kind == kind)
    busy_s = np.repeat(np.maximum(remaining_s[on], 1e-9), jobs.held_gpus[on])
    return tuple([0.0] * int(snapshot.free[kind]) + np.sort(busy_s).tolist())


def _with_others(snapshot: Snapshot, kind: IntArray, behind: IntArray) -> Shares:
    """Start what the sequence starts, then of the rows behind whatever still fits."""
    jobs, types = snapshot.jobs, len(snapshot.cluster.types)
    started = np.flatnonzero(kind >= 0)
    # Admit none: that gives the shares of the running jobs, to which the started ones are added.
    shares = admit_waiting(snapshot, started[:0], skip=True)
    gpus, kinds = shares.gpus.copy(), shares.kind.copy()
    gpus[started], kinds[started] = jobs.gpus[started], kind[started]
    left = snapshot.free - np.bincount(kind[started], jobs.gpus[started], types).astype(np.int64)
    most = most_gpus_of_one_job(snapshot.cluster)
    for row in behind.tolist():
        if not left.any():
            break
        room = np.where(jobs.allowed_kinds[row] & (jobs.gpus[row] <= np.minimum(most, left)), left, -1)
        roomiest = int(room.argmax())
        if room[roomiest] >= 0:
            gpus[row], kinds[row] = jobs.gpus[row], roomiest
            left[roomiest] -= jobs.gpus[row]
    return replace(
        shares,
        gpus=gpus,
        kind=kinds,
        why=reasons_after(snapshot, gpus, left),
        order=np.concatenate((started, behind[gpus[behind] > 0])),
    )


# In which order, and on which GPU type, do jobs cost least? Branch and bound over sequences.
#
# Hydra (Yang et al., IEEE Trans. Computers 2023). The cost of a sequence is Σ completion time + ω Σ tardiness
# when every job starts, in that order, as soon as its type has enough GPUs free.


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
