"""Shockwave: a market for the rounds of the next window, fair in the long run."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobId,
    PolicyTraits,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    Why,
    every,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, most_gpus_of_one_job, reasons_after
from stretto.policies.common.speed_curves import room_beside, unstoppable
from stretto.policies.shockwave.window import Window, best_rounds, timetable
from stretto.settings import CheckedSettings, setting

MOST_WEIGHT = 1e6  # of an unfairly treated job; chosen
LATEST_PART = 0.1  # of the latest estimate of a finish time beside the mean of earlier ones [published code]
SHORTEST_S = 1.0  # of a job; chosen: keeps ratios finite
ALMOST_DONE = 1e-6  # part of a job that is always left, since it has not ended yet; chosen


@dataclass(frozen=True, slots=True, eq=False)
class Market:
    """What Shockwave remembers. Rows are the jobs of the last decision."""

    at_s: float  # of the last decision
    ids: tuple[JobId, ...]
    finish_sum: (
        FloatArray  # (jobs,) earlier estimates of the finish time on an equal share, times their seconds
    )
    finish_s: FloatArray  # (jobs,) how long there have been estimates
    finish_latest: FloatArray  # (jobs,) the last one
    planned_s: float  # when the window began
    gpus: int  # for which it was planned
    plan: BoolArray  # (jobs, window) which rounds each job runs
    gap: float


@dataclass(frozen=True, slots=True, eq=False)
class _Believed:
    """What is known of the jobs at one decision. Columns are (jobs,)."""

    possible: BoolArray  # (jobs, types) where each can run
    duration_s: FloatArray  # on what was asked for, on GPUs of any type by chance
    done: FloatArray  # part
    fair_finish_s: FloatArray  # F, absolute
    lateness: FloatArray  # ρ if it went on with an equal share
    sharing: float  # s

    @property
    def remaining_s(self) -> FloatArray:
        """(jobs,) seconds left on what was asked for."""
        left_s: FloatArray = (1.0 - self.done) * self.duration_s
        return left_s


@dataclass(frozen=True)
class Shockwave(CheckedSettings, space="policy"):
    """Plan the next rounds for the largest product of progress, so that no job ends much later than fair.

    Shockwave (Zheng et al., NSDI 2023). Over a window of rounds it maximises the mean log of the part of
    every job that will be done (Nash social welfare). `lateness_cost` is taken off for each second that the
    last job needs after the window. The bound is finish-time fairness: no job ends later than `most_unfair`
    times its fair finish time F. Its end is foreseen at an equal share of the cluster from the end of the
    window on. Where that cannot be had, jobs that are late beyond it weigh ρ to the power of `unfair_power`
    instead, and go first. The plan is followed until a job comes or goes. Idle GPUs go to the jobs with the
    longest time left.

    Deviations: the programme counts the rounds of each job and lays them out afterwards (`window`). That
    loses a round now and then to fragmentation but has no symmetric solutions. A job that ends within the
    window meets its fairness row. Read literally, one short job would make the rows impossible for all. ρ is
    counted from submission, not from the start of the clock. Jobs do not change their batch size by
    themselves in any world here. So there is one regime and no Bayesian estimate of the next. GPU types are
    ignored: a job counts as fast as on GPUs drawn by chance, and goes where most are free.

    Cost: a mixed-integer programme whenever jobs come or go, within `nodes` branch-and-bound nodes: 0.05 s
    for 250 jobs. It has an integer and five variables for each of at most `most_jobs` jobs. Of more jobs
    those that are latest are planned and the others only fill idle GPUs.
    Starvation: bounded in expectation only. What a job weighs grows without limit as its ρ does (up to a
    factor of a million), but no row says when it runs. Among jobs that are all late large ones can wait long.
    """

    round_s: float = setting(360.0, above=0)  # seconds [Sia; 120 in Shockwave]
    window: int = setting(20, at_least=1)  # rounds, T [published code]
    unfair_power: float = setting(10.0, at_least=0)  # λ [Sia; 12 in Shockwave]
    lateness_cost: float = setting(0.1, at_least=0)  # k, per second [Sia; 1e-3 in Shockwave]
    most_unfair: float = setting(1.0, above=0)  # ρ_max [published code]
    # relative, at which the programme counts as solved [published code]
    gap: float = setting(1e-3, at_least=0)
    # branch-and-bound nodes at most; chosen, in place of a time limit of 15 s
    nodes: int = setting(200, at_least=1)
    most_jobs: int = setting(250, at_least=1)  # planned at once; chosen

    name: ClassVar[str] = "shockwave"
    views: ClassVar[frozenset[View]] = frozenset({View.THROUGHPUT_TABLE, View.ORACLE_DURATION})
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Shockwave (NSDI 2023)",
        order="its plan of rounds over all jobs; exact ties by fair share",
        starvation=(
            "bounded in practice: what a job weighs grows with its lateness, but no row says when it runs"
        ),
    )

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: the speed on the GPUs asked for is enough."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests by the plan of the window, then by the time left."""
        jobs = snapshot.jobs
        before = snapshot.memory if isinstance(snapshot.memory, Market) else None
        kept = unstoppable(jobs)
        capacity = room_beside(snapshot, kept)
        finish = _finish_estimates(snapshot, before)
        believed, market = self._believe(snapshot, speeds, kept, capacity, finish, before)
        # The plan covers a window of rounds; this is the round of it that begins now.
        turn = round((snapshot.now_s - market.planned_s) / self.round_s)

        gpus = np.where(kept, jobs.held_gpus, 0)
        kind = np.where(kept, jobs.held_kind, -1)
        left = capacity.copy()
        planned = np.flatnonzero(market.plan[:, turn] & ~kept)
        unplanned = np.flatnonzero(~market.plan[:, turn] & ~kept & believed.possible.any(axis=1))
        # Planned jobs first, those that run before others so that they stay. Idle GPUs go to the longest
        # left.
        larger_first = planned[np.lexsort((planned, -jobs.gpus[planned], jobs.held_gpus[planned] == 0))]
        longest_first = unplanned[np.lexsort((unplanned, -believed.remaining_s[unplanned]))]
        for rows in (larger_first, longest_first):
            _give(rows, jobs.gpus, jobs.held_kind, believed.possible, gpus, kind, left)
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros(len(jobs), dtype=np.int64),
            why=_reasons(snapshot, gpus, left, believed.possible),
            memory=market,
            gap=market.gap if np.isfinite(market.gap) else None,
        )

    def _believe(
        self,
        snapshot: Snapshot,
        speeds: Speeds,
        kept: BoolArray,
        capacity: IntArray,
        finish: tuple[FloatArray, FloatArray, FloatArray],
        before: Market | None,
    ) -> tuple[_Believed, Market]:
        """What is known, and the market with a plan that covers this round."""
        jobs = snapshot.jobs
        total = int(capacity.sum())
        possible, duration_s, done = _durations(snapshot, speeds, capacity)
        # The deadline that is fair: what the job would take on an equal part of the cluster.
        sharing = min(1.0, total / max(len(jobs), 1)) or 1.0
        latest = jobs.submitted_s + duration_s / sharing
        finish_sum, finish_s, _ = finish
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(finish_s > 0, finish_sum / finish_s, latest)
        fair_s = (1 - LATEST_PART) * mean + LATEST_PART * latest
        age_s = snapshot.now_s - jobs.submitted_s
        lateness = (age_s + (1.0 - done) * duration_s / sharing) / (fair_s - jobs.submitted_s)
        believed = _Believed(possible, duration_s, done, fair_s, lateness, sharing)

        if before is not None and self._still_valid(before, snapshot, total):
            planned_s, plan, gap = before.planned_s, before.plan, before.gap
        else:
            planned_s = snapshot.now_s
            plan, gap = self._plan(snapshot, believed, possible.any(axis=1) & ~kept, total)
        return believed, Market(
            snapshot.now_s, jobs.ids, finish_sum, finish_s, latest, planned_s, total, plan, gap
        )

    def _still_valid(self, before: Market, snapshot: Snapshot, gpus: int) -> bool:
        turn = round((snapshot.now_s - before.planned_s) / self.round_s)
        width = before.plan.shape[1] if before.plan.ndim == 2 else 0
        return before.ids == snapshot.jobs.ids and before.gpus == gpus and 0 <= turn < width

    def _plan(
        self, snapshot: Snapshot, believed: _Believed, takes_part: BoolArray, gpus: int
    ) -> tuple[BoolArray, float]:
        """(jobs, window) which rounds each job runs, and the gap of the programme."""
        plan = np.zeros((len(snapshot.jobs), self.window), dtype=np.bool_)
        rows = np.flatnonzero(takes_part & (snapshot.jobs.gpus <= gpus))
        # Too many for one program: those that are furthest behind are planned.
        if len(rows) > self.most_jobs:
            rows = np.sort(rows[np.lexsort((rows, -believed.lateness[rows]))][: self.most_jobs])
        if not rows.size:
            return plan, 0.0
        asked, duration_s = snapshot.jobs.gpus[rows], believed.duration_s[rows]
        ones = np.ones(len(rows))
        fair = Window(self.window, self.round_s, gpus, asked, believed.done[rows], duration_s, ones)
        least = self._least_progress(snapshot.now_s, believed, rows)
        urgency = ones
        # First with the fairness of all as a constraint; where that has no solution, as weights.
        solved = best_rounds(fair, self.lateness_cost, least, self.nodes, self.gap)
        if solved is None:
            urgency = self._weights(believed, rows)
            relaxed = Window(self.window, self.round_s, gpus, asked, fair.done, duration_s, urgency)
            solved = best_rounds(relaxed, self.lateness_cost, 0.0 * ones, self.nodes, self.gap)
        counts = np.zeros(len(rows), dtype=np.int64) if solved is None else solved.rounds
        plan[rows] = timetable(counts, asked, gpus, self.window, urgency)
        return plan, np.inf if solved is None else solved.gap

    def _least_progress(self, now_s: float, believed: _Believed, rows: IntArray) -> FloatArray:
        """(rows,) the part of each job that must be done in the window for it to end in fair time."""
        end_s = now_s + self.window * self.round_s
        after_s = believed.sharing * (self.most_unfair * believed.fair_finish_s[rows] - end_s)
        short_s = believed.remaining_s[rows] - np.maximum(after_s, 0.0)
        part: FloatArray = np.clip(short_s / believed.duration_s[rows], 0.0, 1.0 - believed.done[rows])
        return part

    def _weights(self, believed: _Believed, rows: IntArray) -> FloatArray:
        """(rows,) what each job counts where fairness cannot be had for all."""
        late = np.maximum(believed.lateness[rows], 1e-9)
        with np.errstate(over="ignore"):
            weight = np.where(late > self.most_unfair, late**self.unfair_power, 1.0)
        weight[believed.remaining_s[rows] < self.round_s] = MOST_WEIGHT
        return np.minimum(weight, MOST_WEIGHT)


def _durations(
    snapshot: Snapshot, speeds: Speeds, capacity: IntArray
) -> tuple[BoolArray, FloatArray, FloatArray]:
    """Where each job can run (jobs, types), how long it takes on chance GPUs and what part of it is done."""
    jobs = snapshot.jobs
    per_s = np.where(jobs.allowed_kinds, np.nan_to_num(speeds.requested_per_s, nan=0.0), 0.0)
    fits = jobs.gpus[:, None] <= np.minimum(most_gpus_of_one_job(snapshot.cluster), capacity)
    duration_s = jobs.durations.duration_s
    possible = (per_s > 0) & fits & np.isfinite(duration_s)[:, None]
    usable = np.where(possible, capacity, 0)
    mean = (per_s * usable).sum(axis=1) / np.maximum(usable.sum(axis=1), 1)
    best = np.where(possible, per_s, 0.0).max(axis=1, initial=0.0)
    slower = np.divide(best, mean, out=np.ones(len(jobs)), where=mean > 0)
    whole_s = np.where(np.isfinite(duration_s), np.maximum(duration_s, SHORTEST_S), SHORTEST_S)
    left = np.nan_to_num(jobs.durations.remaining_s, nan=0.0, posinf=0.0) / whole_s
    return possible, whole_s * slower, np.clip(1.0 - left, 0.0, 1.0 - ALMOST_DONE)


def _finish_estimates(snapshot: Snapshot, before: Market | None) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Per job: past estimates of its finish times their seconds, those seconds, and the latest estimate."""
    jobs = snapshot.jobs
    summed, seconds, latest = np.zeros(len(jobs)), np.zeros(len(jobs)), np.zeros(len(jobs))
    if before is None:
        return summed, seconds, latest
    row_before = {job: row for row, job in enumerate(before.ids)}
    was = np.array([row_before.get(job, -1) for job in jobs.ids], dtype=np.int64)
    known, since_s = was >= 0, snapshot.now_s - before.at_s
    latest[known] = before.finish_latest[was[known]]
    summed[known] = before.finish_sum[was[known]] + latest[known] * since_s
    seconds[known] = before.finish_s[was[known]] + since_s
    return summed, seconds, latest


def _give(
    rows: IntArray,
    gpus_asked: IntArray,
    held_kind: IntArray,
    possible: BoolArray,
    gpus: IntArray,
    kind: IntArray,
    left: IntArray,
) -> None:
    """Whole requests in turn while they fit: on the type that a job holds, else where most GPUs are left."""
    rows = rows[gpus_asked[rows] <= left.max(initial=0)]
    for row in rows.tolist():
        if not left.any():
            return
        fits = np.flatnonzero(possible[row] & (left >= gpus_asked[row]))
        if fits.size:
            own = int(held_kind[row])
            type_index = own if own in fits else int(fits[left[fits].argmax()])
            gpus[row], kind[row] = gpus_asked[row], type_index
            left[type_index] -= gpus_asked[row]


def _reasons(snapshot: Snapshot, gpus: IntArray, left: IntArray, possible: BoolArray) -> Reasons:
    why = reasons_after(snapshot, gpus, left)
    why.code[(gpus == 0) & (why.code > 0) & ~possible.any(axis=1)] = int(Why.NOT_PROFILED)
    return why
