"""Themis: no job should finish much later than on a share of the cluster of its own.

Themis (Mahajan et al., NSDI 2020), section 3 and algorithm 1. GPUs whose leases have ended are auctioned, by
proportional fairness, with hidden payments.

Arrays of the auction. value: (bidders, columns) V = 1 / ρ of a bidder that gets a column, NaN where it does
not bid. idle: (bidders,) V of one that gets nothing. gpus, kind: (columns,). capacity: (types,).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobId,
    JobTable,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    every,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, most_gpus_of_one_job, reasons_after
from stretto.policies.common.remaining_time import estimated_steps
from stretto.policies.gavel.policy import SHORTEST_JOB_S, Gavel, Objective
from stretto.policies.gavel.programs import (
    MOST_STEPS,
    RATIO_TOLERANCE,
    Timeshare,
    isolated_per_s,
)
from stretto.policies.gavel.rounds import Account
from stretto.settings import CheckedSettings, setting
from stretto.solve import MultipleChoiceKnapsack, assign


@dataclass(frozen=True, slots=True, eq=False)
class Won:
    """What came of an auction. Rows are bidders."""

    column: IntArray  # won, -1 nothing
    part: FloatArray  # of its GPUs that each keeps, the rest is its payment; 1 for a job that won nothing


def finish_time_ratio(elapsed_s: FloatArray, remaining_s: FloatArray, ideal_s: FloatArray) -> FloatArray:
    """ρ = T_sh / T_id: seconds from submission to end as it is, over those on a share of one's own."""
    ratio: FloatArray = (elapsed_s + remaining_s) / ideal_s
    return ratio


def partial_allocation(
    value: FloatArray,
    idle: FloatArray,
    gpus: IntArray,
    kind: IntArray,
    capacity: IntArray,
    pays: BoolArray | None = None,
) -> Won:
    """The columns that maximise the product of all bidders' values, and what each winner pays.

    Bidder i keeps  c_i = Π_{k≠i} V_k(all bid) / Π_{k≠i} V_k(without i)  of what it won: bidding more than
    one's due lowers it. One assignment for all and one more for each winner that pays; pays: (bidders,), all
    unless given.
    """
    # A product is maximised by its logarithm, in which a bidder that wins nothing counts 0: its value then is
    # `idle`.
    worth = np.log(np.where(value > 0, value, 1.0) / idle[:, None])
    allowed = (value > 0) & (worth > 0)
    everybody = np.arange(len(value))
    column, total = _best(worth, allowed, gpus, kind, capacity, everybody)
    part = np.ones(len(value))
    pays = np.ones(len(value), dtype=np.bool_) if pays is None else pays
    # The hidden payment: what all others would gain if this winner had not bid.
    for row in np.flatnonzero((column >= 0) & pays).tolist():
        _, alone = _best(worth, allowed, gpus, kind, capacity, everybody[everybody != row])
        part[row] = min(np.exp(total - worth[row, column[row]] - alone), 1.0)
    return Won(column, part)


def _best(
    worth: FloatArray, allowed: BoolArray, gpus: IntArray, kind: IntArray, capacity: IntArray, rows: IntArray
) -> tuple[IntArray, float]:
    """The columns of most worth within the capacities for some bidders, and that worth."""
    if not rows.size:
        return np.zeros(0, dtype=np.int64), 0.0
    found = assign(MultipleChoiceKnapsack(worth[rows], allowed[rows], gpus, kind, capacity))
    return found.column, found.value


# ── the policy ──────────────────────────────────────────────────────────────────────────────────────────────


SHORTEST_S = 1.0  # chosen: keeps ratios finite for jobs about to end
LEAST_RATIO = 1e-12  # stands for a ratio of 0: a job submitted now with nothing left to do
ROUNDING = 1e-9  # of a count: three quarters of four computed from logarithms must not become two


@dataclass(frozen=True)
class FairTimeshares(Gavel):
    """Gavel with the objective of finish-time fairness, and no linear programme on a single GPU type."""

    objective: Objective = Objective.FINISH_TIME_FAIRNESS
    estimated: bool = False  # steps left follow from estimated durations

    @property
    def views(self) -> frozenset[View]:
        """As Gavel's; estimated durations instead of what is really left, where those are believed."""
        if not self.estimated:
            return super().views
        return frozenset({View.THROUGHPUT_TABLE, View.ESTIMATED_DURATION})

    def _remaining(self, jobs: JobTable) -> FloatArray:
        return estimated_steps(jobs) if self.estimated else super()._remaining(jobs)

    def _solve(
        self,
        snapshot: Snapshot,
        per_s: FloatArray,
        capacity: IntArray,
        remaining: FloatArray,
        account: Account,
    ) -> tuple[Timeshare, FloatArray]:
        """As Gavel's; where there is one type, by `fair_on_one_type`."""
        within = np.flatnonzero(per_s[:, 0] > 0)
        if len(capacity) > 1 or not within.size:
            return super()._solve(snapshot, per_s, capacity, remaining, account)
        jobs = snapshot.jobs
        isolated = np.zeros(len(jobs))
        isolated[within] = isolated_per_s(per_s[within], jobs.gpus[within], capacity)
        # Time alone on an equal part of the cluster: of the past from the account, of the rest from its
        # speed.
        isolated_s = np.maximum(
            account.isolated_s[within] + remaining[within] / isolated[within], SHORTEST_JOB_S
        )
        fraction = np.zeros(per_s.shape)
        fraction[within, 0], ratio = fair_on_one_type(
            alone_s=remaining[within] / per_s[within, 0],
            gpus=jobs.gpus[within],
            capacity=int(capacity[0]),
            age_s=snapshot.now_s - jobs.submitted_s[within],
            isolated_s=isolated_s,
        )
        return Timeshare(fraction, None, ratio), isolated


@dataclass(frozen=True, slots=True)
class Leases:
    """What the auction remembers: until when the jobs that run may keep their GPUs."""

    end_s: tuple[tuple[JobId, float], ...] = ()


@dataclass(frozen=True)
class Themis(CheckedSettings, space="policy"):
    """Give the GPUs to the jobs that fare worst beside a share of the cluster of their own.

    Themis (Mahajan et al., NSDI 2020). Finish-time fairness is ρ = T_sh / T_id. T_sh is a job's time from
    submission to end, T_id what it would take on a G / N part of the cluster, with N unfinished jobs.

    By default time fractions minimise the largest ρ and are realised in rounds. That is Gavel's
    finish-time-fairness programme, with which Sia, Shockwave and ElasticFlow compare under the name of
    Themis. With `auction` it is the paper's own scheme. When leases end, their GPUs are offered to the 1 -
    `fairness_knob` jobs with the worst ρ. These bid 1 / ρ for each type that holds their whole request. The
    product of values is maximised, winners pay with a part of their GPUs, and what is left goes to the others
    at random.

    Deviations of the auction: a bid is for a whole request and says nothing about nodes. N is the number of
    jobs now, not its mean over their lives. A job that cannot run on the part that its payment would leave
    it, as a rigid one never can, keeps all of it. So telling the truth is not always best. Leftovers that no
    other job can use go to losing bidders.

    Cost: on one GPU type a round is a bisection over arrays, O(jobs log 1/ε). On several types it solves some
    twenty linear programmes of jobs x types variables whenever jobs come or go. That takes a second for a
    thousand jobs. An auction has at most `most_bidders` bidders and solves one assignment for each winner.
    Starvation: none without the auction: the largest ρ, which grows while a job waits, is what is minimised.
    With it, a waiting job comes to bid as its ρ grows, and wins or waits for chance; there is no fixed bound.
    """

    auction: bool = False
    round_s: float = setting(360.0, above=0)  # seconds, without the auction [Sia]
    lease_s: float = setting(1_200.0, above=0)  # seconds, with it [Themis]
    # f: the 1 - f of the jobs with the worst ρ bid [Themis]
    fairness_knob: float = setting(0.8, at_least=0, at_most=1)
    most_bidders: int = setting(64, at_least=1)  # chosen: bounds the cost where thousands wait
    estimated: bool = False  # it believes estimated durations, instead of what is really left

    name: ClassVar[str] = "themis"
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Themis (NSDI 2020)",
        order="furthest from a fair finish; exact ties by fair share",
        starvation="bounded by the objective: the ratio of the job that fares worst, which grows as it waits",
    )

    @property
    def views(self) -> frozenset[View]:
        """Measured speeds and what is left to do; durations where there is an auction."""
        if not self.auction:
            return self._timeshares.views
        durations = View.ESTIMATED_DURATION if self.estimated else View.ORACLE_DURATION
        return frozenset({View.THROUGHPUT_TABLE, durations})

    @property
    def triggers(self) -> Triggers:
        """Rounds; or whenever GPUs may have become free, and at the ends of leases."""
        return ON_CHANGE if self.auction else every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: the speed on the GPUs asked for is enough."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Whole requests, each on one GPU type."""
        if not self.auction:
            return self._timeshares.allocate(snapshot, speeds)
        return self._by_auction(snapshot, speeds)

    @property
    def _timeshares(self) -> FairTimeshares:
        return FairTimeshares(round_s=self.round_s, estimated=self.estimated)

    def _by_auction(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        jobs = snapshot.jobs
        memory = snapshot.memory if isinstance(snapshot.memory, Leases) else Leases()
        lease_end_s = _lease_ends(snapshot, memory)
        # Leases that have not ended are kept; what is left is auctioned.
        keeps = (jobs.held_gpus > 0) & (~jobs.preemptible | (lease_end_s > snapshot.now_s))
        gpus = np.where(keeps, jobs.held_gpus, 0)
        kind = np.where(keeps, jobs.held_kind, -1)
        held_gpus = np.bincount(kind[keeps], gpus[keeps], len(snapshot.capacity)).astype(np.int64)
        left = np.maximum(snapshot.capacity - held_gpus, 0)

        bids = _Bids.of(self, snapshot, speeds)
        waiting = np.flatnonzero(~keeps & bids.possible.any(axis=1))
        bidders, others = self._split(snapshot, waiting, bids)
        self._sell(bidders, bids, gpus, kind, left)
        losing = bidders[gpus[bidders] == 0]
        _give_leftovers(np.concatenate((others, losing)), bids, gpus, kind, left)

        # Winners get a new lease. The next auction is due when the first lease ends, if any job waits for it.
        new = (gpus > 0) & ~keeps
        lease_end_s = np.where(new, snapshot.now_s + self.lease_s, lease_end_s)
        runs = np.flatnonzero((gpus > 0) & jobs.preemptible)
        ends = tuple((jobs.ids[row], float(lease_end_s[row])) for row in runs.tolist())
        waits = bool(((gpus == 0) & bids.possible.any(axis=1)).any())
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros(len(jobs), dtype=np.int64),
            why=reasons_after(snapshot, gpus, left),
            memory=Leases(ends),
            wake_s=min((end_s for _, end_s in ends), default=None) if waits else None,
        )

    def _split(self, snapshot: Snapshot, rows: IntArray, bids: "_Bids") -> tuple[IntArray, IntArray]:
        """The jobs to which the GPUs are offered, worst first, and the others in an order of chance."""
        worst = rows[np.lexsort((rows, -bids.ratio[rows]))]
        count = int(np.ceil((1 - self.fairness_knob) * len(rows)))
        count = min(max(count, 1), self.most_bidders, len(rows))
        others = np.sort(worst[count:])
        draw = np.random.default_rng([snapshot.seed, snapshot.version, round(snapshot.now_s * 1e3)])
        return np.sort(worst[:count]), draw.permutation(others)

    def _sell(self, bidders: IntArray, bids: "_Bids", gpus: IntArray, kind: IntArray, left: IntArray) -> None:
        """Hold the auction. A job pays if it can run on what that leaves it; a gang keeps everything."""
        if not bidders.size or not left.any():
            return
        asked = bids.gpus[bidders]
        # Columns: each size that is asked for, on each type. A bidder may win only its own size.
        sizes = np.unique(asked)
        types = len(left)
        column_gpus, column_kind = np.repeat(sizes, types), np.tile(np.arange(types), len(sizes))
        offered = bids.possible[bidders][:, column_kind] & (asked[:, None] == column_gpus)
        value = np.where(offered, 1.0 / bids.served[bidders][:, column_kind], np.nan)
        won = partial_allocation(
            value,
            1.0 / bids.unserved[bidders],
            column_gpus,
            column_kind,
            left,
            pays=bids.least[bidders] < asked,
        )
        for row, column, part in zip(bidders.tolist(), won.column.tolist(), won.part.tolist(), strict=True):
            if column >= 0:
                asks, step = int(column_gpus[column]), int(bids.step[row])
                # Whole workers of what the payment leaves, or all of it where that is less than the job can
                # run on.
                keeps = int(part * asks * (1 + ROUNDING)) // step * step
                gpus[row], kind[row] = keeps if keeps >= bids.least[row] else asks, column_kind[column]
                left[column_kind[column]] -= gpus[row]


@dataclass(frozen=True, slots=True, eq=False)
class _Bids:
    """What every job would be worth with and without its request. Rows are those of the snapshot."""

    gpus: IntArray  # (jobs,) asked for
    least: IntArray  # (jobs,) fewest on which it runs
    step: IntArray  # (jobs,) of a worker
    possible: BoolArray  # (jobs, types) where it can run
    served: FloatArray  # (jobs, types) ρ with its request on a type from now on
    unserved: FloatArray  # (jobs,) ρ if it gets it a lease later
    ratio: FloatArray  # (jobs,) ρ that it reports

    @classmethod
    def of(cls, policy: Themis, snapshot: Snapshot, speeds: Speeds) -> "_Bids":
        """From durations on what was asked for, slower on types on which a job is slower than on its best."""
        jobs = snapshot.jobs
        durations = jobs.estimates if policy.estimated else jobs.durations
        per_s = np.where(jobs.allowed_kinds, np.nan_to_num(speeds.requested_per_s, nan=0.0), 0.0)
        fits = jobs.gpus[:, None] <= most_gpus_of_one_job(snapshot.cluster)
        possible = (per_s > 0) & fits & (snapshot.capacity > 0)
        best = np.where(possible, per_s, 0.0).max(axis=1, initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = np.where(possible, best[:, None] / per_s, np.inf)
        # Alone on its part of the cluster a job would take `ideal_s`: that is what ρ divides by.
        share = max(float(snapshot.capacity.sum()) / max(len(jobs), 1), 1e-9)
        ideal_s = np.maximum(durations.duration_s * np.maximum(jobs.gpus / share, 1.0), SHORTEST_S)
        elapsed_s = snapshot.now_s - jobs.submitted_s
        remaining_s = np.maximum(durations.remaining_s, 0.0)
        served = finish_time_ratio(elapsed_s[:, None], remaining_s[:, None] * slower, ideal_s[:, None])
        soonest = finish_time_ratio(elapsed_s, remaining_s, ideal_s)
        unserved = finish_time_ratio(elapsed_s + policy.lease_s, remaining_s, ideal_s)
        return cls(
            jobs.gpus,
            jobs.min_gpus,
            jobs.gpus_per_worker,
            possible,
            np.maximum(served, LEAST_RATIO),
            np.maximum(unserved, LEAST_RATIO),
            soonest,
        )


def _lease_ends(snapshot: Snapshot, memory: Leases) -> FloatArray:
    """(jobs,) when each job's lease ends; the past where it has none."""
    known: Mapping[JobId, float] = dict(memory.end_s)
    return np.array([known.get(job, -np.inf) for job in snapshot.jobs.ids], dtype=np.float64)


def _give_leftovers(rows: IntArray, bids: _Bids, gpus: IntArray, kind: IntArray, left: IntArray) -> None:
    """What each asks for, or as much of it as it can run on, in the order given, on the roomiest type."""
    for row in rows.tolist():
        if not left.any():
            return
        fits = np.flatnonzero(bids.possible[row] & (left >= bids.least[row]))
        if fits.size:
            type_index, step = int(fits[left[fits].argmax()]), int(bids.step[row])
            gpus[row], kind[row] = min(int(bids.gpus[row]), int(left[type_index]) // step * step), type_index
            left[type_index] -= gpus[row]


# Themis as others compare with it: Gavel's programme of finish-time fairness, realised in Gavel's rounds.


def fair_on_one_type(
    alone_s: FloatArray, gpus: IntArray, capacity: int, age_s: FloatArray, isolated_s: FloatArray
) -> tuple[FloatArray, float]:
    """(jobs,) time fractions x that make the largest finish-time ratio smallest, and that ratio.

        min ρ,  age + alone / x <= ρ isolated  for all,  x <= 1,  sum R x <= G

    A ratio asks x >= alone / (ρ isolated - age) of each job, which falls as ρ grows: bisection. What is left
    then goes to the jobs that ask for fewest GPUs, up to all of their time.
    """
    # An upper bound by doubling, then bisection between the two.
    least = float(((age_s + alone_s) / isolated_s).max())  # at x = 1: no job can do better
    most = max(2.0 * least, 1.0)
    for _ in range(MOST_STEPS):
        if (gpus * _asked(most, alone_s, age_s, isolated_s)).sum() <= capacity:
            break
        most *= 2
    while most - least > RATIO_TOLERANCE * most:
        ratio = (least + most) / 2
        if ratio <= least:  # no number lies between: of jobs new and done the ratio is 0
            break
        if (gpus * _asked(ratio, alone_s, age_s, isolated_s)).sum() <= capacity:
            most = ratio
        else:
            least = ratio
    # What is left goes to the jobs of fewest GPUs, up to all of their time.
    fraction = _asked(most, alone_s, age_s, isolated_s)
    order = np.argsort(gpus, kind="stable")
    wish = (gpus * (1.0 - fraction))[order]
    left = max(capacity - float((gpus * fraction).sum()), 0.0)
    more = np.clip(left - (np.cumsum(wish) - wish), 0.0, wish)
    fraction[order] += more / gpus[order]
    return np.minimum(fraction, 1.0), most


def _asked(ratio: float, alone_s: FloatArray, age_s: FloatArray, isolated_s: FloatArray) -> FloatArray:
    """(jobs,) the fraction of its time that each needs for a ratio; infinite where none is enough."""
    left_s = ratio * isolated_s - age_s
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(left_s > 0, alone_s / left_s, np.inf)
    asked: FloatArray = np.where(needed <= 1 + 1e-12, np.minimum(needed, 1.0), np.inf)
    return asked
