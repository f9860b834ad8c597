"""Sia: goodput of every job on every bundle of GPUs, and the best choice of bundles as one program."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np

from stretto.model import (
    BoolArray,
    Cluster,
    Configurations,
    FloatArray,
    InputError,
    IntArray,
    JobTable,
    Reasons,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    Why,
    every,
    powers_and_whole_nodes,
)
from stretto.model.laps import span
from stretto.solve import assign

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
class Sia:
    """Choose one configuration for each job so that the sum of normalised goodputs is best.

    Sia (Jayaram Subramanya et al., SOSP 2023), section 3. Worth is G^p with G the goodput of a job on a
    configuration over that on its worst one (3.4), times the restart factor (equation 3) where the
    configuration would change. For p < 0 the sum is minimised; λ is the cost of leaving a job without GPUs.
    We maximise λ - G^p (p < 0) or λ + G^p (p > 0), where a job without GPUs counts 0: the same program.

    Deviations. The printed sign of λ rewards waiting for p > 0; λ is meant as a penalty and is one here.
    Seconds, not GPU-seconds, are lost by a restart, as the age is counted in seconds.
    """

    name: ClassVar[str] = "sia"
    views: ClassVar[frozenset[View]] = frozenset({View.GOODPUT_MODEL, View.PROGRESS})
    placer: ClassVar[str] = "whole-nodes"

    reproducing: ClassVar[Mapping[str, str]] = {"discount": "paper"}  # with measured profiles
    artifact: ClassVar[Mapping[str, str]] = {"first_type": "blind", "decimals": "2"}  # as its simulator

    round_s: float = 60.0  # section 4.3
    fairness_power: float = -0.5  # p, section 4.3
    wait_penalty: float = 1.1  # λ, section 4.3
    growth: int = 2  # most GPUs of a job, as a multiple of the most on which it was observed; section 3.1
    restart_s: float = 30.0  # S_i of a job that names none; Pollux (OSDI 2021), section 5.3
    first_type: FirstType = FirstType.PROFILED
    discount: Discount = Discount.ROBUST
    decimals: int = -1  # G^p is rounded to so many (the published simulator: 2); -1: not at all

    def __post_init__(self) -> None:
        """Check the parameters."""
        if self.fairness_power == 0:
            raise InputError(
                "policy.fairness_power must not be 0: every configuration would be worth the same"
            )
        if self.wait_penalty <= 0:
            raise InputError(f"policy.wait_penalty must be > 0, got {self.wait_penalty}")

    @property
    def triggers(self) -> Triggers:
        """Rounds only."""
        return every(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """Powers of two within a node, then whole nodes (section 3.3)."""
        return powers_and_whole_nodes(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """One configuration, or none, for every job."""
        menu = _Menu.of(snapshot, speeds, speeds.configurations)
        goodput, valid = self._goodput(snapshot.jobs, speeds, menu)
        now = menu.column_held(snapshot.jobs)
        worth = self._worth(snapshot, goodput, valid, now, menu)
        forced = self._forced(snapshot, now, valid, worth, menu)
        with span("solve"):
            chosen = assign(
                worth,
                valid,
                menu.gpus,
                menu.kind,
                snapshot.capacity,
                forced=forced,
                prefer=_prefer(now, valid, menu.kind),
            )
        return menu.shares(snapshot, chosen.column, chosen.prices, chosen.gap)

    def _goodput(self, jobs: JobTable, speeds: Speeds, menu: "_Menu") -> tuple[FloatArray, BoolArray]:
        """G and where it is valid, (jobs, columns): section 3.3, and the doubling rule of 3.1."""
        goodput = np.where(menu.by_request, menu.requested_per_s, menu.per_s)
        valid = np.isfinite(goodput) & (goodput > 0) & jobs.allowed_kinds[:, menu.kind]
        # An oracle may have been shown speeds on GPUs that the job never held.
        observed = np.minimum(speeds.observed_gpus.max(axis=1, initial=0), jobs.progress.largest_held_gpus)
        largest = np.minimum(self.growth * observed, speeds.reach_gpus)[:, None]
        smallest = np.where(valid & ~menu.by_request, menu.gpus, menu.most).min(axis=1, keepdims=True)
        elastic = (menu.gpus >= jobs.min_gpus[:, None]) & (menu.gpus <= jobs.max_gpus[:, None])
        elastic &= menu.gpus <= np.maximum(largest, np.maximum(smallest, jobs.min_gpus[:, None]))
        valid &= np.where(menu.by_request, menu.fixed[:, None], elastic & ~menu.fixed[:, None])
        valid &= (menu.reserved < 0)[:, None] | (menu.kind == menu.reserved[:, None])
        if self.first_type is FirstType.BLIND:
            goodput[~speeds.modelled] = 1.0
        return goodput, valid

    def _worth(
        self, snapshot: Snapshot, goodput: FloatArray, valid: BoolArray, now: IntArray, menu: "_Menu"
    ) -> FloatArray:
        """λ -/+ (r G / min G)^p, (jobs, columns); section 3.4, equations 3 to 5."""
        worst = np.where(valid, goodput, np.inf)
        least = worst.argmin(axis=1)
        rows = np.arange(len(least))
        units = np.where(menu.fixed, menu.request, menu.replica[rows, menu.kind[least]])
        units = np.maximum(units, snapshot.jobs.min_gpus * ~menu.fixed)
        with np.errstate(invalid="ignore"):
            normal = goodput / worst[rows, least][:, None] * units[:, None]
        normal *= self._restart_factors(snapshot, now, menu)
        with np.errstate(divide="ignore", invalid="ignore"):
            powered = np.where(valid, normal, 1.0) ** self.fairness_power
        if self.decimals >= 0:
            powered = np.round(powered, self.decimals)
        if self.fairness_power > 0:
            return self.wait_penalty + powered
        if self.discount is Discount.ROBUST:
            powered = np.minimum(powered, self.wait_penalty - 0.01)
        return self.wait_penalty - powered

    def _restart_factors(self, snapshot: Snapshot, now: IntArray, menu: "_Menu") -> FloatArray:
        """(jobs, columns) r of equation 3 where a running job's configuration would change, else 1.

        r = max(T - N S, 0) / (T + S): T the age, N the restarts so far, S the cost of one; 1 while T < S.
        """
        age_s = snapshot.now_s - snapshot.jobs.submitted_s
        lost_s = snapshot.jobs.progress.restarts * menu.restart_s
        factor = np.maximum(age_s - lost_s, 0.0) / (age_s + menu.restart_s)
        factor = np.where((age_s < menu.restart_s) | (now < 0), 1.0, factor)
        factors = np.repeat(factor[:, None], len(menu.gpus[0]), axis=1)
        running = np.flatnonzero(now >= 0)
        factors[running, now[running]] = 1.0
        return factors

    def _forced(
        self, snapshot: Snapshot, now: IntArray, valid: BoolArray, worth: FloatArray, menu: "_Menu"
    ) -> IntArray:
        """(jobs,) the column that a job must get, or -1: restarting, not preemptible, or reserved.

        Makes forced columns valid in place. A job that may not be stopped is let in only while what is
        forced fits (section 3.4, preemption and reservation).
        """
        jobs = snapshot.jobs
        forced = np.where((jobs.progress.recovering | ~jobs.preemptible) & (now >= 0), now, -1)
        kept = np.flatnonzero(forced >= 0)
        valid[kept, forced[kept]] = True
        left = snapshot.capacity - np.bincount(
            menu.kind[forced[kept]], menu.gpus[kept, forced[kept]], len(snapshot.capacity)
        ).astype(np.int64)
        for row in np.flatnonzero(menu.insists & (now < 0)).tolist():
            fits = valid[row] & menu.by_request[0] & (menu.gpus[row] <= left[menu.kind])
            valid[row] &= fits
            if fits.any():
                column = int(np.where(fits, worth[row], -np.inf).argmax())
                forced[row] = column
                left[menu.kind[column]] -= menu.gpus[row, column]
        return forced


@dataclass(frozen=True, eq=False)
class _Menu:
    """The columns of the program: every configuration, then each type with exactly the GPUs asked for."""

    configurations: Configurations
    gpus: IntArray  # (jobs, columns)
    kind: IntArray  # (columns,)
    by_request: BoolArray  # (1, columns) a column of the second sort
    per_s: FloatArray  # (jobs, columns)
    requested_per_s: FloatArray  # (jobs, columns)
    fixed: BoolArray  # (jobs,) rigid, not preemptible or reserved: only the second sort will do
    insists: BoolArray  # (jobs,) not preemptible or reserved: must be served once it is let in
    request: IntArray  # (jobs,) GPUs asked for, or reserved
    reserved: IntArray  # (jobs,) type of the GPUs kept for a job, -1 none
    replica: IntArray  # (jobs, types) GPUs of one replica
    restart_s: FloatArray  # (jobs,) assumed cost of a restart
    most: int  # more GPUs than there are

    @classmethod
    def of(cls, snapshot: Snapshot, speeds: Speeds, configurations: Configurations) -> "_Menu":
        """The columns for these jobs; those by request only where somebody needs them."""
        jobs = snapshot.jobs
        request, reserved = jobs.gpus.copy(), np.full(len(jobs), -1)
        for row in range(len(jobs)):
            reservation = jobs[row].reserved
            if reservation is not None:
                _, request[row], name = reservation
                reserved[row] = snapshot.cluster.type_index(name)
        insists = ~jobs.preemptible | (reserved >= 0)
        # What may not be stopped keeps what it has, whatever it asked for.
        request = np.where(~jobs.preemptible & (jobs.held_gpus > 0), jobs.held_gpus, request)
        fixed = jobs.rigid | insists
        types = len(snapshot.cluster.types) if fixed.any() else 0
        width = len(configurations)
        return cls(
            configurations=configurations,
            gpus=np.hstack(
                [np.tile(configurations.gpus, (len(jobs), 1)), np.tile(request[:, None], (1, types))]
            ),
            kind=np.concatenate([configurations.kind, np.arange(types)]),
            by_request=(np.arange(width + types) >= width)[None, :],
            per_s=np.hstack([speeds.per_s, np.full((len(jobs), types), np.nan)]),
            requested_per_s=np.hstack(
                [np.full((len(jobs), width), np.nan), speeds.requested_per_s[:, :types]]
            ),
            fixed=fixed,
            insists=insists,
            request=request,
            reserved=reserved,
            replica=np.array(
                [
                    one.limits.replica_gpus if one is not None else np.ones(len(snapshot.capacity))
                    for one in jobs.evidence
                ],
                dtype=np.int64,
            ).reshape(len(jobs), len(snapshot.capacity)),
            restart_s=np.array(
                [one.limits.restart_s if one is not None else 30.0 for one in jobs.evidence], dtype=np.float64
            ),
            most=int(snapshot.cluster.total_gpus) + 1,
        )

    def column_held(self, jobs: JobTable) -> IntArray:
        """(jobs,) the column of what each job holds now, -1 where it waits or holds something else."""
        column = self.configurations.columns_of(jobs.held_nodes, jobs.held_gpus, jobs.held_kind)
        by_request = self.fixed & (jobs.held_gpus > 0) & (jobs.held_gpus == self.request)
        return np.where(
            self.fixed, np.where(by_request, len(self.configurations) + jobs.held_kind, -1), column
        )

    def shares(self, snapshot: Snapshot, column: IntArray, prices: FloatArray, gap: float) -> Shares:
        """What the chosen columns mean."""
        served = column >= 0
        at = np.maximum(column, 0)
        rows = np.arange(len(column))
        by_configuration = served & ~self.by_request[0, at]
        inside = np.minimum(at, len(self.configurations) - 1)
        enough = self.gpus >= np.where(self.fixed, self.request, snapshot.jobs.min_gpus)[:, None]
        fits = enough & (self.gpus <= snapshot.cluster.capacity[self.kind])
        fits &= (self.by_request == self.fixed[:, None]) & snapshot.jobs.allowed_kinds[:, self.kind]
        possible = fits.any(axis=1)
        return Shares(
            gpus=np.where(served, self.gpus[rows, at], 0),
            kind=np.where(served, self.kind[at], -1),
            nodes=np.where(by_configuration, self.configurations.nodes[inside], 0),
            why=Reasons(
                np.where(served, Why.RUNS, np.where(possible, Why.WORTH_LESS, Why.TOO_LARGE)).astype(np.int64)
            ),
            prices=prices,
            gap=gap,
        )


def _prefer(now: IntArray, valid: BoolArray, kind: IntArray) -> FloatArray:
    """(jobs, columns) a trifle for the configuration that a job has, or for later types in a first choice."""
    prefer = np.where((now < 0)[:, None] & valid, kind * LATER_IS_BETTER, 0.0)
    running = np.flatnonzero(now >= 0)
    prefer[running, now[running]] = CURRENT_IS_BETTER
    return prefer
