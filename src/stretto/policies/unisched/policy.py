"""UniSched: leases, rewards and cells for jobs with deadlines, without, and still to be profiled."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import nan
from typing import ClassVar, NamedTuple

import numpy as np

from stretto.estimate.placement_runtime import PROFILE_GPUS
from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobId,
    JobOutlook,
    PolicyTraits,
    Promise,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    Why,
    every,
    frozen,
)
from stretto.model.timing import span
from stretto.policies.common.admission import NO_CONFIGURATIONS, most_gpus_of_one_job, reasons_after
from stretto.policies.common.remaining_time import Fits, remaining_s
from stretto.policies.unisched.cells import TOP_LEVEL, cells_of_nodes
from stretto.policies.unisched.estimator import (
    LeaseTerms,
    Wanted,
    best_effort_value,
    options_for,
    rewards_of,
)
from stretto.policies.unisched.ilp import Options
from stretto.policies.unisched.lease_plan import LeasePlan, first_fit, plan_in_order, plan_leases
from stretto.policies.unisched.placement import give_leases
from stretto.policies.unisched.sizes import chosen_sizes, grown
from stretto.settings import CheckedSettings, setting

VALUE_OF_PROFILING = 1.0  # reward of a profiling run [paper]
WITHIN_S = 1e-6  # rounding of a sum of times


class Profiling(StrEnum):
    """Where jobs are profiled before they run."""

    UNIFIED = "unified"  # wherever the selector finds room, like a best-effort job [paper]
    STATIC = "static"  # on nodes set aside, in order of arrival (ablation; Chronus)
    OFF = "off"  # everything is known beforehand


@dataclass(frozen=True, slots=True, eq=False)
class LeaseBook:
    """What UniSched remembers of a decision; columns are (its jobs,)."""

    next_cycle_s: float  # when the leases of jobs with deadlines end
    ids: tuple[JobId, ...]
    leased: BoolArray  # holds such a lease
    accepted: BoolArray  # the plan meets one of its deadlines
    fits: Fits
    gap: float  # of the plan


class Room(NamedTuple):
    """GPUs of a type that may be given out."""

    gpus: int
    set_aside_gpus: int  # for profiling runs


@dataclass(frozen=True)
class UniSched(CheckedSettings, space="policy"):
    """Meet the deadlines that bring most reward, in leases planned ahead; the rest goes to the shortest jobs.

    UniSched (Gao et al., TPDS 2024). Every `best_effort_lease_s` the leases of best-effort jobs and profiling
    runs end, every `deadline_lease_s` those of jobs with deadlines. A new job is profiled first, on at most
    two GPUs. Then an ILP (`ilp`) chooses which deadlines to meet, on which cells, so that the rewards add up
    to most. Leases that can wait make room for profiling runs (worth 1) and best-effort jobs (worth 1 /
    minutes left). These share what is left of this tick by worth per GPU. GPUs that even then are idle go to
    jobs with deadlines ahead of their plan, least slack first. A job that has missed its last deadline is a
    best-effort job.

    A deadline that no whole leases can meet has no option in the ILP. While the clock still can, the job
    goes before best effort.

    Nothing bounds how long a best-effort job waits: while jobs with deadlines fill the cluster, and while
    shorter jobs keep coming, it starves. So does a job whose deadlines cost more than they bring, until the
    last has passed. A profiling run waits only for jobs that cannot wait.

    Costs per decision: sorting the jobs, and per `deadline_lease_s` a plan in about 40 stretches of leases.
    Where not all deadlines can be met, there is an ILP of 40 rows with one variable for each different (GPUs,
    leases, deadlines, rewards). `max_nodes` bounds the search; the distance from the best is in the plan.

    With `auto_scaling` a job that states a range of GPUs runs on the count that its speeds favour (`sizes`).

    Deviations, and what they cost, are in docs/decisions/0007-unisched.md.
    """

    best_effort_lease_s: float = setting(300.0, above=0)  # [paper]
    # a multiple of the other [paper]
    deadline_lease_s: float = setting(600.0, above=0, multiple_of="best_effort_lease_s")
    profiling: Profiling = Profiling.UNIFIED
    profile_s: float = setting(300.0, at_least=0)  # of a profiling run [paper]
    profile_nodes: int = setting(2, at_least=0)  # set aside where profiling is static [paper]
    iterations: bool = True  # predict when a goal is reached; False: after as long as its owner allows
    suspensions: bool = True  # count on being suspended (equation 3)
    # of a suspension and resumption on one GPU, until one was measured [paper, figure 3: about that]
    suspend_s: float = setting(20.0, at_least=0)
    # more for every further GPU [read off the same figure]
    suspend_per_gpu_s: float = setting(1.0, at_least=0)
    objective: bool = True  # False: any plan that is feasible, jobs by arrival
    joint: bool = True  # choose jobs and cells together; False: only the most consolidated cells
    puts_off: bool = True  # jobs with deadlines wait for best effort where they can; False: they go first
    # a deadline that no whole leases can meet, but the clock can, goes before best effort; False: behind it
    by_clock: bool = True
    # a lease that a job needs in part is planned whole [paper: L = ceil(T / lease)]; False: to the nearest
    whole_leases: bool = True
    # jobs that state a range run on the count that their speeds favour [paper: future work]; False: as asked
    auto_scaling: bool = False
    # share of a lease that may lack when it ends: a decision takes a moment, and the next round is on time
    # [chosen]; 0: none, as in a simulation, where no tick is late
    late: float = setting(0.1, at_least=0, at_most=0.5)
    max_nodes: int = setting(20, at_least=0)  # of branch and bound; chosen: the root is nearly always enough

    name: ClassVar[str] = "unisched"
    placer: ClassVar[str] = "buddy"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="UniSched (TPDS 2024)",
        order="its program over all jobs, by deadlines and value; exact ties by fair share",
        starvation=(
            "unbounded for best effort while deadlines fill the cluster; profiling runs wait for those only"
        ),
        tables_only=True,
        former={"by_clock": "false", "late": "0"},
    )
    views: ClassVar[frozenset[View]] = frozenset(
        {View.PROGRESS, View.ESTIMATED_DURATION, View.THROUGHPUT_TABLE, View.LEARNING}
    )

    @property
    def triggers(self) -> Triggers:
        """Ends of best-effort leases, and nothing else."""
        return every(self.best_effort_lease_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it reads the table of one and two GPUs."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Leases for this tick, on named cells: estimate, solve the ILP, serve by value, place on cells."""
        jobs = snapshot.jobs
        # At the end of a cycle the leases of jobs with deadlines end too, and a new plan is made.
        book = snapshot.memory if isinstance(snapshot.memory, LeaseBook) else None
        cycle = book is None or self._is_over(snapshot, book)
        # The Estimator (section III-B): what each job asks for now, and how long it will still take.
        wanted, fits = self._wanted(snapshot, book)
        leased, accepted = _as_booked(book, jobs.ids)
        leased &= (not cycle) & wanted.urgent & wanted.stays(snapshot)

        served = wanted.kept.copy()
        bounds = []
        for kind in range(len(snapshot.cluster.types)):
            mine = (wanted.kind == kind) & ~wanted.kept
            room = Room(*self._room(snapshot, wanted, kind))
            # Within a cycle, jobs with leases run on; at its start the plan says which must run.
            must, reserve = leased & mine, wanted.gpus
            if cycle:
                with span("solve"):  # the ILP (section III-C4), on one GPU type
                    plan, options = self._plan(snapshot, wanted, mine, room.gpus, kind)
                bounds.append((plan.value, plan.bound))
                accepted[mine] = False
                accepted[options.job[plan.taken]] = True
                must = np.isin(np.arange(len(jobs)), options.job[plan.now])
                reserve = wanted.gpus.copy()
                reserve[options.job[plan.now]] = options.gpus[plan.now]
            # Profiling runs and best effort share the rest of this tick by value per GPU.
            served |= self._served(snapshot, wanted, mine, must, reserve, accepted, room)
        if self.auto_scaling and self.joint:  # any free GPUs will do, so what is idle can be placed
            wanted = self._grown(snapshot, wanted, served)
        gap = _gap(bounds) if cycle or book is None else book.gap
        next_cycle_s = snapshot.now_s + self.deadline_lease_s if cycle or book is None else book.next_cycle_s
        memory = LeaseBook(
            next_cycle_s, jobs.ids, frozen(served & wanted.urgent), frozen(accepted), fits, gap
        )
        return self._placed(snapshot, wanted, served, memory)

    def outlook(self, snapshot: Snapshot, speeds: Speeds, job: JobId) -> JobOutlook:
        """What a plan made now would promise a job, where all that are still to be profiled had been.

        The latest end of a job whose deadline is in the plan is that deadline: what can wait is put off.
        """
        # As if profiled: jobs whose deadline is still ahead count as urgent, but for those that keep a lease.
        row, now_s = snapshot.jobs.ids.index(job), snapshot.now_s
        book = snapshot.memory if isinstance(snapshot.memory, LeaseBook) else None
        wanted, _ = self._wanted(snapshot, book)
        deadline_s, value = rewards_of(snapshot.jobs)
        with np.errstate(invalid="ignore"):
            ahead: BoolArray = np.any(deadline_s > now_s, axis=1)
        wanted = replace(wanted, urgent=ahead & ~wanted.kept)
        promise, due_s, end_s = None, nan, now_s + float(wanted.left_s[row])
        # The promise: of the program for its type, where that takes the job; else what the clock allows.
        if ahead[row]:
            promise, due_s = Promise.NO, float(deadline_s[row, 0])
            kind = int(wanted.kind[row])
            if self._in_time(snapshot, wanted, by_clock=True)[row]:
                promise = Promise.AT_RISK
            if wanted.kept[row] and end_s <= due_s:  # it keeps its GPUs until its end: no plan can stop it
                promise = Promise.YES
            if kind >= 0 and not wanted.kept[row]:
                mine = (wanted.kind == kind) & ~wanted.kept
                plan, options = self._plan(
                    snapshot, wanted, mine, self._room(snapshot, wanted, kind)[0], kind
                )
                worth = options.value[plan.taken & (options.job == row)]
                if worth.size:
                    step = int(np.flatnonzero(value[row] == worth[0])[0])
                    promise = Promise.YES if step == 0 else Promise.AT_RISK
                    due_s = end_s = float(deadline_s[row, step])
        return JobOutlook(
            promise,
            due_s,
            end_s,
            self._lease_until_s(snapshot, book, row),
            float(wanted.overhead_s[row]),
            bool(np.isfinite(snapshot.jobs.progress.suspension_s[row])),
        )

    def _is_over(self, snapshot: Snapshot, book: LeaseBook) -> bool:
        """Whether leases of jobs with deadlines end at this tick."""
        return snapshot.now_s >= book.next_cycle_s - self.late * self.best_effort_lease_s

    def _lease_until_s(self, snapshot: Snapshot, book: LeaseBook | None, row: int) -> float:
        """When the lease of a job ends; NaN: it has none."""
        if book is None or not snapshot.jobs.held_gpus[row]:
            return nan
        leased, _ = _as_booked(book, snapshot.jobs.ids)
        if leased[row]:
            return book.next_cycle_s
        # Best-effort leases end every tick; those of deadlines at some of these.
        ticks = max((book.next_cycle_s - snapshot.now_s) // self.best_effort_lease_s, 0.0)
        return book.next_cycle_s - ticks * self.best_effort_lease_s

    def _wanted(self, snapshot: Snapshot, book: LeaseBook | None) -> tuple[Wanted, Fits]:
        """What every job asks for in this tick, and its running time with suspensions (equation 1)."""
        jobs, progress = snapshot.jobs, snapshot.jobs.progress
        # Which jobs must be kept, on which type, and which are still to be profiled.
        runs = jobs.held_gpus > 0
        stays = runs & ~jobs.preemptible
        kind = np.where(stays, jobs.held_kind, _home(snapshot))
        gpus = jobs.gpus * snapshot.cluster.stand_ins[np.maximum(kind, 0)]
        late_s = self.late * min(self.best_effort_lease_s, self.profile_s)
        profiled = (progress.profiled_s >= self.profile_s - late_s - WITHIN_S) | ~jobs.preemptible
        if self.profiling is Profiling.OFF:
            profiled[:] = True
        # T_dur of equation 1: what is left to run, and the resumption of those that are suspended now.
        left_s, fits = remaining_s(jobs, self.iterations, book.fits if book else Fits())
        if self.auto_scaling:
            sized = profiled & ~stays & (jobs.min_gpus < jobs.max_gpus) & (kind >= 0)
            gpus, left_s = self._sized(snapshot, book, kind, gpus, left_s, sized)
        assumed_s = self.suspend_s + self.suspend_per_gpu_s * (gpus - 1).astype(np.float64)
        overhead_s = np.where(np.isfinite(progress.suspension_s), progress.suspension_s, assumed_s)
        if self.suspensions:  # a job suspended now will pay for its resumption, whatever comes
            suspended = ~runs & (progress.executed_s > progress.profiled_s + WITHIN_S)
            left_s = left_s + np.where(suspended, overhead_s, 0.0)
        # Jobs with a deadline ahead go to the program; the others are best effort.
        deadline_s, _ = rewards_of(jobs)
        with np.errstate(invalid="ignore"):
            ahead = (deadline_s > snapshot.now_s).any(axis=1)
        profile_gpus = np.maximum(PROFILE_GPUS, jobs.gpus_per_worker)  # one worker at least
        asks = np.where(profiled, gpus, np.minimum(gpus, profile_gpus))
        return Wanted(
            kind, asks, gpus, ~profiled & ~stays, profiled & ahead & ~stays, stays, left_s, overhead_s
        ), fits

    def _sized(
        self,
        snapshot: Snapshot,
        book: LeaseBook | None,
        kind: IntArray,
        gpus: IntArray,
        left_s: FloatArray,
        rows: BoolArray,
    ) -> tuple[IntArray, FloatArray]:
        """(jobs,) GPUs and time left of jobs that state a range; a lease of a deadline keeps its count."""
        jobs, kept_gpus = snapshot.jobs, np.zeros(len(rows), dtype=np.int64)
        if book is not None and not self._is_over(snapshot, book):
            keeps = _as_booked(book, jobs.ids)[0] & (jobs.held_kind == kind)
            kept_gpus = np.where(keeps, jobs.held_gpus, 0)
        terms = self._terms(snapshot)
        return chosen_sizes(snapshot, kind, gpus, left_s, np.flatnonzero(rows), kept_gpus, terms)

    def _grown(self, snapshot: Snapshot, wanted: Wanted, served: BoolArray) -> Wanted:
        """With what is idle given to jobs that state a range and are served; nodes set aside stay so."""
        types = len(snapshot.cluster.types)
        rooms = np.array([self._room(snapshot, wanted, kind)[0] for kind in range(types)])
        mine = served & ~wanted.kept & (wanted.kind >= 0)
        used = np.bincount(wanted.kind[mine], wanted.asks[mine], types).astype(np.int64)
        jobs = snapshot.jobs
        rows = np.flatnonzero(mine & ~wanted.profiles & (jobs.min_gpus < jobs.max_gpus))
        return replace(wanted, asks=grown(snapshot, wanted, rows, np.maximum(rooms - used, 0)))

    def _terms(self, snapshot: Snapshot, top_level: int = TOP_LEVEL) -> LeaseTerms:
        """What options are made with."""
        return LeaseTerms(
            snapshot.now_s,
            self.deadline_lease_s,
            top_level,
            not self.joint,
            self.suspensions,
            self.whole_leases,
        )

    def _room(self, snapshot: Snapshot, wanted: Wanted, kind: int) -> tuple[int, int]:
        """GPUs of a type that may be given out, and of those set aside for profiling."""
        aside = self._set_aside(snapshot)
        of_kind = snapshot.usable & (snapshot.cluster.kind == kind)
        gpus = np.where(of_kind, snapshot.cluster.node_gpus, 0)
        for row in np.flatnonzero(wanted.kept & (snapshot.jobs.held_kind == kind)).tolist():
            allocation = snapshot.placement[snapshot.jobs.ids[row]]
            for node, count in zip(allocation.nodes, allocation.shape, strict=True):
                gpus[node] = max(int(gpus[node]) - count, 0)
        return int(gpus[~aside].sum()), int(gpus[aside].sum())

    def _set_aside(self, snapshot: Snapshot) -> BoolArray:
        """(nodes,) where nothing but profiling runs."""
        aside = np.zeros(len(snapshot.usable), dtype=np.bool_)
        if self.profiling is Profiling.STATIC:
            aside[np.flatnonzero(snapshot.usable)[: self.profile_nodes]] = True
        return aside

    def _plan(
        self, snapshot: Snapshot, wanted: Wanted, mine: BoolArray, room: int, kind: int
    ) -> tuple[LeasePlan, Options]:
        """The options of every job with a deadline on a type, and which of them are taken."""
        rows = np.flatnonzero(mine & wanted.urgent & (wanted.gpus <= room))
        terms = self._terms(snapshot, _top_level(snapshot, kind))
        options = options_for(snapshot.jobs, rows, wanted.gpus, wanted.left_s, wanted.overhead_s, terms, kind)
        if not self.objective:
            return plan_in_order(options, room), options
        return plan_leases(options, room, self.max_nodes), options

    def _served(
        self,
        snapshot: Snapshot,
        wanted: Wanted,
        mine: BoolArray,
        must: BoolArray,
        reserve: IntArray,
        accepted: BoolArray,
        room: Room,
    ) -> BoolArray:
        """(jobs,) which run on a type.

        Those that must come first, others by worth per GPU, and last those that may run ahead of their plan.
        """
        jobs, running = snapshot.jobs, snapshot.jobs.held_gpus > 0
        worth = best_effort_value(
            wanted.left_s, wanted.overhead_s * self.suspensions, self.best_effort_lease_s
        )
        worth = np.where(wanted.profiles, VALUE_OF_PROFILING, worth) / wanted.asks
        by_worth = np.lexsort((~running, -worth)) if self.objective else np.arange(len(jobs))
        first_deadline_s = np.nan_to_num(jobs.deadline_s - snapshot.now_s, posinf=0.0)
        by_slack = np.lexsort((first_deadline_s - wanted.left_s, ~running))
        left = room.gpus - int(reserve[must].sum())
        served = must.copy()

        # In this order: profiling runs, jobs that only the clock can save, best effort, jobs ahead of their
        # plan, jobs whose deadlines are lost.
        static = self.profiling is Profiling.STATIC
        unplanned = mine & wanted.urgent & ~accepted & ~must
        in_time = unplanned & self._in_time(snapshot, wanted, self.by_clock)
        queues = [
            (by_worth, mine & wanted.profiles & (not static)),
            (by_worth, in_time),
            (by_worth, mine & ~wanted.urgent & ~wanted.profiles),
            (by_slack, mine & wanted.urgent & accepted & ~must),
            (by_worth, unplanned & ~in_time),
        ]
        if not self.puts_off:  # best effort comes after jobs that run ahead of their plan
            queues[2:4] = queues[3:1:-1]
        for order, queue in queues:
            rows = order[queue[order]]
            rows = rows[first_fit(wanted.asks[rows], left)]
            served[rows] = True
            left -= int(wanted.asks[rows].sum())
        if static:
            rows = np.flatnonzero(mine & wanted.profiles)
            served[rows[first_fit(wanted.asks[rows], room.set_aside_gpus)]] = True
        return served

    def _in_time(self, snapshot: Snapshot, wanted: Wanted, by_clock: bool) -> BoolArray:
        """(jobs,) which would meet a deadline if they ran from now on.

        Leases are whole: 21 minutes of work take 3 of 10 minutes, and 29 minutes to a deadline hold 2. Such
        a job has no option in the program, and yet 8 minutes to spare.
        """
        if not by_clock:
            return np.zeros(len(snapshot.jobs), dtype=np.bool_)
        deadline_s, value = rewards_of(snapshot.jobs)
        ends_s = snapshot.now_s + wanted.left_s[:, None]
        with np.errstate(invalid="ignore"):  # jobs of fewer deadlines have NaN
            meets: BoolArray = np.any((value > 0) & (ends_s <= deadline_s + WITHIN_S), axis=1)
        return meets

    def _placed(self, snapshot: Snapshot, wanted: Wanted, served: BoolArray, memory: LeaseBook) -> Shares:
        """The shares of the jobs that are served and for which there are cells."""
        jobs, types = snapshot.jobs, len(snapshot.cluster.types)
        stays, pinned = give_leases(snapshot, wanted, served, self._set_aside(snapshot), self.joint)
        # Jobs that stay keep their cells, the others get those that `give_leases` found.
        gpus = np.where(wanted.kept, jobs.held_gpus, np.where(stays, wanted.asks, 0))
        gpus[list(pinned)] = wanted.asks[list(pinned)]
        kind = np.where(gpus > 0, wanted.kind, -1)
        used = np.bincount(kind[gpus > 0], gpus[gpus > 0], types).astype(np.int64)
        why = reasons_after(snapshot, gpus, np.maximum(snapshot.capacity - used, 0))
        why.code[(gpus == 0) & wanted.profiles & (why.code > 0)] = Why.NOT_PROFILED
        why.code[(gpus == 0) & served & (why.code > 0)] = Why.FRAGMENTED
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros(len(jobs), dtype=np.int64),
            why=why,
            memory=memory,
            profiling=wanted.profiles & (gpus > 0),
            pinned=pinned,
            gap=memory.gap,
        )


def _as_booked(book: LeaseBook | None, ids: tuple[JobId, ...]) -> tuple[BoolArray, BoolArray]:
    """(jobs,) which held a lease, and of which the plan met a deadline, as last remembered."""
    leased, accepted = np.zeros((2, len(ids)), dtype=np.bool_)
    if book is not None:
        row = {job: index for index, job in enumerate(book.ids)}
        was = np.array([row.get(job, -1) for job in ids], dtype=np.int64)
        booked = was >= 0
        leased[booked], accepted[booked] = book.leased[was[booked]], book.accepted[was[booked]]
    return leased, accepted


def _home(snapshot: Snapshot) -> IntArray:
    """(jobs,) the type on which each job runs: the one it holds, else where most GPUs are left; -1 none.

    Deviation: the paper has one type. Jobs that wait are dealt out in their order, counting those before.
    """
    jobs, capacity = snapshot.jobs, snapshot.capacity
    stand_ins, most = snapshot.cluster.stand_ins, most_gpus_of_one_job(snapshot.cluster)
    fits = jobs.allowed_kinds & (jobs.gpus[:, None] * stand_ins <= np.minimum(most, capacity))
    if len(capacity) == 1:
        return np.where(fits[:, 0], 0, -1)
    left = capacity.astype(np.float64)
    home = np.full(len(jobs), -1)
    # Jobs that run come first, so that their types count as taken when the others choose.
    for row in np.argsort(jobs.held_gpus == 0, kind="stable").tolist():
        kind = int(jobs.held_kind[row])
        if kind >= 0 and fits[row, kind]:
            home[row] = kind
        elif fits[row].any():
            home[row] = int(np.where(fits[row], left, -np.inf).argmax())
        if home[row] >= 0:
            left[home[row]] -= jobs.gpus[row] * stand_ins[home[row]]
    return home


def _top_level(snapshot: Snapshot, kind: int) -> int:
    cells = cells_of_nodes(snapshot.cluster, snapshot.usable.tobytes())[kind]
    return int(np.flatnonzero(cells).max(initial=0))


def _gap(bounds: list[tuple[float, float]]) -> float:
    value, bound = (sum(column) for column in zip(*bounds, strict=True))
    return max(bound - value, 0.0) / bound if bound > 0 and np.isfinite(bound) else float(bound > 0)
