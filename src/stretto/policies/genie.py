"""GENIE: the cheapest placement with which a job still meets its deadline, without preemption."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import ClassVar

import numpy as np

from stretto.model import (
    ON_CHANGE,
    Cluster,
    Configurations,
    FloatArray,
    IntArray,
    MeasuredSpeeds,
    Pinned,
    PolicyTraits,
    Shares,
    Snapshot,
    Speeds,
    Triggers,
    View,
)
from stretto.policies.common.admission import NO_CONFIGURATIONS, admit_waiting, reasons_after
from stretto.settings import CheckedSettings, setting


@dataclass(frozen=True, slots=True)
class Option:
    """A size and a placement that a job could start on."""

    kind: int
    gpus: int
    nodes: int
    takes_s: float  # to the end, as far as is believed

    @property
    def gpu_s(self) -> float:
        """What it costs."""
        return self.takes_s * self.gpus


@dataclass(frozen=True)
class Genie(CheckedSettings, space="policy"):
    """Start the deadline job with the least laxity on the cheapest GPUs that meet its deadline; stop none.

    GENIE (Chen et al., TPDS 2020), as UniSched (TPDS 2024), section IV-D, compares itself with it. Laxity is
    the time to the deadline less the remaining time on the best placement. A job's size is chosen once, when
    it starts. Sizes and placements on free GPUs that are predicted to meet the deadline compete: the fewest
    GPU-seconds win, then the fewest nodes. Where there is none, the fastest wins. Jobs of negative laxity
    come behind those that can still be in time. Best effort comes last, by submission, on what it asked for.
    Rates come from the tables measured beforehand, in place of the paper's regression.

    A decision sorts the waiting jobs and looks at the sizes (at most `most_times` the request) of those that
    can start. That is n log n, plus nodes for each start. There is no bound on waiting. Best effort, and jobs
    that are late already, can be passed by punctual ones for ever.
    """

    most_times: float = setting(2.0, at_least=1)  # sizes up to this times the request; chosen

    name: ClassVar[str] = "genie"
    views: ClassVar[frozenset[View]] = frozenset({View.ESTIMATED_DURATION, View.THROUGHPUT_TABLE})
    placer: ClassVar[str] = "pinned"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="GENIE (TPDS 2020), as in UniSched (TPDS 2024)",
        order="least laxity; those without a deadline by fair share",
        starvation=(
            "unbounded: best effort, and jobs that are late already, can be passed by punctual ones for ever"
        ),
        tables_only=True,
    )

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go."""
        return ON_CHANGE

    def configurations(self, cluster: Cluster) -> Configurations:
        """None: it looks up the sizes of those that can start."""
        return NO_CONFIGURATIONS

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """Sizes and nodes for waiting jobs by laxity; a running job keeps what it holds."""
        jobs = snapshot.jobs
        free = np.where(snapshot.usable, snapshot.placement.free, 0)
        kept = admit_waiting(snapshot, np.zeros(0, dtype=np.int64), skip=True)
        gpus, kind = kept.gpus.copy(), kept.kind.copy()
        started, pinned = [], {}
        order = self._order(snapshot)
        least = np.where(np.isinf(jobs.deadline_s), jobs.gpus, jobs.min_gpus)
        # By laxity, skipping jobs whose least does not fit by number.
        for row in order[least[order] <= free.sum()].tolist():
            if least[row] > free.sum():
                continue
            chosen = self._choose(snapshot, row, free)
            if chosen is None:
                continue
            pin = _where(snapshot.cluster, free, chosen)
            free[list(pin.nodes)] -= pin.gpus
            gpus[row], kind[row], pinned[row] = chosen.gpus, chosen.kind, pin
            started.append(row)
            if not free.any():
                break
        left = np.bincount(snapshot.cluster.kind, free, len(snapshot.cluster.types)).astype(np.int64)
        why = reasons_after(snapshot, gpus, left)
        rows = np.concatenate((np.flatnonzero(kept.gpus), np.array(started, dtype=np.int64)))
        return replace(kept, gpus=gpus, kind=kind, why=why, pinned=pinned, order=rows)

    def _order(self, snapshot: Snapshot) -> IntArray:
        """Waiting rows: deadline jobs that can be in time by laxity, those that cannot, best effort."""
        jobs = snapshot.jobs
        waiting = np.flatnonzero(jobs.held_gpus == 0)
        waiting = waiting[(jobs.gpus[waiting, None] <= snapshot.cluster.capacity).any(axis=1)]
        best_s = jobs.estimates.remaining_s[waiting] / self._best_speedup(snapshot, waiting)
        laxity_s = laxity(jobs.deadline_s[waiting], snapshot.now_s, best_s)
        group = np.where(np.isinf(jobs.deadline_s[waiting]), 2, laxity_s < 0)
        return waiting[np.lexsort((np.where(group == 2, 0.0, laxity_s), group))]

    def _best_speedup(self, snapshot: Snapshot, rows: IntArray) -> FloatArray:
        """(rows,) how many times faster than on what it asked for each job runs at best."""
        jobs = snapshot.jobs
        most = self._most(snapshot, rows)
        tables = jobs.tables
        bounds = zip(rows.tolist(), jobs.gpus[rows].tolist(), jobs.min_gpus[rows].tolist(), most, strict=True)
        return np.array([_best_speedup(tables[row], asked, low, high) for row, asked, low, high in bounds])

    def _most(self, snapshot: Snapshot, rows: IntArray) -> list[int]:
        """(rows,) the largest size that is considered."""
        jobs = snapshot.jobs
        wide = np.floor(self.most_times * jobs.gpus[rows]).astype(np.int64)
        sizes: list[int] = np.minimum(jobs.max_gpus[rows], wide).tolist()
        return sizes

    def _choose(self, snapshot: Snapshot, row: int, free: IntArray) -> Option | None:
        """The cheapest option that meets the deadline, else the fastest; None where nothing fits."""
        options = self._options(snapshot, row, free)
        if not options:
            return None
        jobs = snapshot.jobs
        due_s = float(jobs.deadline_s[row]) - snapshot.now_s
        punctual = [option for option in options if option.takes_s <= due_s]
        if not punctual:
            return min(options, key=lambda option: (option.takes_s, option.gpu_s, option.nodes))
        if due_s == inf:  # any size would do; what its owner asked for is a wish too
            return min(punctual, key=lambda option: (option.nodes, option.takes_s))
        return min(punctual, key=lambda option: (option.gpu_s, option.nodes, option.takes_s))

    def _options(self, snapshot: Snapshot, row: int, free: IntArray) -> list[Option]:
        jobs, cluster = snapshot.jobs, snapshot.cluster
        asked, table = int(jobs.gpus[row]), jobs.tables[row]
        best_effort = jobs.deadline_s[row] == inf
        low = asked if best_effort else int(jobs.min_gpus[row])
        high = asked if best_effort else self._most(snapshot, np.array([row]))[0]
        remaining_s = float(jobs.estimates.remaining_s[row])
        asked_per_s = _asked_per_s(table, asked)
        options = []
        for kind in np.flatnonzero(jobs.allowed_kinds[row]).tolist():
            # So many GPUs of a type need as many of its freest nodes as it takes to reach the count.
            here = np.sort(np.where(cluster.kind == kind, free, 0))[::-1]
            reached = here.cumsum()
            limit = cluster.types[kind].max_nodes_per_job or len(here)
            fullest = int(cluster.gpus_per_node[kind])
            for gpus in range(low, min(high, int(reached[-1])) + 1, jobs[row].gpus_per_worker):
                nodes = int(np.searchsorted(reached, gpus)) + 1
                if nodes > limit:
                    break
                consolidated = nodes <= -(-gpus // fullest)
                speedup = _speedup(table, kind, gpus, consolidated, asked_per_s)
                if speedup > 0:
                    options.append(Option(kind, gpus, nodes, remaining_s / speedup))
        return options


def laxity(deadline_s: FloatArray, now_s: float, remaining_s: FloatArray) -> FloatArray:
    """(jobs,) seconds that each can still wait: D - now - rem."""
    return deadline_s - now_s - remaining_s


def _asked_per_s(table: MeasuredSpeeds, asked: int) -> float:
    """The speed to which estimates refer: on the GPUs asked for, of the fastest type; NaN unknown."""
    if asked >= table.per_s.shape[1] or np.isnan(table.per_s[:, asked]).all():
        return float("nan")
    return float(np.nanmax(table.per_s[:, asked]))


def _speedup(table: MeasuredSpeeds, kind: int, gpus: int, consolidated: bool, asked_per_s: float) -> float:
    """Over what was asked for; 0 where it was measured not to run, 1 where nothing is known at all."""
    if np.isnan(asked_per_s):
        return 1.0
    speeds = table.per_s if consolidated else table.spread_per_s
    if gpus >= speeds.shape[1]:
        return 0.0
    return float(np.nan_to_num(speeds[kind, gpus] / asked_per_s, nan=0.0))


@lru_cache(maxsize=65_536)
def _best_speedup(table: MeasuredSpeeds, asked: int, low: int, high: int) -> float:
    asked_per_s = _asked_per_s(table, asked)
    within = table.per_s[:, low : high + 1]
    if np.isnan(asked_per_s) or np.isnan(within).all():
        return 1.0
    return float(np.nanmax(within)) / asked_per_s


def _where(cluster: Cluster, free: IntArray, option: Option) -> Pinned:
    """On one node the tightest that fits, on several those with most GPUs free; ties by node."""
    here = np.where(cluster.kind == option.kind, free, 0)
    if option.nodes == 1:
        fits = np.flatnonzero(here >= option.gpus)
        return Pinned((int(fits[here[fits].argmin()]),), (option.gpus,))
    fullest = np.argsort(-here, kind="stable")[: option.nodes]
    counts = here[fullest]
    counts[-1] = option.gpus - counts[:-1].sum()
    by_node = np.argsort(fullest)
    return Pinned(tuple(fullest[by_node].tolist()), tuple(counts[by_node].tolist()))
