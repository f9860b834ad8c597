"""AFS, apathetic future share: GPUs one by one, by shortness and by efficiency, or by gain alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

import numpy as np

from stretto.model import (
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
    floats,
    ints,
    on_change,
)
from stretto.policies.common.admission import most_gpus_of_one_job
from stretto.policies.common.speed_curves import (
    NO_CURVE,
    Curve,
    Sizes,
    one_gpu_of_each_type,
    reasons_by_range,
    room_beside,
    unstoppable,
)
from stretto.settings import CheckedSettings, setting

FIRST_COMPARED = 128  # jobs at once, then four times as many; chosen: most leaders are beaten by a near one
ROUNDING = 12  # decimals of a gain in steps per second; chosen: linear speeds gain the same from every GPU


class Variant(StrEnum):
    """How GPUs are handed out."""

    AFS_L = "afs-l"  # a tournament for every GPU, running times known
    LYRA = "lyra"  # bases first, then the job that gains most speed per GPU: as Lyra compares with it


class BasesBy(StrEnum):
    """Which waiting jobs get their base demands first, in the variant `lyra`."""

    SUBMISSION = "submission"  # as the snapshot has them: fair share, then the job that came first
    REMAINING = "remaining"  # shortest true remaining time


@dataclass(frozen=True)
class Afs(CheckedSettings, space="policy"):
    """Hand out GPUs worker by worker, each to the job for which it does most.

    AFS (Hwang et al., NSDI 2021). `afs-l`: every worker goes to the winner of a tournament between pairs of
    jobs. X is speed at the GPUs so far. The shorter one, l, beats the longer one, h, if

        (X_l(g+1) - X_l(g)) / X_l(g)  >  (X_h(g+1) - X_h(g)) / X_h(g+1):

    the longer job will inherit the GPUs of the shorter one. `lyra`: as Lyra (EuroSys 2023), section 7.1,
    implements it. Running jobs keep their base demands, waiting ones get theirs in order of submission,
    skipping what does not fit. Then one more worker at a time goes to the largest gain of throughput per GPU.
    In both a gain that is not positive ends a job's growth.

    Deviations: a job grows by whole workers, from its base demand, and within its range. Where its steps are
    of several GPUs, relative gains beyond the base count per GPU. No source gives the order of bases for
    `lyra`; Lyra says "allocating base demand to each job first". By submission is chosen, since AFS as such
    knows no durations. `bases_by` is the setting.

    Starvation: `afs-l` serves every job before any gets a second share, as long as bases suffice. Beyond that
    there is no bound: long jobs wait while shorter ones come. In `lyra` jobs wait while smaller ones fit.

    Cost of one decision: `afs-l` takes O(grants x jobs) array cells at worst, but most walks are short:
    0.44 s for 15,000 GPUs and 3,000 jobs. `lyra` takes a sort of at most one entry for each worker that could
    come, some ms.
    """

    variant: Variant = Variant.AFS_L
    bases_by: BasesBy = BasesBy.SUBMISSION  # in the variant `lyra`
    # seconds between decisions; None: whenever jobs or nodes come or go
    round_s: float | None = setting(None, above=0)

    name: ClassVar[str] = "afs"
    placer: ClassVar[str] = "relaxed"
    traits: ClassVar[PolicyTraits] = PolicyTraits(
        paper="AFS (NSDI 2021)",
        order="least left to run, then fewest GPUs; ties by fair share",
        starvation=(
            "bounded in afs-l: every job is served before any gets more; unbounded in the variant lyra"
        ),
        former={"bases_by": "remaining"},
    )

    @property
    def views(self) -> frozenset[View]:
        """Measured speeds, and what is left to do where the order or the tournament reads it."""
        if self.variant is Variant.LYRA and self.bases_by is BasesBy.SUBMISSION:
            return frozenset({View.THROUGHPUT_TABLE})
        return frozenset({View.THROUGHPUT_TABLE, View.REMAINING_WORK})

    @property
    def triggers(self) -> Triggers:
        """Whenever jobs or nodes come or go, or at rounds before which something has changed."""
        return on_change(self.round_s)

    def configurations(self, cluster: Cluster) -> Configurations:
        """One GPU of each type; the measured tables say the rest."""
        return one_gpu_of_each_type(cluster)

    def allocate(self, snapshot: Snapshot, speeds: Speeds) -> Shares:
        """GPUs for every job, on the type where it is, or on that with most room."""
        jobs, cluster = snapshot.jobs, snapshot.cluster
        fixed = unstoppable(jobs)
        gpus = np.where(fixed, jobs.held_gpus, 0)
        kind = np.where(fixed, jobs.held_kind, -1)
        left = room_beside(snapshot, fixed)
        if self.variant is Variant.LYRA:
            # As Lyra compares with it: base demands first, then only elastic jobs compete for what is left.
            left = self._bases(snapshot, speeds, gpus, kind, left)
            candidates = np.flatnonzero((gpus > 0) & ~fixed & (jobs.max_gpus > jobs.min_gpus))
        else:
            candidates = np.flatnonzero(~fixed)
            kind[candidates] = _types_for(snapshot, candidates, left)
            candidates = candidates[kind[candidates] >= 0]
        sizes = Sizes.of(snapshot)
        for index in range(len(cluster.types)):
            rows = candidates[kind[candidates] == index]
            curves = [sizes.curve(row, index) for row in rows.tolist()]
            if self.variant is Variant.LYRA:
                # Gains count from the base on.
                curves = [_from(curve, int(gpus[row])) for curve, row in zip(curves, rows, strict=True)]
                counts = by_gain(curves, int(left[index]))
                grown = counts > 0
                gpus[rows[grown]] += counts[grown]
            else:
                counts = by_tournament(curves, jobs.remaining_work[rows], int(left[index]))
                gpus[rows] = counts
            left[index] -= int(counts.sum())
        kind[gpus == 0] = -1
        why = reasons_by_range(snapshot, gpus, left.tolist())
        return Shares(gpus, kind, np.zeros_like(gpus), why)

    def _bases(
        self, snapshot: Snapshot, speeds: Speeds, gpus: IntArray, kind: IntArray, left: IntArray
    ) -> IntArray:
        """Base demands, written into gpus and kind; (types,) GPUs that are left."""
        jobs, stand_ins = snapshot.jobs, snapshot.cluster.stand_ins
        # Bases of running jobs are never taken; waiting jobs follow in the order that is set.
        running = (jobs.held_gpus > 0) & (gpus == 0)
        gpus[running] = jobs.min_gpus[running] * stand_ins[jobs.held_kind[running]]
        kind[running] = jobs.held_kind[running]
        left = left - np.bincount(kind[running], gpus[running], len(left)).astype(np.int64)
        waiting = np.flatnonzero(jobs.held_gpus == 0)
        need = jobs.min_gpus[:, None] * stand_ins
        fits = jobs.allowed_kinds & (need <= np.minimum(left, most_gpus_of_one_job(snapshot.cluster)))
        order = waiting
        if self.bases_by is BasesBy.REMAINING:
            left_s = _remaining_s(jobs.remaining_work, speeds)[waiting]
            order = waiting[np.lexsort((jobs.min_gpus[waiting], left_s))]
        order = order[fits[order].any(axis=1)]
        remaining = left.tolist()
        smallest = int(need[order].min()) if order.size else 0
        for row in order.tolist():
            ok = [
                index
                for index in range(len(remaining))
                if fits[row, index] and need[row, index] <= remaining[index]
            ]
            if ok:
                kind[row] = max(ok, key=remaining.__getitem__)
                gpus[row] = need[row, kind[row]]
                remaining[kind[row]] -= int(gpus[row])
                if max(remaining) < smallest:
                    break
        return np.array(remaining, dtype=np.int64)


def _remaining_s(work: FloatArray, speeds: Speeds) -> FloatArray:
    """(jobs,) seconds left on what a job asked for, on its fastest type; infinite where no speed is known."""
    per_s = np.nan_to_num(speeds.requested_per_s, nan=0.0).max(axis=1, initial=0.0)
    left_s: FloatArray = np.divide(work, per_s, out=np.full(len(work), np.inf), where=per_s > 0)
    return left_s


def _from(curve: Curve, gpus: int) -> Curve:
    """The part of a curve from a count on; none where it is not among its counts."""
    if not curve.gpus or gpus not in curve.gpus:
        return NO_CURVE
    first = curve.gpus.index(gpus)
    return curve if first == 0 else Curve(curve.gpus[first:], curve.per_s[first:])


def _types_for(snapshot: Snapshot, rows: IntArray, left: IntArray) -> IntArray:
    """The type of each row: where it runs, else that with most room beside the bases of those before it.

    -1 for a job that fits on no type.
    """
    jobs, stand_ins = snapshot.jobs, snapshot.cluster.stand_ins
    most = np.minimum(most_gpus_of_one_job(snapshot.cluster), left)
    need = jobs.min_gpus[rows, None] * stand_ins
    fits = jobs.allowed_kinds[rows] & (need <= most)
    if len(left) == 1:
        return np.where(fits[:, 0], 0, -1)
    kind_before = jobs.held_kind[rows]
    chosen = np.where(kind_before >= 0, kind_before, -1)
    room = left.astype(np.float64)
    runs = kind_before >= 0
    room -= np.bincount(kind_before[runs], need[runs, kind_before[runs]], len(left))
    # Those that wait are dealt out in order, each to the type with most room then.
    for place in np.flatnonzero(~runs & fits.any(axis=1)).tolist():
        best = int(np.where(fits[place], room, -np.inf).argmax())
        chosen[place] = best
        room[best] -= need[place, best]
    return chosen


# Which job gets the next worker? AFS's two ways, on curves of speed by GPUs, with no notion of a cluster.


class Tournament:
    """The jobs that may still get more, in their order, with what the comparisons look at as columns.

    A walk hands the lead to the first job behind that beats the leader. Between two walks only the last
    winner changes, so that all leaders before it stand: the next walk goes on from there.
    """

    def __init__(self, curves: Sequence[Curve], work: FloatArray) -> None:
        count = len(curves)
        self.curves, self.work = curves, work
        self.gpus: IntArray = np.zeros(count, dtype=np.int64)
        self.rung: IntArray = np.full(count, -1)
        self.is_open: BoolArray = np.array([bool(curve.gpus) for curve in curves], dtype=np.bool_)
        self.left_s = np.full(count, np.inf)  # at the present share
        self.first_s = np.array(
            [
                left / curve.per_s[0] if curve.gpus else np.inf
                for curve, left in zip(curves, work, strict=True)
            ]
        )
        self.as_short = np.full(count, np.inf)  # relative gain of the next worker, as the shorter job
        self.as_long = np.ones(count)  # and as the longer one
        self.leaders: list[int] = []  # of the last walk, in its order
        self.behind = 0  # the first row that has not been compared with the last of them
        for row in np.flatnonzero(~self.is_open).tolist():
            self.close(row)

    def winner(self) -> int:
        """The job that comes out of the walk, -1 where none is open."""
        while (row := self._next_leader()) >= 0:
            self.leaders.append(row)
            self.behind = row + 1
        return self.leaders[-1] if self.leaders else -1

    def _next_leader(self) -> int:
        """The first row behind that beats the present leader, or is open where there is none; -1: none."""
        begin, many, count = self.behind, FIRST_COMPARED, len(self.curves)
        while begin < count:  # most leaders are beaten by a job that is near
            some = slice(begin, begin + many)
            takes = self._beat(self.leaders[-1], some) if self.leaders else self.is_open[some]
            first = int(takes.argmax())
            if takes[first]:
                return begin + first
            begin, many = begin + many, 4 * many
        return -1

    def _beat(self, best: int, others: slice) -> BoolArray:
        """(others,) which of them beat a job."""
        takes: BoolArray = np.where(
            self.left_s[others] < self.left_s[best],
            self.as_short[others] > self.as_long[best],
            self.as_long[others] >= self.as_short[best],
        )
        if self.rung[best] < 0:
            unserved = self.rung[others] < 0
            takes = np.where(unserved, self.first_s[others] < self.first_s[best], takes)
        return takes

    def _is_changed(self, row: int) -> None:
        """It has to win again against the leader before it."""
        if self.leaders and self.leaders[-1] == row:
            self.leaders.pop()
            self.behind = row

    def cost(self, row: int) -> int:
        """GPUs of the next step."""
        return int(self.curves[row].gpus[self.rung[row] + 1] - self.gpus[row])

    def close(self, row: int) -> None:
        """It gets no more: with these figures it takes over no more."""
        self.is_open[row] = False
        self.left_s[row] = self.first_s[row] = np.inf
        self.as_short[row] = self.as_long[row] = -np.inf
        self._is_changed(row)

    def grant(self, row: int) -> None:
        """Give the next step, and look at the one after it."""
        curve = self.curves[row]
        rung = int(self.rung[row]) + 1
        self.rung[row] = rung
        self.gpus[row] = curve.gpus[rung]
        per_s = curve.per_s[rung]
        if rung + 1 == len(curve.gpus) or curve.per_s[rung + 1] <= per_s:
            self.close(row)
            return
        gain = (curve.per_s[rung + 1] - per_s) / (curve.gpus[rung + 1] - curve.gpus[rung])
        self.left_s[row] = self.work[row] / per_s
        self.as_short[row] = gain / per_s
        self.as_long[row] = gain / curve.per_s[rung + 1]
        self._is_changed(row)


def by_tournament(curves: Sequence[Curve], work: FloatArray, gpus: int) -> IntArray:
    """(jobs,) GPUs by AFS-L: every grant to the winner of a walk through all jobs (NSDI 2021, algorithm 1).

    curves: the counts at which a job can run, and how fast; work: (jobs,) what is left, in their units. Of
    two jobs without GPUs the one with less work for its first count wins.
    """
    tournament = Tournament(curves, work)
    while (row := tournament.winner()) >= 0:
        cost = tournament.cost(row)
        if cost > gpus:
            tournament.close(row)
        else:
            gpus -= cost
            tournament.grant(row)
    return tournament.gpus


def by_gain(curves: Sequence[Curve], gpus: int) -> IntArray:
    """(jobs,) more GPUs: one worker at a time to the job that gains most speed from each GPU of it.

    Curves begin at what a job has. A job for whose next worker there are too few GPUs gets no more. Taking
    the largest next gain again and again means taking all gains by the least gain of their job so far. That
    is one sort instead of a heap.
    """
    given = np.zeros(len(curves), dtype=np.int64)
    steps = [_gains(curve) for curve in curves]
    counts = [len(gain) for gain, _ in steps]
    if not sum(counts) or gpus <= 0:
        return given
    # All gains of all jobs in one order: the greatest first.
    row = np.repeat(np.arange(len(curves)), counts)
    gain = np.concatenate([gain for gain, _ in steps])
    cost = np.concatenate([cost for _, cost in steps])
    order = np.lexsort((row, -gain))  # stable: the steps of one job stay in their order
    row, cost = row[order], cost[order]
    # Take from the front while there are GPUs. A job whose next worker is too large is left out, then go on.
    while row.size:
        reached = cost.cumsum()
        taken = int(reached.searchsorted(gpus, side="right"))
        np.add.at(given, row[:taken], cost[:taken])
        if taken == row.size:
            break
        gpus -= int(reached[taken - 1]) if taken else 0
        blocked, row, cost = row[taken], row[taken:], cost[taken:]
        kept = row != blocked
        row, cost = row[kept], cost[kept]
        if gpus < cost.min(initial=gpus + 1):
            break
    return given


@lru_cache(maxsize=65_536)
def _gains(curve: Curve) -> tuple[FloatArray, IntArray]:
    """(steps,) the least gain per GPU so far, until the first that is not positive, and GPUs of each step."""
    gpus, per_s = ints(curve.gpus), floats(curve.per_s)
    cost: IntArray = gpus[1:] - gpus[:-1]
    gain = np.minimum.accumulate(((per_s[1:] - per_s[:-1]) / cost).round(ROUNDING))
    positive = gain > 0
    return gain[positive], cost[positive]
