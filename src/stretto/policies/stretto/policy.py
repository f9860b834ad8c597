"""Stretto's own policy: least product of remaining times, where every change must pay for itself."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Trigger,
    Triggers,
    View,
    powers_and_whole_nodes,
)
from stretto.model.timing import span
from stretto.policies.sia.configurations import ConfigurationSet
from stretto.policies.stretto.lifetimes import Lifetimes
from stretto.settings import CheckedSettings, setting
from stretto.solve import MultipleChoiceKnapsack, assign

CURRENT_IS_BETTER = 1e-6  # chosen: ties keep the configuration that a job has
USUAL_WEIGHT = 5.0  # lifetimes that have to be seen until they count half; chosen
MOST_WORTH = 1e12  # numbers that can still be summed; chosen
FIRST_SERVED = 100.0  # worth of serving an interactive session: above all else; chosen


@dataclass(frozen=True)
class Stretto(CheckedSettings, space="policy"):
    """Choose one configuration for each job so that the product of remaining times is least.

    The remaining time T of a job on a configuration is the work that is left over its goodput there. The sum
    of log T is least where the relative gain of a further GPU is the same for all. That is a compromise: the
    sum of T would serve the longest jobs first, the sum of 1/T the shortest. `tail` moves it to the former.

    What a change costs is charged over the time for which a configuration lasts. That is learned from what
    became of earlier ones: a cluster on which much happens changes more reluctantly. A resize in place costs
    little, so that jobs grow and shrink readily and rarely move.

    What a job has shown counts for all jobs of its model, so that few have to find out how they scale.
    """

    name: ClassVar[str] = "stretto"
    views: ClassVar[frozenset[View]] = frozenset({View.GOODPUT_MODEL, View.PROGRESS, View.REMAINING_WORK})
    placer: ClassVar[str] = "whole-nodes"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Stretto's own",
        shares_knowledge=True,
        sizes_by_type=True,
        order="its program over all jobs at once; exact ties by fair share",
        starvation="bounded in practice: what serving a job is worth grows without bound while it waits",
    )

    round_s: float = setting(60.0, above=0)  # at the latest; it decides when jobs or nodes come and go, too
    # most GPUs of a job, as a multiple of the most on which its model was observed
    growth: int = setting(2, at_least=1)
    # q: the sum of T^q is least; 0: the sum of log T
    tail: float = setting(0.0, at_least=0, at_most=1)
    # worth of being served at all, as the logarithm of a remaining time
    serving: float = setting(1.0, above=0)
    # seconds of waiting by which that grows by 1
    patience_s: float = setting(3600.0, above=0)
    # for which a configuration is believed to last before any has ended
    lifetime_s: float = setting(180.0, above=0)
    # after which an ended configuration counts half
    half_life_s: float = setting(3600.0, above=0)
    # of a job whose stop and start were not measured
    restart_s: float = setting(30.0, at_least=0)

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go, and at a period, since jobs learn how fast they are."""
        return Triggers(
            frozenset({Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.CAPACITY, Trigger.ROUND}), self.round_s
        )

    def configurations(self, cluster: Cluster) -> Configurations:
        """Powers of two within a node, then whole nodes: those of Sia, section 3.3."""
        return powers_and_whole_nodes(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """One configuration, or none, for every job: that of least sum, at prices by GPU type."""
        configs = ConfigurationSet.of(snapshot, speeds)
        valid = configs.allowed(snapshot.jobs, speeds, speeds.observed_gpus, self.growth)
        current = configs.held(snapshot.jobs)
        before = snapshot.memory if isinstance(snapshot.memory, Lifetimes) else Lifetimes()
        lifetimes = before.at(snapshot, self.half_life_s)
        lasts_s = lifetimes.mean_s(self.lifetime_s, USUAL_WEIGHT)
        remaining_s = self._remaining_s(snapshot, configs, valid, current, lasts_s)
        worth = self._worth(snapshot, remaining_s, valid)
        suits = valid.copy()
        forced, capacity = configs.forced(snapshot, current, valid, worth)
        with span("solve"):
            prefer = np.where(current, CURRENT_IS_BETTER, 0.0) + configs.fewest_first(snapshot.jobs)
            problem = MultipleChoiceKnapsack(
                worth, valid, configs.gpus, configs.pool, capacity, forced, prefer
            )
            chosen = assign(problem)
        lacks_room = configs.lacks_room(suits, forced, capacity)
        shares = configs.shares(snapshot, chosen.column, lacks_room, chosen.prices, chosen.gap)
        return replace(shares, memory=lifetimes)

    def _remaining_s(
        self,
        snapshot: Snapshot,
        configs: ConfigurationSet,
        valid: BoolArray,
        current: BoolArray,
        lasts_s: float,
    ) -> FloatArray:
        """(jobs, columns) T, longer by the share of a configuration's life that the change to it takes."""
        jobs = snapshot.jobs
        # Of a job of which it is not known how much is left, relative speeds count, as if it did not end.
        is_known = jobs.remaining_work > 0
        usual = np.median(jobs.remaining_work[is_known]) if is_known.any() else 1.0
        left = np.where(is_known, jobs.remaining_work, usual)
        with np.errstate(divide="ignore", invalid="ignore"):
            alone_s = np.where(valid, left[:, None] / configs.goodput, np.inf)
        # A job that stays on its GPU type changes its size; every other change is a stop and a start.
        moves_s = np.where(
            np.isfinite(jobs.progress.suspension_s), jobs.progress.suspension_s, self.restart_s
        )
        resizes_s = np.where(np.isfinite(jobs.progress.resize_s), jobs.progress.resize_s, moves_s)
        runs = current.any(axis=1, keepdims=True)
        stays = runs & (configs.kind == jobs.held_kind[:, None])
        change_s = np.where(current, 0.0, np.where(stays, resizes_s[:, None], moves_s[:, None]))
        # It lasts until the next change, or until the job has ended.
        until_s = np.where(is_known[:, None], np.minimum(lasts_s, alone_s), lasts_s)
        with np.errstate(invalid="ignore"):
            return np.where(valid, alone_s * (until_s + change_s) / until_s, np.inf)

    def _worth(self, snapshot: Snapshot, remaining_s: FloatArray, valid: BoolArray) -> FloatArray:
        """(jobs, columns) by how much the sum falls where a job is served so: 0 without GPUs."""
        jobs = snapshot.jobs
        since_s = np.fmax(jobs.submitted_s, np.nan_to_num(jobs.progress.last_stop_s, nan=-np.inf))
        waited_s = np.where(jobs.held_gpus > 0, 0.0, np.maximum(snapshot.now_s - since_s, 0.0))
        serving = self.serving + waited_s / self.patience_s + FIRST_SERVED * jobs.interactive
        # A job that is not served is believed to take e^serving times as long as where it is slowest.
        served_s = np.where(valid, remaining_s, 1.0)
        slowest_s = np.where(valid, remaining_s, 0.0).max(axis=1, initial=0.0, keepdims=True)
        slowest_s = np.where(slowest_s > 0, slowest_s, 1.0)
        log_gain = serving[:, None] + np.log(slowest_s / served_s)
        if not self.tail:
            return np.where(valid, log_gain, 0.0)
        # T^q / q in units of the median job's T. A gain of T0 over T is T^q (e^(q log(T0/T)) - 1) / q.
        unit_s = np.median(slowest_s)
        with np.errstate(over="ignore"):
            gain = (served_s / unit_s) ** self.tail * np.expm1(self.tail * log_gain) / self.tail
        return np.where(valid, np.minimum(gain, MOST_WORTH), 0.0)
