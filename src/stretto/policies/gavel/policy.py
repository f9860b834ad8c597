"""Gavel: time fractions by a linear programme, realised in rounds."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobTable,
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
from stretto.policies.gavel.profiling import believed_speeds, known_speeds, pairs_to_profile
from stretto.policies.gavel.programs import (
    Timeshare,
    finish_time_fairness,
    isolated_per_s,
    max_min_fairness,
    max_sum_throughput,
    shortest_makespan,
)
from stretto.policies.gavel.rounds import Account, Ledger, account_now, fill, new_account, pairs_by_priority
from stretto.settings import CheckedSettings, setting


class Objective(StrEnum):
    """What the time fractions make the most of."""

    MAX_SUM_THROUGHPUT = "max-sum-throughput"
    MAX_MIN_FAIRNESS = "max-min-fairness"
    FINISH_TIME_FAIRNESS = "finish-time-fairness"
    MAKESPAN = "makespan"


TINY_PER_S = 1e-300  # of a job that runs nowhere; keeps a ratio of speeds a number
MOST_STEPS = 1e15  # stands for a job without an end
SHORTEST_JOB_S = 1.0  # chosen: keeps a ratio of times meaningful for jobs about to end
NEEDS_REMAINING_WORK = frozenset({Objective.FINISH_TIME_FAIRNESS, Objective.MAKESPAN})


@dataclass(frozen=True)
class Gavel(CheckedSettings, space="policy"):
    """Give each job the fractions of time on each GPU type that an objective wants, round by round.

    Gavel (Narayanan et al., OSDI 2020), sections 4 and 5. Jobs keep their own batch size and GPU count; a
    linear programme says what fraction X of its time each job should run on each type. Every round, pairs of
    job and type run by decreasing X / f. Here f is the part of that type's time that the job received.

    Throughput is in steps per second and not normalised between models, as in Sia's simulations: models
    with short steps win. On a live service, which measures speeds while jobs run, each job's are parts of its
    fastest. Deviations: equal jobs share the time of their kind evenly, where the solver's vertex would pick
    one of them. An interior-point solver, as published, evens them out too. A job that may not be preempted
    keeps what it holds, and its GPUs are left out of the programme. A job never runs on a type that is
    smaller than itself, though `too_large_per_s` may book time for it there.

    The paper supposes that throughputs were measured beforehand. With `profile_rounds` a job runs on each
    type for so many rounds first, as a profiling run (see `profiling`). These runs come before all others, by
    arrival.
    """

    objective: Objective = Objective.MAX_SUM_THROUGHPUT
    round_s: float = setting(360.0, above=0)  # seconds [Gavel, Sia]
    # rounds that a new job counts as received [published code]; 0: it goes first
    head_start: float = setting(0.5, at_least=0)
    # steps/s credited, when summed, on a type smaller than the job [Sia: 0.1]
    too_large_per_s: float = setting(0.0, at_least=0)
    # rounds that a job runs on each type to learn its speed there; 0: no type is tried for that
    profile_rounds: int = setting(0, at_least=0)

    name: ClassVar[str] = "gavel"
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Gavel (OSDI 2020)",
        order="its objective over all jobs, and what each lacks of it; exact ties by fair share",
        starvation=(
            "bounded by the objective: max-min fairness serves everybody in turns, the sum of speeds may not"
        ),
        artifact={"too_large_per_s": "0.1"},  # as Sia's simulator has it
    )

    @property
    def views(self) -> frozenset[View]:
        """Measured throughput, and for two of the objectives what is left to do."""
        remaining = {View.REMAINING_WORK} if self.objective in NEEDS_REMAINING_WORK else set()
        return frozenset({View.THROUGHPUT_TABLE} | remaining)

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: the throughput at the GPUs asked for is enough."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests by priority, each on the type where its priority is highest."""
        jobs = snapshot.jobs
        kept = (jobs.held_gpus > 0) & ~jobs.preemptible
        capacity = np.maximum(snapshot.capacity - _held_by_type(snapshot, kept), 0)
        measured = np.where(jobs.allowed_kinds, np.nan_to_num(speeds.requested_per_s, nan=0.0), 0.0)
        fits = jobs.gpus[:, None] <= most_gpus_of_one_job(snapshot.cluster)
        can_run = fits & (measured > 0) & (capacity > 0) & ~kept[:, None]
        if self.objective is Objective.MAX_SUM_THROUGHPUT and any(
            table.measured is not None for table in jobs.known_tables or ()
        ):
            # Where a world measures while jobs run, a new job has speeds in no unit yet: parts are summed.
            measured = measured / np.maximum(measured.max(axis=1, keepdims=True, initial=0.0), TINY_PER_S)
        remaining = self._remaining(jobs)

        before = snapshot.memory if isinstance(snapshot.memory, Ledger) else None
        # Rounds (section 5): what each job has received on each type, against what it is owed.
        account = (
            account_now(snapshot, before, remaining, self._head_start_s)
            if before
            else new_account(len(jobs), len(capacity), self._head_start_s)
        )
        known = self._known(jobs, account)
        untried = can_run & ~known & jobs.preemptible[:, None]
        if self.profile_rounds:
            speeds_of_types = np.array([gpu_type.speed for gpu_type in snapshot.cluster.types])
            measured = believed_speeds(jobs, measured, known, speeds_of_types)
        per_s = self._per_s(measured, can_run, fits)
        # The linear program is solved anew only where jobs, speeds or capacity have changed.
        if before and _same_programme(before, jobs, per_s, capacity):
            share, isolated = before.share, before.isolated_per_s
        else:
            share, isolated = self._solve(snapshot, per_s, capacity, remaining, account)

        # Pairs of a job and a type by fraction owed over time received; the largest go first.
        rows, kinds = pairs_by_priority(share.fraction, account, self._head_start_s, can_run)
        if untried.any():
            tried_first = pairs_to_profile(jobs, untried)
            rows, kinds = np.concatenate((tried_first[0], rows)), np.concatenate((tried_first[1], kinds))
        kind, left = fill(rows, kinds, jobs.gpus, capacity, kind_before=np.where(kept, jobs.held_kind, -1))
        gpus = np.where(kept, jobs.held_gpus, np.where(kind >= 0, jobs.gpus, 0))
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros(len(jobs), dtype=np.int64),
            why=_reasons(snapshot, gpus, left, share.fraction, can_run, untried),
            memory=Ledger(
                snapshot.now_s, jobs.ids, kind, account, per_s, capacity, share, remaining, isolated
            ),
            prices=share.prices,
            profiling=self._profiles(kind, untried),
        )

    def _known(self, jobs: JobTable, account: Account) -> BoolArray:
        """(jobs, types) on which the speed of a job is known: everywhere, where no type is tried for it."""
        if not self.profile_rounds:
            return np.ones_like(jobs.allowed_kinds)
        received_s = account.received_s - self._head_start_s
        return known_speeds(jobs, received_s, self.profile_rounds * self.round_s)

    def _profiles(self, kind: IntArray, untried: BoolArray) -> BoolArray | None:
        """(jobs,) what is given for a profiling run; None where there are none."""
        if not self.profile_rounds:
            return None
        return np.asarray((kind >= 0) & untried[np.arange(len(kind)), np.maximum(kind, 0)])

    @property
    def _head_start_s(self) -> float:
        return self.head_start * self.round_s

    def _remaining(self, jobs: JobTable) -> FloatArray:
        """(jobs,) steps left where the objective asks, else zeros."""
        if self.objective not in NEEDS_REMAINING_WORK:
            return np.zeros(len(jobs))
        return np.nan_to_num(jobs.remaining_work, nan=0.0, posinf=MOST_STEPS)

    def _per_s(self, measured: FloatArray, can_run: BoolArray, fits: BoolArray) -> FloatArray:
        """(jobs, types) the throughputs that the programme is given; rows of 0 are left out of it."""
        per_s = np.where(can_run, measured, 0.0)
        if self.objective is Objective.MAX_SUM_THROUGHPUT and not fits.all():
            too_large = ~fits & can_run.any(axis=1, keepdims=True)
            per_s[too_large] = self.too_large_per_s
        return per_s

    def _solve(
        self,
        snapshot: Snapshot,
        per_s: FloatArray,
        capacity: IntArray,
        remaining: FloatArray,
        account: Account,
    ) -> tuple[Timeshare, FloatArray]:
        """The objective's optimum and (jobs,) throughputs in isolation; zeros for jobs left out."""
        jobs = snapshot.jobs
        within = np.flatnonzero(per_s.any(axis=1))
        isolated = np.zeros(len(jobs))
        if not within.size:
            return Timeshare(np.zeros(per_s.shape), np.zeros(len(capacity)), 0.0), isolated
        problem = (per_s[within], jobs.gpus[within], capacity)
        # Jobs that can run nowhere are left out, or the max-min objectives would be 0 for all.
        match self.objective:
            case Objective.MAX_SUM_THROUGHPUT:
                solution = max_sum_throughput(*problem)
            case Objective.MAX_MIN_FAIRNESS:
                solution = max_min_fairness(*problem, weight=jobs.weight[within])
            case Objective.MAKESPAN:
                solution = shortest_makespan(*problem, remaining=remaining[within])
            case Objective.FINISH_TIME_FAIRNESS:
                isolated[within] = isolated_per_s(*problem)
                solution = finish_time_fairness(
                    *problem,
                    age_s=snapshot.now_s - jobs.submitted_s[within],
                    remaining=remaining[within],
                    isolated_s=np.maximum(
                        account.isolated_s[within] + remaining[within] / isolated[within], SHORTEST_JOB_S
                    ),
                )
        fraction = np.zeros(per_s.shape)
        fraction[within] = solution.fraction
        return replace(solution, fraction=fraction), isolated


def _held_by_type(snapshot: Snapshot, rows: BoolArray) -> IntArray:
    jobs, types = snapshot.jobs, len(snapshot.cluster.types)
    return np.bincount(jobs.held_kind[rows], jobs.held_gpus[rows], types).astype(np.int64)


def _same_programme(before: Ledger, jobs: JobTable, per_s: FloatArray, capacity: IntArray) -> bool:
    return (
        before.ids == jobs.ids
        and np.array_equal(before.per_s, per_s)
        and np.array_equal(before.capacity, capacity)
    )


def _reasons(
    snapshot: Snapshot,
    gpus: IntArray,
    left: IntArray,
    fraction: FloatArray,
    can_run: BoolArray,
    untried: BoolArray,
) -> Reasons:
    why = reasons_after(snapshot, gpus, left)
    possible = (gpus == 0) & (why.code > 0)
    # One that is still to be tried somewhere waits for GPUs, whatever it is worth.
    why.code[possible & (fraction.sum(axis=1) == 0) & ~untried.any(axis=1)] = Why.WORTH_LESS
    why.code[possible & ~can_run.any(axis=1)] = Why.NOT_PROFILED
    return why
