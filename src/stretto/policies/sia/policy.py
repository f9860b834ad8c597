"""Sia: goodput of every job on every bundle of GPUs, and the best choice of bundles as one program."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from stretto.model import (
    UNLIMITED_GPUS,
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    JobTable,
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
from stretto.policies.sia.configurations import ConfigurationSet
from stretto.settings import CheckedSettings, setting
from stretto.solve import MultipleChoiceKnapsack, assign

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
        order="its program over all jobs at once; exact ties by fair share",
        starvation="bounded in practice: the first GPU of a job is worth more than a further one of another",
        reproducing={"discount": "paper"},  # with measured profiles
        artifact={"first_type": "blind", "decimals": "2"},  # as its simulator
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
    decimals: int = setting(-1, at_least=-1)

    @property
    def profiles_first(self) -> bool:
        """Whether a live service runs the first job of a model on one GPU of each type; section 3.2."""
        return self.first_type is FirstType.PROFILED

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """Powers of two within a node, then whole nodes (section 3.3)."""
        return powers_and_whole_nodes(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """One configuration, or none, for every job: sections 3.3 and 3.4 in their order."""
        # The configuration set C, and G over it: goodput by job and configuration (3.3).
        configs = ConfigurationSet.of(snapshot, speeds)
        goodput, valid = self._goodput(snapshot.jobs, speeds, configs)
        current = configs.held(snapshot.jobs)
        # (r_i G_ij)^p of equation 4, as a worth to be maximised (3.4).
        worth = self._worth(snapshot, goodput, valid, current, configs)
        # Non-preemptive jobs and reservations are constraints on the choice (3.4, the last paragraph).
        suits = valid.copy()
        forced, capacity = configs.forced(snapshot, current, valid, worth)
        # The ILP: at most one configuration for each job, within the GPUs of each type. It is a
        # multiple-choice knapsack, so no general solver of integer programs is needed.
        with span("solve"):
            prefer = _prefer(current, valid, configs.kind) + configs.fewest_first(snapshot.jobs)
            problem = MultipleChoiceKnapsack(
                worth, valid, configs.gpus, configs.pool, capacity, forced, prefer
            )
            chosen = assign(problem)
        lacks_room = configs.lacks_room(suits, forced, capacity)
        return configs.shares(snapshot, chosen.column, lacks_room, chosen.prices, chosen.gap)

    def pays(self, snapshot: Snapshot, speeds: Speeds) -> FloatArray:
        """(jobs, types) the most that a job could pay for one GPU of a type, NaN where it cannot run there.

        In the units of `Shares.prices`: a configuration is chosen where its worth exceeds its price.
        """
        configs = ConfigurationSet.of(snapshot, speeds)
        goodput, valid = self._goodput(snapshot.jobs, speeds, configs)
        worth = self._worth(snapshot, goodput, valid, configs.held(snapshot.jobs), configs)
        per_gpu = np.where(valid, worth / np.maximum(configs.gpus, 1), -np.inf)
        types = range(len(snapshot.cluster.types))
        most = [per_gpu[:, configs.kind == kind].max(axis=1, initial=-np.inf) for kind in types]
        return np.where(np.isfinite(most), most, np.nan).T

    def _goodput(
        self, jobs: JobTable, speeds: Speeds, configs: ConfigurationSet
    ) -> tuple[FloatArray, BoolArray]:
        """G and where it is valid, (jobs, columns): section 3.3, and the doubling rule of 3.1 in replicas."""
        # An oracle may have been shown speeds on GPUs that the job never held.
        seen = np.minimum(speeds.observed_gpus, jobs.progress.largest_held_gpus[:, None])
        valid = configs.allowed(jobs, speeds, seen, self.growth)
        goodput = configs.goodput.copy()
        if self.first_type is FirstType.BLIND:
            goodput[~speeds.modelled] = 1.0
        return goodput, valid

    def _worth(
        self,
        snapshot: Snapshot,
        goodput: FloatArray,
        valid: BoolArray,
        current: BoolArray,
        configs: ConfigurationSet,
    ) -> FloatArray:
        """λ -/+ (r G / min G)^p, (jobs, columns); section 3.4, equations 3 to 5."""
        jobs = snapshot.jobs
        # Normalise each row by its least goodput, in GPUs of that configuration, so that jobs compare (3.4).
        lowest = np.where(valid, goodput, np.inf)
        worst = lowest.argmin(axis=1)
        rows = np.arange(len(worst))
        least_gpus = np.maximum(configs.replica[rows, worst], jobs.fewest_gpus[rows, configs.kind[worst]])
        # A job that serves needs what keeps its service level; with less it does nothing.
        fewest = np.where(valid, configs.gpus, UNLIMITED_GPUS).min(axis=1, initial=UNLIMITED_GPUS)
        least_gpus = np.where(jobs.serves, fewest, least_gpus)
        asked = configs.request[rows, configs.kind[worst]]
        units = np.where(configs.fixed, asked, least_gpus)
        with np.errstate(invalid="ignore"):
            normal = goodput / lowest[rows, worst][:, None] * units[:, None]
        # Equation 3 lowers every configuration but the present one.
        normal *= self._restart_factors(snapshot, current)
        with np.errstate(divide="ignore", invalid="ignore"):
            powered = np.where(valid & np.isfinite(normal), normal, 1.0) ** self.fairness_power
        if self.decimals >= 0:
            powered = np.round(powered, self.decimals)
        if self.fairness_power > 0:
            return self.wait_penalty + powered
        # Without this a restart factor near 0 makes G^p exceed λ, and a job rather stops than shrinks.
        if self.discount is Discount.ROBUST:
            powered = np.minimum(powered, self.wait_penalty - 0.01)
        return self.wait_penalty - powered

    def _restart_factors(self, snapshot: Snapshot, current: BoolArray) -> FloatArray:
        """(jobs, columns) r of equation 3 where a running job's configuration would change, else 1.

        r = max(T - N S, 0) / (T + S), with T the age, N the restarts so far, S the cost of one; 1 while T <
        S.
        """
        jobs = snapshot.jobs
        restarts = [
            self.restart_s if evidence is None else evidence.limits.restart_s for evidence in jobs.evidence
        ]
        restart_s = np.array(restarts, dtype=np.float64)
        age_s = snapshot.now_s - jobs.submitted_s
        factor = np.maximum(age_s - jobs.progress.restarts * restart_s, 0.0) / (age_s + restart_s)
        discounted = (age_s >= restart_s) & current.any(axis=1)
        return np.where(discounted[:, None] & ~current, factor[:, None], 1.0)


def _prefer(held: BoolArray, valid: BoolArray, kind: IntArray) -> FloatArray:
    """(jobs, columns) a trifle for the configuration that a job has, or for later types in a first choice."""
    waits = ~held.any(axis=1, keepdims=True)
    return np.where(held, CURRENT_IS_BETTER, np.where(waits & valid, kind * LATER_IS_BETTER, 0.0))
