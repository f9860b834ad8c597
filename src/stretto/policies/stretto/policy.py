"""Stretto's own policy: least mean of remaining times, where every change must pay for itself.

docs/decisions/0018-stretto.md says why, and what that is worth.
"""

from dataclasses import dataclass, replace
from math import floor, isnan, nan
from typing import ClassVar

import numpy as np

from stretto.model import (
    ALL_SIZES,
    ON_CHANGE,
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    JobId,
    JobOutlook,
    PolicyTraits,
    Promise,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    floats,
    powers_and_whole_nodes,
)
from stretto.model.timing import span
from stretto.policies.sia.configurations import ConfigurationSet
from stretto.policies.stretto.costs import Costs
from stretto.policies.stretto.kept_promises import PromiseGate, gate_of
from stretto.policies.stretto.lifetimes import Lifetimes
from stretto.policies.stretto.promises import NONE_YET, Deadlines, Promises, deadlines_of
from stretto.settings import CheckedSettings, setting
from stretto.solve import assign

CURRENT_IS_BETTER = 1e-6  # chosen: ties keep the configuration that a job has
USUAL_WEIGHT = 5.0  # lifetimes that have to be seen until they count half; chosen
STRICT = 100.0  # reward of a strict deadline in traces [UniSched, section III-C2]
SELDOM = 10  # rounds, after which those who wait are worth a little more; chosen
MUCH = 10.0  # jobs as which one counts that is worth more than usual; chosen
KEPT = 100.0  # worth of going on, of a job that saves nothing: above all but those sessions; chosen
FIRST_SERVED = 10_000.0  # worth of serving an interactive session: above all else; chosen


@dataclass(frozen=True)
class Stretto(CheckedSettings, space="policy"):
    """Choose one configuration for each job so that the power mean of remaining times is least.

    The remaining time T of a job on a configuration is the work that is left over its goodput there. The sum
    of log T is least where the relative gain of a further GPU is the same for all. That is a compromise: the
    sum of T would serve the longest jobs first, the sum of -1/T the shortest. We take the sum of
    (T^q - 1) / q, which is log T where q = 0. With q a little below, short jobs come a little before long
    ones, as with heSRPT (Berg et al., 2020). On a crowded cluster q is lower still. A wait adds a usual T,
    which is much for a short job. A job with a deadline counts as less than one while that can wait, and as
    several once it cannot.

    What a change costs is charged over the time for which a configuration lasts. That is learned from what
    became of earlier ones: a cluster on which much happens changes more reluctantly. A resize in place costs
    little, so that jobs grow and shrink readily and rarely move. One that is a restart costs more than a move
    that takes as long, since another size will follow.

    What a job has shown counts for all jobs of its model, so that few have to find out how they scale.
    """

    name: ClassVar[str] = "stretto"
    views: ClassVar[frozenset[View]] = frozenset(
        {View.GOODPUT_MODEL, View.PROGRESS, View.REMAINING_WORK, View.ESTIMATED_DURATION}
    )
    placer: ClassVar[str] = "whole-nodes"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Stretto's own",
        shares_knowledge=True,
        sizes_by_type=True,
        order="its program over all jobs at once, in which those behind in fair share count more",
        starvation="bounded in practice: what serving a job is worth grows without bound while it waits",
        former={
            "size_digits": "62",
            "exponent": "0",
            "crowded_exponent": "none",
            "wait": "1",
            "growth": "2",
            "sizes_end": "false",
            "early": "1",
            "keeps_promises": "false",
        },
    )

    # between decisions while more becomes known; it decides when jobs or nodes come and go, too
    round_s: float = setting(60.0, above=0)
    # most GPUs of a job, as a multiple of the most on which its model was observed; chosen of 2 and 4 on
    # sixteen training workloads
    growth: int = setting(4, at_least=1)
    # q of the power mean of remaining times: 0 their product, -1 their harmonic mean; chosen of 0, -0.05,
    # -0.1 and -0.15 on eight training workloads (docs/decisions/0018-stretto.md)
    exponent: float = setting(-0.1, at_least=-1, at_most=0)
    # q towards which it falls on a crowded cluster, so that short jobs come first more strictly; chosen of
    # -0.1, -0.6 and -1 on training workloads (docs/decisions/0018-stretto.md); none: it stays
    crowded_exponent: float | None = setting(-0.6, at_least=-1, at_most=0)
    # what jobs ask for over the GPUs that there are, from which on q moves there; chosen of 1 and 2, likewise
    crowded_from: float = setting(2.0, at_least=1)
    # W: a job that is not served waits for so many usual remaining times. Above 1.11, serving one more job of
    # usual length is worth more than twice the GPUs for another: (1 + W)^q < 2 - 2^-q
    wait: float = setting(1.2, above=0)
    # seconds of waiting by which the worth of being served grows by 1
    patience_s: float = setting(36_000.0, above=0)
    # worth of a deadline that cannot wait, for each unit of its reward; chosen with `early`
    deadline: float = setting(0.02, at_least=0)
    # as how many jobs one counts whose deadline can wait: 1: to be early is worth as much as to any other,
    # 0: nothing; chosen of 1, 0.5 and 0.2 on training workloads (docs/decisions/0018-stretto.md)
    early: float = setting(0.5, at_least=0, at_most=1)
    # of the cluster, up to which deadlines are promised
    promised_share: float = setting(0.3, above=0, at_most=1)
    # a job that cannot be stopped does not begin where a promised deadline will need its GPUs
    keeps_promises: bool = True
    # by how much it matters what a user has had; 0: not at all
    fairness: float = setting(1.0, at_least=0)
    # share of its length by which a job with a deadline may turn out to be longer
    doubt: float = setting(0.1, at_least=0)
    # for which a configuration is believed to last before any has ended
    lifetime_s: float = setting(180.0, above=0)
    # a change of size is charged e^(c / L), as the size ends with the next one; off: as a move is, 1 + c / L
    sizes_end: bool = True
    # after which an ended configuration counts half
    half_life_s: float = setting(3600.0, above=0)
    # how often lenders are believed to take nodes back, over what they have needed so far says
    reclaims: float = setting(1.0, at_least=0)
    # of a job whose stop and start were not measured
    restart_s: float = setting(30.0, at_least=0)
    # significant binary digits of numbers of nodes: all up to 2^6, then steps of at most 1/32; 62: all
    size_digits: int = setting(6, at_least=1, at_most=ALL_SIZES)

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go; a wake-up time is added where more will be known by then."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """Powers of two within a node, then whole nodes, many of them in steps: those of Sia, section 3.3."""
        return powers_and_whole_nodes(cluster, self.size_digits)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """One configuration, or none, for every job: that of least sum, at prices by GPU type."""
        known = self._known(snapshot, speeds)
        configs, row = known.configs, known.configs.cells.row
        lifetimes = known.memory.lifetimes.at(snapshot, self.half_life_s)
        lasts_s = lifetimes.mean_s(self.lifetime_s, USUAL_WEIGHT)
        until_s = np.where(known.ends[row], np.minimum(lasts_s, known.alone_s), lasts_s)
        remaining_s = known.costs.amortised_s(known.alone_s, until_s, self.sizes_end)
        # What each configuration is worth; the program; what its solution means.
        counts = self._counts(snapshot, known, lasts_s)
        worth = self._worth(snapshot, remaining_s, known, counts)
        valid = configs.valid.copy()
        gate = self._gate(snapshot, known) if self.keeps_promises else None
        forced, capacity = configs.forced(snapshot, valid, worth, gate)
        with span("solve"):
            prefer = np.where(configs.current, CURRENT_IS_BETTER, 0.0) + configs.fewest_first(snapshot.jobs)
            chosen = assign(configs.knapsack(worth, valid, capacity, forced, prefer))
        shares = configs.shares(snapshot, chosen, forced, capacity)
        return replace(
            shares,
            memory=Remembered(lifetimes, known.due.promises(snapshot.jobs.ids)),
            wake_s=self._wake_s(snapshot, shares, known.due),
        )

    def _gate(self, snapshot: Snapshot, known: "Known") -> PromiseGate | None:
        """What jobs that cannot be stopped must leave to promises, if any could begin."""
        configs = known.configs
        ends_s = np.where(known.ends[configs.cells.row], known.alone_s + known.costs.change_s, np.inf)
        return gate_of(
            snapshot.jobs, snapshot.now_s, configs, known.due, known.takes_s, ends_s, snapshot.capacity
        )

    def outlook(self, snapshot: Snapshot, speeds: Speeds, job: JobId) -> JobOutlook:
        """What a decision made now would promise a job."""
        known = self._known(snapshot, speeds)
        due, cells = known.due, known.configs.cells
        row, now_s = snapshot.jobs.ids.index(job), snapshot.now_s
        first_s, end_s = float(snapshot.jobs.deadline_s[row]), now_s + float(cells.least(known.takes_s)[row])
        promise, due_s = None, nan
        if any(reward.deadline_s > now_s for reward in snapshot.jobs[row].rewards):
            aims_s = float(due.due_s[row])
            promise, due_s = Promise.NO if isnan(aims_s) else Promise.AT_RISK, first_s
            if due.promised[row]:
                promise = Promise.YES if aims_s == first_s else Promise.AT_RISK
                due_s = end_s = aims_s
        is_measured = bool(np.isfinite(snapshot.jobs.progress.suspension_s[row]))
        return JobOutlook(promise, due_s, end_s, nan, float(known.costs.starts_s[row]), is_measured)

    def _known(self, snapshot: Snapshot, speeds: Speeds) -> "Known":
        """T of every job in every configuration, with what a change to it takes, and the deadlines."""
        memory = snapshot.memory if isinstance(snapshot.memory, Remembered) else NOTHING_YET
        configs = ConfigurationSet.of(snapshot, speeds, speeds.observed_gpus, self.growth)
        costs = Costs.of(snapshot, configs, self.restart_s)
        alone_s, ends = self._alone_s(snapshot, configs, speeds)
        alone_s = costs.with_returns_s(alone_s, snapshot, configs, self.reclaims)
        takes_s = np.where(ends[configs.cells.row], alone_s * (1.0 + self.doubt) + costs.change_s, np.inf)
        due = deadlines_of(
            snapshot.jobs,
            snapshot.now_s,
            configs.cells,
            takes_s,
            configs.gpus,
            float(max(snapshot.capacity.sum(), 1)),
            self.promised_share,
            memory.promises,
        )
        return Known(memory, configs, costs, alone_s, ends, takes_s, due)

    def _wake_s(self, snapshot: Snapshot, shares: Shares, due: Deadlines) -> float | None:
        """The next round while jobs learn how fast they are or deadlines come nearer; seldom for others."""
        learns = np.array([evidence is not None for evidence in snapshot.jobs.evidence], dtype=np.bool_)
        waits = (shares.gpus == 0) & (shares.why.code > 0)
        if ((shares.gpus > 0) & learns).any() or (waits & np.isfinite(due.due_s)).any():
            every_s = self.round_s
        elif waits.any():
            every_s = SELDOM * self.round_s
        else:
            return None
        wake_s = (floor(snapshot.now_s / every_s) + 1) * every_s
        return wake_s if wake_s > snapshot.now_s else wake_s + every_s  # of a fraction the product may be now

    def _alone_s(
        self, snapshot: Snapshot, configs: ConfigurationSet, speeds: Speeds
    ) -> tuple[FloatArray, BoolArray]:
        """(cells,) T without changes, and (jobs,) whether it is known how much is left.

        What the job itself counts, else the time that its owner states for what it asks for. Where that is no
        configuration, the time is for its fastest one. Of a job of which nothing is known relative speeds
        count, as if it did not end. It is as long as the median of all others, each at its fastest.
        """
        jobs, cells = snapshot.jobs, configs.cells
        can_run = configs.valid & (configs.goodput > 0)
        fastest_per_s = -cells.least(np.where(can_run, -configs.goodput, 0.0))
        fastest_per_s[~cells.any(can_run)] = np.nan
        left = jobs.remaining_work.copy()
        unsaid = np.flatnonzero(~(left > 0))
        rows, kinds = jobs.allowed_kinds[unsaid].nonzero()
        asked_per_s = np.zeros(len(jobs))
        np.maximum.at(asked_per_s, unsaid[rows], np.nan_to_num(speeds.on_request(unsaid[rows], kinds)))
        asked_per_s = np.where(asked_per_s > 0, asked_per_s, fastest_per_s)
        left[unsaid] = (jobs.estimates.remaining_s * asked_per_s)[unsaid]
        is_known = (left > 0) & np.isfinite(left)
        lengths_s = left[is_known] / fastest_per_s[is_known]
        lengths_s = lengths_s[np.isfinite(lengths_s)]
        usual_s = np.median(lengths_s) if lengths_s.size else 1.0
        left = np.where(is_known, left, usual_s * fastest_per_s)
        alone_s = np.full(len(cells.row), np.inf)
        alone_s[can_run] = left[cells.row[can_run]] / configs.goodput[can_run]
        return alone_s, is_known

    def _counts(self, snapshot: Snapshot, known: "Known", lasts_s: float) -> FloatArray:
        """(cells,) as how many jobs one counts where it is served so.

        What is decided now lasts for about `lasts_s`. A deadline with so much slack is lost with a chance of
        e^(-slack / lasts) if the job waits. Configurations that are too slow for it count by as much less.
        As far as it can wait, all that is gained is to be early.
        Of a job that serves, every request that comes while it waits is late.
        """
        jobs, due, row = snapshot.jobs, known.due, known.configs.cells.row
        of_jobs = jobs.weight * self._standing(snapshot)
        of_jobs[jobs.serves] += self.deadline * STRICT
        counts: FloatArray = of_jobs[row]
        cells = np.flatnonzero(np.isfinite(due.due_s)[row])
        if cells.size:
            of_cell = row[cells]
            ends_s = known.alone_s[cells] + known.costs.change_s[cells]
            late_s = np.maximum(ends_s - (due.due_s[of_cell] - snapshot.now_s), 0.0)
            presses = np.exp(-due.slack_s[of_cell] / lasts_s)
            counts[cells] *= self.early + (1.0 - self.early) * presses
            urgent = due.reward[of_cell] * presses
            counts[cells] += self.deadline * urgent * np.exp(-late_s / lasts_s)
        # Beyond what is usual it grows with the logarithm: sessions come first, whatever a deadline is worth.
        return np.where(counts > MUCH, MUCH * (1.0 + np.log(np.maximum(counts, MUCH) / MUCH)), counts)

    def _standing(self, snapshot: Snapshot) -> FloatArray:
        """(jobs,) 2^(1 - U/S): U is the part of all usage that a job's user has had, S its share."""
        jobs, fair = snapshot.jobs, snapshot.constraints.fair_share
        if not self.fairness or fair is None:
            return np.ones(len(jobs))
        accounts = jobs.requests.accounts[jobs.rows].tolist()
        if not fair.matters_to(accounts):
            return np.ones(len(jobs))
        present = sorted(set(accounts))
        used = floats([fair.usage_gpu_s.get(account, 0.0) for account in present])
        shares = floats([fair.user_shares.get(user, 1.0) for _, user in present])
        over = (used / used.sum()) / (shares / shares.sum()) if used.sum() > 0 else np.ones(len(present))
        standing = dict(zip(present, 2.0 ** (self.fairness * np.clip(1.0 - over, -1.0, 1.0)), strict=True))
        return floats([standing[account] for account in accounts])

    def _exponent(self, snapshot: Snapshot, configs: ConfigurationSet) -> float:
        """The q of the power mean: from `exponent` towards `crowded_exponent` as jobs ask for more than fits.

        Beyond `crowded_from` times the cluster the part 1 - crowded_from x there / asked of what is asked for
        can be served by no sharing. GPUs are few for each job then, and speed grows nearly in proportion to
        them. There heSRPT (Berg et al., 2020) tends to shortest remaining time first. Jobs that nothing here
        can serve are not counted.
        """
        capacity = snapshot.capacity
        fits = configs.valid & (configs.gpus <= capacity[configs.kind])
        asked = float(snapshot.jobs.gpus[configs.cells.any(fits)].sum())
        there = float((capacity / snapshot.cluster.stand_ins).sum())
        if self.crowded_exponent is None or asked <= self.crowded_from * there:
            return self.exponent
        beyond = 1.0 - self.crowded_from * there / asked
        return self.exponent + (self.crowded_exponent - self.exponent) * beyond

    def _worth(
        self, snapshot: Snapshot, remaining_s: FloatArray, known: "Known", counts: FloatArray
    ) -> FloatArray:
        """(cells,) by how much the sum falls where a job is served so: 0 without GPUs.

        With T_0 on the slowest configuration, x = log(T_0 / T) and y = log(1 + W / T_0), and up to a factor,

            (T_0^q - T^q) / q = T_0^q (e^(-q x) - 1) / -q        what more GPUs are worth, x where q = 0
            ((T_0 + W)^q - T_0^q) / q = T_0^q (e^(q y) - 1) / q  what being served is worth, y where q = 0
        """
        jobs, costs, cells, valid = snapshot.jobs, known.costs, known.configs.cells, known.configs.valid
        can_run = valid & np.isfinite(remaining_s)
        slowest_s = -cells.least(np.where(can_run, -remaining_s, 0.0))
        is_known = slowest_s > 0
        slowest_s = np.where(is_known, slowest_s, 1.0)
        served_s = np.where(can_run, remaining_s, slowest_s[cells.row])  # of unknown speed, as where reserved
        # A job that is not served waits for about a usual T; one that is stopped also has to start again.
        usual_s = np.median(slowest_s[is_known]) if is_known.any() else 1.0
        waits = np.log1p((self.wait * usual_s + costs.stop_s) / slowest_s)
        exponent = self._exponent(snapshot, known.configs)
        of_length = _weight_of_length(slowest_s, known.ends & is_known, exponent)
        serving = (of_length * _bent(waits, exponent))[cells.row] * counts
        waited_s = np.maximum(snapshot.now_s - jobs.submitted_s - jobs.progress.executed_s, 0.0)
        first = waited_s / self.patience_s + FIRST_SERVED * jobs.interactive
        faster = np.log(slowest_s[cells.row] / served_s)
        gain = serving + first[cells.row] + of_length[cells.row] * _bent(faster, -exponent)
        # What a job has done and would lose is lost to all: it goes on, if need be on less.
        gain += KEPT * costs.goes_on
        return np.where(valid, gain, 0.0)


def _weight_of_length(slowest_s: FloatArray, ends: BoolArray, exponent: float) -> FloatArray:
    """(jobs,) T_0^q, 1 for a job of median length.

    Also 1 for a job of which it is unknown how much is left: its T only compares configurations.
    """
    if not ends.any():
        return np.ones(len(slowest_s))
    weight: FloatArray = np.where(ends, slowest_s / np.median(slowest_s[ends]), 1.0) ** exponent
    return weight


def _bent(values: FloatArray, power: float) -> FloatArray:
    """(e^(power x) - 1) / power, which is x where the power is 0."""
    return np.expm1(power * values) / power if power else values


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """What Stretto remembers of a decision."""

    lifetimes: Lifetimes
    promises: Promises


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of all jobs and configurations before anything is decided."""

    memory: Remembered
    configs: ConfigurationSet
    costs: Costs
    alone_s: FloatArray  # (cells,) T, with what lenders make of it, and without changes
    ends: BoolArray  # (jobs,) it is known how much is left
    takes_s: FloatArray  # (cells,) until the job ends at the latest, infinite where that is not known
    due: Deadlines


NOTHING_YET = Remembered(Lifetimes(), NONE_YET)
