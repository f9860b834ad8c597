"""Lyra: base demands by running time, then flexible workers by a knapsack, on own and on lent servers."""

from dataclasses import dataclass
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
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
    configurations_from,
    counts_within,
    on_change,
)
from stretto.policies.common.admission import most_gpus_of_one_job
from stretto.policies.lyra.phases import Demand, SecondsSaved, launch, pooling, reasons, scale
from stretto.policies.lyra.placement import Draft
from stretto.settings import CheckedSettings, setting

MOST_TUNED_GPUS = 64  # columns of goodput that the tuned variant looks at; chosen: larger ranges are rare


class SjfKey(StrEnum):
    """What "running time" orders the launches of elastic jobs."""

    FASTEST = "fastest"  # with all workers that it could use: the minimum running time
    BASE = "base"  # with its base demand


class Fungible(StrEnum):
    """Where jobs of one size that may run on own and on lent servers are put first."""

    OWN = "own"  # by the words of sections 5.3 and 7.2
    LENT = "lent"  # as the usage of figure 9 takes it: docs/decisions/0006-lyra.md


@dataclass(frozen=True)
class Lyra(CheckedSettings, space="policy"):
    """Launch as many jobs as possible on their base demands, shortest first, then grow the elastic ones.

    Lyra (Li et al., EuroSys 2023), sections 5.2 and 5.3. Every `round_s`: (1) waiting jobs by increasing
    running time start on idle GPUs and on those of flexible workers, skipping what does not fit. (2) What is
    left goes to elastic jobs, running or new, by a multiple-choice knapsack over the seconds that more
    workers save. Speed is taken to be linear within the range. No job is preempted: base workers and
    inelastic jobs stay; flexible ones may be taken back. Workers are placed best-fit decreasing. Elastic jobs
    prefer servers on loan, base and flexible workers apart on these. All others prefer own servers, or, with
    `fungible_first=lent`, those on loan where they may run there.

    Starvation: no bound. As with any shortest job first, a long or large job waits as long as shorter ones
    keep coming. A job that runs is not stopped, except where lent servers go back.

    Cost of one decision: linear in the jobs, O(log) sorting aside. To that comes one pass over a type's nodes
    for each job that changes, and a knapsack of at most 32 items a job.
    """

    # seconds between decisions; chosen: "much smaller" than the lenders' 300 s
    round_s: float = setting(60.0, above=0)
    scaling: bool = True  # False: every job gets what it asked for, as without elastic scaling
    special_placement: bool = True  # False: elastic jobs are placed like all others (table 6)
    sjf_key: SjfKey = SjfKey.FASTEST
    fungible_first: Fungible = Fungible.OWN

    name: ClassVar[str] = "lyra"
    placer: ClassVar[str] = "pinned"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="Lyra (EuroSys 2023)",
        order="least work left; ties by fair share",
        starvation=(
            "unbounded: a long or large job waits as long as shorter ones keep coming; "
            "who runs is not stopped"
        ),
        mixes_types=True,
    )

    @property
    def views(self) -> frozenset[View]:
        """Predicted running times."""
        return frozenset({View.ESTIMATED_DURATION})

    @property
    def triggers(self) -> Triggers:
        """Rounds, where anything has changed."""
        return on_change(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """One GPU of each type: no speed is looked at, but a job may get fewer GPUs than it asked for."""
        return configurations_from((1, 1, kind) for kind in range(len(cluster.types)))

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Section 5.2, both phases in turn; and exactly where every job that changes is to run (5.3)."""
        jobs, cluster = snapshot.jobs, snapshot.cluster
        gone = _on_lost_nodes(snapshot)
        running = jobs.held_gpus > 0
        running[gone] = False
        # Base and flexible demand of every job, and the types that each tries first: own or on loan.
        demand = self._demand(snapshot, running)
        pools = pooling(snapshot, self.special_placement, self.fungible_first is Fungible.LENT)
        apart = self.special_placement & pools.lent[cluster.kind]
        resizable = np.flatnonzero(running & demand.elastic)
        base = np.where(demand.mixes, -1, demand.base_gpus * cluster.stand_ins[jobs.held_kind])
        draft = Draft(snapshot, resizable, base, apart, gone)

        # Phase 1: base demands of waiting jobs, shortest first, on idle GPUs and those of flexible workers.
        launch(draft, demand, pools, np.flatnonzero(~running))
        # Phase 2: what is left goes to elastic jobs, running or just launched, by a multiple-choice knapsack.
        launched = [row for row, counts in draft.base.items() if counts and not running[row]]
        growing = np.union1d(resizable, launched).astype(np.int64)
        growing = growing[demand.elastic[growing]]
        scale(draft, demand, pools, growing, self._saved(snapshot, demand, speeds))
        return self._shares(draft, demand)

    def _demand(self, snapshot: Snapshot, running: BoolArray) -> Demand:
        jobs, cluster = snapshot.jobs, snapshot.cluster
        allowed = jobs.allowed_kinds
        reach = allowed * (most_gpus_of_one_job(cluster) // cluster.stand_ins)
        reach_gpus = np.where(jobs.heterogeneous, reach.sum(axis=1), reach.max(axis=1))
        fixed = running & ~jobs.preemptible
        base = jobs.min_gpus if self.scaling else jobs.gpus
        most = np.maximum(np.minimum(jobs.max_gpus, reach_gpus), base) if self.scaling else base
        each = jobs.gpus_per_worker
        most = base + (most - base) // each * each
        # Speed is linear in the range, so the minimum running time W / w_max needs no profile (5.2).
        left_s = np.maximum(jobs.estimates.remaining_s, 0.0)  # the whole duration, unless progress was kept
        fastest_on = most if self.sjf_key is SjfKey.FASTEST else base
        return Demand(
            base_gpus=base,
            most_gpus=most,
            each=each,
            turn=left_s * jobs.gpus / fastest_on,
            work_gpu_s=left_s * jobs.gpus,
            elastic=(most > base) & ~fixed,
            mixes=jobs.heterogeneous,
            allowed=allowed,
        )

    def _saved(self, snapshot: Snapshot, demand: Demand, speeds: Speeds) -> SecondsSaved | None:
        """What more workers save, where not by linear speed; here none."""
        return None

    def _shares(self, draft: Draft, demand: Demand) -> Shares:
        jobs = draft.snapshot.jobs
        gpus, kind = jobs.held_gpus.copy(), jobs.held_kind.copy()
        pinned = draft.pins()
        for row in draft.base:
            if row in pinned:
                gpus[row] = sum(pinned[row].gpus)
                kind[row] = draft.cluster.kind[pinned[row].nodes[0]]
            elif not draft.base[row]:  # stopped: its node is gone, and there is no room elsewhere
                gpus[row], kind[row] = 0, -1
        if demand.mixes.any():  # a count by type would book all GPUs of a job on that of its first node
            kind[[*pinned, *np.flatnonzero(demand.mixes).tolist()]] = -1
        return Shares(
            gpus=gpus,
            kind=kind,
            nodes=np.zeros_like(gpus),
            why=reasons(draft, demand, gpus),
            pinned=pinned,
        )


def _on_lost_nodes(snapshot: Snapshot) -> list[int]:
    """Rows of running jobs that hold GPUs of nodes that may not be used any more."""
    lost = ~snapshot.usable & (snapshot.placement.busy != 0)
    if not lost.any():
        return []
    nodes = set(np.flatnonzero(lost).tolist())
    running = np.flatnonzero(snapshot.jobs.held_gpus).tolist()
    ids = snapshot.jobs.ids
    return [row for row in running if not nodes.isdisjoint(snapshot.placement[ids[row]].nodes)]


@dataclass(frozen=True)
class LyraTuned(Lyra):
    """Lyra whose jobs choose their batch sizes anew, for most goodput, whenever their GPUs change.

    Lyra+TunedJobs (Lyra, section 7.4), with Pollux's goodput: declaring that view is what lets training jobs
    choose in the simulated world. The knapsack's values follow the goodput on 1 to 64 GPUs where it is known.
    Elsewhere they follow linear speed, which is all that recorded jobs have.
    """

    name: ClassVar[str] = "lyra-tuned"

    @property
    def views(self) -> frozenset[View]:
        """Predicted running times, and goodput."""
        return frozenset({View.ESTIMATED_DURATION, View.GOODPUT_MODEL})

    def configurations(self, cluster: Cluster) -> Configurations:
        """All counts up to 64, together and spread."""
        return counts_within(cluster, MOST_TUNED_GPUS)

    def _saved(self, snapshot: Snapshot, demand: Demand, speeds: Speeds) -> SecondsSaved | None:
        """What more workers save at the tuned goodput."""
        if not speeds.modelled.any():
            return None
        jobs = snapshot.jobs
        by_goodput = _relative_speed(jobs, speeds, demand)
        work_s = demand.work_gpu_s / jobs.gpus  # on what was asked for

        def left_s(rows: IntArray, more: IntArray) -> FloatArray:
            """(rows, items) on the base and so many more workers."""
            gpus = demand.base_gpus[rows, None] + more * demand.each[rows, None]
            linear = gpus / jobs.gpus[rows, None]
            tuned = by_goodput[rows[:, None], np.minimum(more, by_goodput.shape[1] - 1)]
            is_known = (gpus <= MOST_TUNED_GPUS) & ~np.isnan(tuned)
            seconds: FloatArray = work_s[rows, None] / np.where(is_known, tuned, linear)
            return seconds

        return lambda rows, more: left_s(rows, np.zeros_like(more[:, :1])) - left_s(rows, more)


def _relative_speed(jobs: JobTable, speeds: Speeds, demand: Demand) -> FloatArray:
    """(jobs, counts) goodput on the base and 0, 1, 2, … more workers over that on the GPUs asked for.

    NaN unless all is known that it may have. On the type that the job holds, or the first on which it can
    run; spread where one node has too few.
    """
    # Counts beyond those that are tuned are not worked out: a job that may have them is not known.
    items = max(int(demand.most_items.max(initial=0)), 1)
    most = (MOST_TUNED_GPUS - demand.base_gpus) // demand.each
    more = np.arange(min(items, max(int(most.max()), 0)) + 1)
    gpus = demand.base_gpus[:, None] + more * demand.each[:, None]
    reached = np.minimum((jobs.max_gpus - demand.base_gpus) // demand.each, items)
    has_more = demand.base_gpus + reached * demand.each > MOST_TUNED_GPUS
    columns = speeds.configurations
    column_of = np.full((int(columns.kind.max()) + 1, MOST_TUNED_GPUS + 1), -1)
    by_nodes = np.argsort(-columns.nodes, kind="stable")  # together wins over spread
    column_of[columns.kind[by_nodes], columns.gpus[by_nodes]] = by_nodes
    rows = np.arange(len(jobs))
    kind = np.where(jobs.held_kind >= 0, jobs.held_kind, (~np.isnan(speeds.requested_per_s)).argmax(axis=1))
    column = column_of[kind[:, None], np.minimum(gpus, MOST_TUNED_GPUS)]
    row, place = np.nonzero((gpus <= MOST_TUNED_GPUS) & (column >= 0) & ~has_more[:, None])
    relative = np.full(gpus.shape, np.nan)
    relative[row, place] = speeds.at(row, column[row, place])
    relative = relative / speeds.requested_per_s[rows, kind][:, None]
    lacking = np.isnan(relative) & (gpus <= jobs.max_gpus[:, None])
    is_unknown: BoolArray = has_more | lacking.any(axis=1)
    return np.where(is_unknown[:, None], np.nan, relative)
