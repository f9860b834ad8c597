"""Sia: goodput of every job on every bundle of GPUs, and the best choice of bundles as one program."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

import numpy as np

from stretto.model import (
    ALL_SIZES,
    BoolArray,
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
    every,
    powers_and_whole_nodes,
)
from stretto.model.timing import span
from stretto.policies.sia.columns import Pools
from stretto.policies.sia.configurations import ConfigurationSet, restart_costs_s
from stretto.policies.sia.last_round import Facts, Last, Round
from stretto.settings import CheckedSettings, setting
from stretto.solve import assign

ANY_JOBS = 10**9  # more than there are: every round is decided anew
MOST_POWER = 16  # chosen: 1000^16 is still a number that can be summed
CURRENT_IS_BETTER = 1e-6  # chosen: ties keep the configuration that a job has
LATER_IS_BETTER = 1e-8  # ties of waiting jobs go to the last type, as seen in the published simulator


class FirstType(StrEnum):
    """What is known of a job that has never run."""

    BLIND = "blind"  # nothing: its first GPU ignores the type (the published simulator)
    PROFILED = "profiled"  # its speed on one GPU of each type (the paper)


class Discount(StrEnum):
    """How far the restart factor may lower a configuration's worth."""

    PAPER = "paper"  # without limit: a job may rather be stopped than be made smaller
    ROBUST = "robust"  # never below being stopped


@dataclass(frozen=True)
class SiaMemory:
    """What a round about many jobs goes on from."""

    prices: tuple[float, ...]  # by pool of GPUs, worth of one more


@dataclass(frozen=True)
class Sia(CheckedSettings, space="policy"):
    """Choose one configuration for each job so that the sum of normalised goodputs is best.

    Sia (Jayaram Subramanya et al., SOSP 2023), section 3. Worth is G^p, with G the goodput of a job on a
    configuration over that on its worst one (3.4). It is multiplied by the restart factor (equation 3) where
    the configuration would change. For p < 0 the sum is minimised; λ is the cost of leaving a job without
    GPUs. We maximise λ - G^p (p < 0) or λ + G^p (p > 0), where a job without GPUs counts 0: the same program.

    Deviations. The printed sign of λ rewards waiting for p > 0; λ is meant as a penalty and is one here.
    Seconds, not GPU-seconds, are lost by a restart, as the age is counted in seconds.
    """

    name: ClassVar[str] = "sia"
    views: ClassVar[frozenset[View]] = frozenset({View.GOODPUT_MODEL, View.PROGRESS})
    placer: ClassVar[str] = "whole-nodes"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Sia (SOSP 2023)",
        sizes_by_type=True,  # hybrid-parallel jobs, section 3.4
        order="no order of jobs: its program chooses for all at once",
        starvation="bounded in practice: the first GPU of a job is worth more than a further one of another",
        reproducing={
            "discount": "paper",
            "size_digits": "62",
            "goes_on_from": f"{ANY_JOBS}",
        },  # with measured profiles
        artifact={"first_type": "blind", "decimals": "2"},  # as its simulator
        former={"size_digits": "62", "goes_on_from": f"{ANY_JOBS}"},
    )

    round_s: float = setting(60.0, above=0)  # seconds between rounds; section 4.3
    # p, section 4.3
    fairness_power: float = setting(-0.5, at_least=-MOST_POWER, at_most=MOST_POWER, nonzero=True)
    wait_penalty: float = setting(1.1, above=0)  # λ, section 4.3
    # most GPUs of a job, as a multiple of the most on which it was observed; section 3.1
    growth: int = setting(2, at_least=1)
    # S_i of a job that names none; Pollux (OSDI 2021), section 5.3
    restart_s: float = setting(30.0, at_least=0)
    first_type: FirstType = FirstType.PROFILED
    discount: Discount = Discount.ROBUST
    # G^p is rounded to so many (the published simulator: 2); -1: not at all
    decimals: int = setting(-1, at_least=-1, at_most=15)

    # significant binary digits of numbers of nodes: all up to 2^6, then steps of at most 1/32; 62: all
    size_digits: int = setting(6, at_least=1, at_most=ALL_SIZES)

    # jobs from which a round goes on from the last one; chosen: of fewer, all can be decided anew quickly
    goes_on_from: int = setting(5_000, at_least=1)

    _last: Last = field(default_factory=Last, init=False, repr=False, compare=False)

    @property
    def profiles_first(self) -> bool:
        """Whether live a job first runs with one worker on types where it was not measured; section 3.2."""
        return self.first_type is FirstType.PROFILED

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """Powers of two within a node, then whole nodes (section 3.3), large numbers of them in steps."""
        return powers_and_whole_nodes(cluster, self.size_digits)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """One configuration, or none, for every job: sections 3.3 and 3.4 in their order."""
        # The configuration set C with its goodputs (3.3), and (r_i G_ij)^p of equation 4 as a worth (3.4).
        is_large = len(snapshot.jobs) >= self.goes_on_from
        configs, normal = self._configuration_set(snapshot, speeds, keeps=is_large)
        worth = self._worth(snapshot, speeds, configs, normal)
        # Non-preemptive jobs and reservations are constraints on the choice (3.4, the last paragraph).
        valid = configs.valid.copy()
        forced, capacity = configs.forced(snapshot, valid, worth)
        # The ILP: at most one configuration for each job, within the GPUs of each type.
        with span("solve"):
            prefer = _prefer(configs, valid) + configs.fewest_first(snapshot.jobs)
            problem = configs.knapsack(worth, valid, capacity, forced, prefer)
            if is_large and (prices := _prices_before(snapshot, capacity.size)) is not None:
                chosen = assign(problem, start=prices, is_held=configs.current)
            else:
                chosen = assign(problem)
        shares = configs.shares(snapshot, chosen, forced, capacity)
        return replace(shares, memory=SiaMemory(tuple(chosen.prices.tolist()))) if is_large else shares

    def pays(self, snapshot: Snapshot, speeds: Speeds) -> FloatArray:
        """(jobs, types) the most that a job could pay for one GPU of a type, NaN where it cannot run there.

        In the units of `Shares.prices`: a configuration is chosen where its worth exceeds its price.
        """
        configs, normal = self._configuration_set(snapshot, speeds)
        per_gpu = self._worth(snapshot, speeds, configs, normal) / np.maximum(configs.gpus, 1)
        most = np.full((len(snapshot.jobs), len(snapshot.cluster.types)), np.nan)
        cells = np.flatnonzero(configs.valid)
        np.fmax.at(most, (configs.cells.row[cells], configs.kind[cells]), per_gpu[cells])
        return np.where(np.isfinite(most), most, np.nan)

    def _configuration_set(
        self, snapshot: Snapshot, speeds: Speeds, keeps: bool = False
    ) -> tuple[ConfigurationSet, FloatArray]:
        """Section 3.3, with the doubling rule of 3.1 in replicas, and the goodputs as jobs compare.

        keeps: for the next round, and as far as nothing has changed from the last one.
        """
        # An oracle may have been shown speeds on GPUs that the job never held.
        seen = np.minimum(speeds.observed_gpus, snapshot.jobs.progress.largest_held_gpus[:, None])
        pools = Pools.of(snapshot, speeds)

        def make(rows: IntArray) -> ConfigurationSet:
            return ConfigurationSet.of_rows(snapshot, speeds, rows, seen, self.growth, pools)

        if not keeps:
            configs = make(np.arange(len(snapshot.jobs)))
            return configs, self._normal(configs)
        made_by = Round.of if self._last.round is None else self._last.round.next
        self._last.round = now = made_by(Facts.of(snapshot, speeds, pools.unsplit.sizes), make, self._normal)
        return now.configs, now.normal

    def _normal(self, configs: ConfigurationSet) -> FloatArray:
        """(cells,) G / min G in GPUs of the configuration that is worst, so that jobs compare (3.4).

        1 where it may not run; no number where it may, though nothing is known of its speed.
        """
        ranges, cells, valid = configs.ranges, configs.cells, configs.valid
        goodput = configs.goodput
        if self.first_type is FirstType.BLIND:
            goodput = np.where(ranges.modelled[cells.row], goodput, 1.0)
        lowest = cells.least(np.where(valid, goodput, np.inf))
        worst = configs.kind[cells.first(valid & (goodput == lowest[cells.row]))] if len(goodput) else 0
        rows = np.arange(len(ranges))
        least_gpus = np.maximum(ranges.replica[rows, worst], ranges.fewest[rows, worst])
        # A job that serves needs what keeps its service level; with less it does nothing.
        if ranges.serves.any():
            fewest = cells.least(np.where(valid, configs.gpus, np.inf))
            least_gpus = np.where(ranges.serves, fewest, least_gpus)
        units = np.where(ranges.fixed, ranges.request[rows, worst], least_gpus)
        normal = np.ones(len(goodput))
        some = np.flatnonzero(valid)
        row = cells.row[some]
        normal[some] = goodput[some] / lowest[row] * units[row]
        return normal

    def _worth(
        self, snapshot: Snapshot, speeds: Speeds, configs: ConfigurationSet, normal: FloatArray
    ) -> FloatArray:
        """λ -/+ (r G / min G)^p, (cells,); section 3.4, equations 3 to 5."""
        # Equation 3 lowers every configuration but the present one.
        factor = np.repeat(self._restart_factors(snapshot, speeds, configs.runs), configs.cells.count)
        factor[configs.current_cells] = 1.0
        scaled = normal * factor
        if not np.isfinite(normal.sum()):  # of a reserved job of which nothing is known, say
            scaled = np.where(np.isfinite(scaled), scaled, 1.0)
        with np.errstate(divide="ignore"):
            powered = scaled**self.fairness_power
        if self.decimals >= 0:
            powered = np.round(powered, self.decimals)
        if self.fairness_power > 0:
            return self.wait_penalty + powered
        # Without this a restart factor near 0 makes G^p exceed λ, and a job rather stops than shrinks.
        if self.discount is Discount.ROBUST:
            powered = np.minimum(powered, self.wait_penalty - 0.01)
        return self.wait_penalty - powered

    def _restart_factors(self, snapshot: Snapshot, speeds: Speeds, runs: BoolArray) -> FloatArray:
        """(jobs,) r of equation 3 of a running job whose configuration would change, else 1.

        r = max(T - N S, 0) / (T + S), with T the age, N the restarts so far, S the cost of one; 1 while T <
        S. runs: (jobs,) whether it holds a configuration.
        """
        jobs = snapshot.jobs
        restart_s = restart_costs_s(jobs, speeds, self.restart_s)
        age_s = snapshot.now_s - jobs.submitted_s
        factor = np.maximum(age_s - jobs.progress.restarts * restart_s, 0.0) / (age_s + restart_s)
        return np.where((age_s >= restart_s) & runs, factor, 1.0)


def _prices_before(snapshot: Snapshot, pools: int) -> FloatArray | None:
    """(pools,) what a GPU of each was worth in the last round; None where that is not known."""
    before = snapshot.memory
    known = isinstance(before, SiaMemory) and len(before.prices) == pools
    return np.array(before.prices) if known else None


def _prefer(configs: ConfigurationSet, valid: BoolArray) -> FloatArray:
    """(cells,) a trifle for the configuration that a job has, or for later types in a first choice."""
    prefer = np.zeros(configs.cells.row.size)
    waiting = configs.cells.of_rows(np.flatnonzero(~configs.runs))
    waiting = waiting[valid[waiting]]
    prefer[waiting] = configs.kind[waiting] * LATER_IS_BETTER
    prefer[configs.current_cells] = CURRENT_IS_BETTER
    return prefer
