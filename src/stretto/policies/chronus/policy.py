"""Chronus: leases for jobs with deadlines, best effort in the gaps."""

from dataclasses import dataclass, field, replace
from math import floor
from typing import ClassVar

import numpy as np

from stretto.estimate.placement_runtime import suspensions
from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobId,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    Why,
    every,
)
from stretto.policies.chronus.lease_plan import (
    ROUNDING_S,
    choose_deadlines,
    fit_backward,
    fit_one,
    leases_before,
    leases_needed,
    rounded_up,
    safe_s,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_anew, most_gpus_of_one_job
from stretto.policies.common.remaining_time import Fits, remaining_s
from stretto.settings import CheckedSettings, setting

NEW, BEST_EFFORT, UNACCEPTED = -3, -2, -1  # instead of the number of a deadline
RESERVED_PART = 8  # chosen: on a small cluster no more than this part is set aside for profiling
PROFILED_ON = 2  # GPUs of a profiling run [UniSched, section II-B]


@dataclass(frozen=True, eq=False)
class Ledger:
    """What Chronus remembers of a decision; columns are (jobs,)."""

    lease: int = -1  # the number of the last lease that was given out
    ids: tuple[JobId, ...] = ()
    ready_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # when its profile is known
    step: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # deadline, or as above
    leased: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))  # holds the current lease
    free_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # when each GPU for profiling is free
    fits: Fits = field(default_factory=Fits)  # of learning curves


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What the jobs with deadlines need, in leases. Columns are (jobs,) or (jobs, steps)."""

    rows: IntArray
    gpus: IntArray  # rounded up
    needs: IntArray
    before: IntArray  # (jobs, steps)
    reward: FloatArray  # (jobs, steps) 0: no such step, or not in time for it even alone


def most_set_aside(profiling_gpus: int, cluster_gpus: int) -> int:
    """GPUs for profiling runs at most: of a small cluster fewer than `profiling_gpus`."""
    return min(profiling_gpus, cluster_gpus // RESERVED_PART)


@dataclass(frozen=True)
class Chronus(CheckedSettings, space="policy"):
    """Promise deadlines that a plan of leases can keep, run those jobs late, and others in the gaps.

    Chronus (Gao et al., SoCC 2021). A new job is profiled first, in turn, on GPUs set aside. Then its latest
    leases before its deadline are looked for beside those of every job promised before (`fit_backward`).
    Where they are found it is promised the deadline, or else a later one of a soft job, or none. Every
    `lease_s` the plan is made anew and says which run. Promised deadlines are improved, or rescued, by an
    integer programme of at most `nodes` nodes. It is asked where the greedy plan is not the best there can be
    and no more than `most_planned` jobs are in it. GPUs left over go to jobs without a promise, by least
    laxity, then to best effort by smallest remaining service, for `be_lease_s` each. Then they go to promised
    jobs ahead of their plan, which come before best effort where none is without a promise. Where no job has
    a deadline, all this is shortest remaining service first, every `be_lease_s`.

    A decision sorts the jobs, n log n. One at a lease costs array operations of promised jobs times leases to
    the last deadline. So does an arrival that does not fit beside the plan as it is. No bound on waiting:
    best effort waits for ever if promised jobs keep coming, or smaller best-effort jobs.

    A job that stops by performance is believed to take as many epochs as its owner allows. With `estimator`
    (Chronus + Estimator of UniSched, section VI-C) it takes as many as its learning curve foretells.

    Deviations: profiling runs are kept account of, not run. Their GPUs are counted out and their jobs wait
    for the end of the run. A deadline that has become impossible makes a job best effort. Placements are not
    searched: the placer moves jobs to consolidate. On several GPU types the plan counts GPUs alike.
    """

    # of jobs with deadlines; a multiple of the other [UniSched; published code: 3600]
    lease_s: float = setting(600.0, above=0, multiple_of="be_lease_s")
    be_lease_s: float = setting(300.0, above=0)  # [published code]
    profiling_s: float = setting(300.0, at_least=0)  # of a profiling run; 0: durations are known on arrival
    # set aside, at most [UniSched, section II-B]; an eighth of a cluster that has fewer than 128
    profiling_gpus: int = setting(16, at_least=0)
    margin: bool = True  # the published safety factors on remaining times
    estimator: bool = False  # UniSched's: learning curves, and suspensions expected in place of the factors
    # for that: of a suspension on one GPU [UniSched, figure 3: about that]
    suspend_s: float = setting(20.0, at_least=0)
    suspend_per_gpu_s: float = setting(1.0, at_least=0)  # more for every further GPU [the same]
    most_planned: int = setting(100, at_least=0)  # jobs in the integer programme; chosen: about a second
    periods: int = setting(12, at_least=3)  # of that programme; chosen
    nodes: int = setting(20, at_least=1)  # of its branch and bound; chosen

    name: ClassVar[str] = "chronus"
    views: ClassVar[frozenset[View]] = frozenset({View.ESTIMATED_DURATION, View.LEARNING})
    placer: ClassVar[str] = "buddy"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Chronus (SoCC 2021)",
        order="deadlines by its plan, then least work left; ties by fair share",
        starvation="unbounded: best effort waits while promised or smaller best-effort jobs keep coming",
    )

    @property
    def triggers(self) -> Triggers:
        """At the end of every best-effort lease."""
        return every(self.be_lease_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks at no speeds."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests: leases first, then the gaps."""
        jobs = snapshot.jobs
        within = self._beside_profiling(snapshot)
        profilers = int(snapshot.capacity.sum() - within.capacity.sum())
        before = snapshot.memory if isinstance(snapshot.memory, Ledger) else Ledger()
        # Leases have numbers; a new number means that the old lease has expired.
        lease = floor((snapshot.now_s + ROUNDING_S) / self.lease_s)
        expires = lease != before.lease
        ledger = self._profiled(snapshot, brought_forward(before, jobs.ids, profilers))

        left_s, fits = remaining_s(jobs, self.estimator, ledger.fits)
        # Profiled jobs without a deadline are best effort; those with one ask for a promise.
        ready = ledger.ready_s <= snapshot.now_s + ROUNDING_S
        step = np.where((ledger.step == NEW) & ready & np.isinf(jobs.deadline_s), BEST_EFFORT, ledger.step)
        coming = np.flatnonzero((step == NEW) & ready)
        leased, gap = ledger.leased & (step >= 0), None
        # Only now can promises change: at an arrival, or with a new lease.
        if coming.size or (expires and (step >= 0).any()):
            rows = np.flatnonzero((step >= 0) | (step == NEW) & ready)
            demand = self._demand(snapshot, rows, left_s[rows], lease if expires else lease + 1)
            free = self._free(within, demand)
            step = _promised(demand, free, step, coming)
            if expires:
                step, leased, gap = self._planned(demand, free, step)
        # Leased jobs first, then best effort in the gaps.
        order = _by_turn(snapshot, left_s, step, leased, ready)
        shares = admit_anew(within, order)
        waits = ~ready & (shares.gpus == 0) & (shares.why.code > 0)
        shares.why.code[waits] = Why.NOT_PROFILED
        memory = replace(ledger, lease=lease, step=step, leased=leased, fits=fits)
        return replace(shares, memory=memory, gap=gap)

    def _beside_profiling(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without the nodes that are set aside; with them while a job needs all there is."""
        if not (self.profiling_s and self.profiling_gpus):
            return snapshot
        cluster, jobs = snapshot.cluster, snapshot.jobs
        most = most_set_aside(self.profiling_gpus, int(snapshot.capacity.sum()))
        kind = int(snapshot.capacity.argmax())
        nodes = np.flatnonzero(snapshot.usable & (cluster.kind == kind))[::-1]
        nodes = nodes[cluster.node_gpus[nodes].argsort(kind="stable")]  # small ones, the last of them first
        nodes = nodes[np.cumsum(cluster.node_gpus[nodes]) <= most]
        usable = snapshot.usable.copy()
        usable[nodes] = False
        within = replace(snapshot, usable=usable)
        one_job = most_gpus_of_one_job(cluster)
        too_large = (jobs.gpus[:, None] > np.minimum(within.capacity, one_job)).all(axis=1)
        possible = (jobs.gpus[:, None] <= np.minimum(snapshot.capacity, one_job)).any(axis=1)
        return snapshot if (too_large & possible).any() else within

    def _profiled(self, snapshot: Snapshot, ledger: Ledger) -> Ledger:
        """Give new jobs their turn on the GPUs for profiling, first come first served."""
        new = np.flatnonzero(np.isnan(ledger.ready_s))
        if not new.size:
            return ledger
        submitted_s, gpus_asked = snapshot.jobs.submitted_s, snapshot.jobs.gpus
        holds = snapshot.jobs.held_gpus > 0
        ready_s, free_s = ledger.ready_s.copy(), ledger.free_s.copy()
        for row in new.tolist():
            ready_s[row] = submitted_s[row]
            if free_s.size and not holds[row]:  # what runs already is known
                gpus = min(PROFILED_ON, int(gpus_asked[row]), free_s.size)
                free_s.sort()
                ready_s[row] = max(ready_s[row], free_s[gpus - 1]) + self.profiling_s
                free_s[:gpus] = ready_s[row]
        return replace(ledger, ready_s=ready_s, free_s=free_s)

    def _demand(self, snapshot: Snapshot, rows: IntArray, left_s: FloatArray, first: int) -> Demand:
        """What jobs need from the first lease that can be given out. rows, left_s: (jobs,)."""
        jobs = snapshot.jobs
        rewards = [jobs[row].rewards for row in rows.tolist()]
        steps = max(map(len, rewards), default=1)
        deadline_s, reward = np.zeros((rows.size, steps)), np.zeros((rows.size, steps))
        for position, of_job in enumerate(rewards):
            deadline_s[position, : len(of_job)] = [promise.deadline_s for promise in of_job]
            reward[position, : len(of_job)] = [promise.value for promise in of_job]
        before = leases_before(deadline_s, first, self.lease_s)
        needs = leases_needed(self._with_margin(left_s, jobs.gpus[rows], before[:, 0]), self.lease_s)
        reward[before < needs[:, None]] = 0.0
        per_node = int(snapshot.cluster.gpus_per_node.max())
        return Demand(rows, rounded_up(jobs.gpus[rows], per_node), needs, before, reward)

    def _with_margin(self, left_s: FloatArray, gpus: IntArray, before: IntArray) -> FloatArray:
        """(jobs,) remaining times with what interruptions are expected to cost."""
        if self.estimator:
            stops = suspensions(leases_needed(left_s, self.lease_s), before)
            return left_s + stops * (self.suspend_s + self.suspend_per_gpu_s * (gpus - 1))
        return safe_s(left_s, gpus, self.lease_s) if self.margin else left_s

    def _free(self, snapshot: Snapshot, demand: Demand) -> IntArray:
        """(leases,) GPUs that can be planned with, up to the last deadline."""
        jobs = snapshot.jobs
        fixed = ~jobs.preemptible & (jobs.held_gpus > 0)
        gpus = max(int(snapshot.capacity.sum() - jobs.held_gpus[fixed].sum()), 0)
        leases = int(np.where(demand.reward > 0, demand.before, 0).max(initial=1))
        return np.full(leases, gpus, dtype=np.int64)

    def _planned(self, demand: Demand, free: IntArray, step: IntArray) -> tuple[IntArray, BoolArray, float]:
        """Deadlines kept, which jobs run now, and how far that is from all that could be kept one by one."""
        step = step.copy()
        promised = np.flatnonzero(step[demand.rows] >= 0)
        part = _rows_of(demand, promised)
        best = np.where((part.reward > 0).any(axis=1), (part.reward > 0).argmax(axis=1), -1)
        most = float(part.reward.max(axis=1, initial=0.0).sum())
        # Where every job can have its best deadline there is nothing to plan.
        fitted, now = _fit_at(part, free, best)
        if (fitted < best).any():
            fitted, now = _rescued(
                part, free, np.where(_possible(part, step[part.rows]), step[part.rows], best)
            )
            # The integer program, unless there are too many jobs; its choice counts only where it is better.
            if part.rows.size <= self.most_planned:
                chosen = choose_deadlines(
                    free, part.gpus, part.needs, part.before, part.reward, self.periods, self.nodes
                )
                if chosen is not None and chosen.value > _value(part, fitted):
                    fitted, now = chosen.step, chosen.now
                if chosen is not None and chosen.proven:
                    most = max(chosen.value, _value(part, fitted))
        step[part.rows] = fitted
        leased = np.zeros(len(step), dtype=np.bool_)
        leased[part.rows] = now & (fitted >= 0)
        value = _value(part, fitted)
        return step, leased, (most - value) / most if most > 0 else 0.0


def brought_forward(ledger: Ledger, ids: tuple[JobId, ...], profilers: int) -> Ledger:
    """The columns for the jobs of now; NaN and NEW for those that have come."""
    free_s = np.resize(ledger.free_s, profilers) if ledger.free_s.size else np.zeros(profilers)
    if ids == ledger.ids:
        return replace(ledger, free_s=free_s)
    row = {job: index for index, job in enumerate(ledger.ids)}
    was = np.array([row.get(job, -1) for job in ids], dtype=np.int64)
    remembered = was >= 0
    ready_s, step = np.full(len(ids), np.nan), np.full(len(ids), NEW)
    leased = np.zeros(len(ids), dtype=np.bool_)
    ready_s[remembered], step[remembered] = ledger.ready_s[was[remembered]], ledger.step[was[remembered]]
    leased[remembered] = ledger.leased[was[remembered]]
    return Ledger(ledger.lease, ids, ready_s, step, leased, free_s, ledger.fits)


def _rows_of(demand: Demand, some: IntArray) -> Demand:
    return Demand(
        demand.rows[some], demand.gpus[some], demand.needs[some], demand.before[some], demand.reward[some]
    )


def _possible(demand: Demand, step: IntArray) -> BoolArray:
    """(jobs,) whether each could make that deadline, were it alone."""
    possible: BoolArray = (step >= 0) & (demand.reward[np.arange(step.size), np.maximum(step, 0)] > 0)
    return possible


def _value(demand: Demand, step: IntArray) -> float:
    kept = np.flatnonzero(step >= 0)
    return float(demand.reward[kept, step[kept]].sum())


def _fit_at(demand: Demand, free: IntArray, step: IntArray) -> tuple[IntArray, BoolArray]:
    """Every job at a stated deadline: what is kept, -1 where it does not fit, and which jobs run now."""
    due = np.where(step >= 0, demand.before[np.arange(step.size), np.maximum(step, 0)], 0)
    fitted = fit_backward(free, demand.gpus, demand.needs, due)
    return np.where(fitted.fits, step, -1), fitted.now


def _rescued(demand: Demand, free: IntArray, step: IntArray) -> tuple[IntArray, BoolArray]:
    """Every job at a stated deadline; one that does not fit tries its later ones, until none is left."""
    while True:
        fitted, now = _fit_at(demand, free, step)
        lost = np.flatnonzero((fitted < 0) & (step >= 0))
        if not lost.size:
            return fitted, now
        step = step.copy()
        later = np.arange(demand.reward.shape[1]) > step[lost, None]
        open_ = (demand.reward[lost] > 0) & later
        step[lost] = np.where(open_.any(axis=1), open_.argmax(axis=1), -1)


def _promised(demand: Demand, free: IntArray, step: IntArray, coming: IntArray) -> IntArray:
    """Promise the jobs that have come what still fits, in the order in which they came."""
    step = step.copy()
    # Fit what has been promised, as late as possible; a promise that no longer fits is dropped.
    position = {row: index for index, row in enumerate(demand.rows.tolist())}
    promised = np.maximum(step[demand.rows], -1)
    promised[~_possible(demand, promised)] = -1
    due = np.where(promised >= 0, demand.before[np.arange(promised.size), np.maximum(promised, 0)], 0)
    fitted = fit_backward(free, demand.gpus, demand.needs, due)
    due[~fitted.fits] = 0  # promises that cannot be kept any more hold no job up
    # Then the newcomers, each with its most rewarding deadline that fits beside the promises.
    left = fitted.free
    for row in coming.tolist():
        index = position[row]
        step[row] = UNACCEPTED
        for choice in np.flatnonzero(demand.reward[index] > 0).tolist():
            gpus, needs, before = demand.gpus[index], demand.needs[index], demand.before[index, choice]
            beside = fit_one(left, int(gpus), int(needs), int(before))
            if beside is None:  # perhaps if every job is fitted anew
                due[index] = before
                fitted = fit_backward(free, demand.gpus, demand.needs, due)
                if fitted.fits[due > 0].all():
                    beside = fitted.free
            if beside is not None:
                left, due[index], step[row] = beside, before, choice
                break
            due[index] = 0
    return step


def _by_turn(
    snapshot: Snapshot, left_s: FloatArray, step: IntArray, leased: BoolArray, ready: BoolArray
) -> IntArray:
    """Rows in the order in which they may take GPUs; without those that are not profiled yet."""
    jobs = snapshot.jobs
    last_s = _last_deadline_s(snapshot, step)
    laxity_s = np.where(step >= UNACCEPTED, last_s - snapshot.now_s - left_s, np.inf)
    unaccepted = (step == UNACCEPTED) & (laxity_s >= 0)
    ahead = (step >= 0) & ~leased
    best_effort = ready & ~leased & ~ahead & ~unaccepted
    ahead_turn = 3 if unaccepted.any() else 1
    turn = np.select([leased, unaccepted, best_effort, ahead], [0, 2, 2.5, ahead_turn], default=9)
    key = np.where(best_effort, left_s * jobs.gpus, laxity_s)
    order = np.lexsort((jobs.held_gpus == 0, key, turn))
    return order[turn[order] < 9]


def _last_deadline_s(snapshot: Snapshot, step: IntArray) -> FloatArray:
    """(jobs,) the last deadline of each job that has one and is told it; infinite for the others."""
    jobs = snapshot.jobs
    last_s = np.full(len(jobs), np.inf)
    for row in np.flatnonzero(step >= UNACCEPTED).tolist():
        last_s[row] = jobs[row].rewards[-1].deadline_s
    return last_s
