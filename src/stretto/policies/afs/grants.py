"""Who gets the next worker? AFS's two ways, on curves of speed by GPUs, with no notion of a cluster."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from stretto.model import FloatArray, IntArray, floats, ints
from stretto.policies.common.speed_curves import Curve

ROUNDING = 12  # decimals of a gain in steps per second; chosen: linear speeds gain the same from every GPU


def by_tournament(curves: Sequence[Curve], work: FloatArray, gpus: int) -> IntArray:
    """(jobs,) GPUs by AFS-L: every grant to the winner of a walk through all jobs (NSDI 2021, algorithm 1).

    curves: the counts at which a job can run, and how fast; work: (jobs,) what is left, in their units. Of
    two jobs without GPUs the one with less work for its first count wins.
    """
    tournament = Tournament(curves, work)
    while tournament.open.size:
        row = tournament.winner()
        cost = tournament.cost(row)
        if cost > gpus:
            tournament.close(row)
        else:
            gpus -= cost
            tournament.grant(row)
    return tournament.gpus


class Tournament:
    """The jobs that may still get more, in their order, with what the comparisons look at as columns."""

    def __init__(self, curves: Sequence[Curve], work: FloatArray) -> None:
        count = len(curves)
        self.curves, self.work = curves, work
        self.gpus: IntArray = np.zeros(count, dtype=np.int64)
        self.rung: IntArray = np.full(count, -1)
        self.open: IntArray = np.flatnonzero([bool(curve.gpus) for curve in curves])
        self.left_s = np.full(count, np.inf)  # at the present share
        self.first_s = np.array(
            [
                left / curve.per_s[0] if curve.gpus else np.inf
                for curve, left in zip(curves, work, strict=True)
            ]
        )
        self.as_short = np.full(count, np.inf)  # relative gain of the next worker, as the shorter job
        self.as_long = np.ones(count)  # and as the longer one

    def winner(self) -> int:
        """Who comes out of the walk: the next to take over is looked for among all that follow at once."""
        at = 0
        while True:
            best, others = self.open[at], self.open[at + 1 :]
            shorter = self.left_s[others] < self.left_s[best]
            takes = np.where(
                shorter,
                self.as_short[others] > self.as_long[best],
                self.as_long[others] >= self.as_short[best],
            )
            if self.rung[best] < 0:
                unserved = self.rung[others] < 0
                takes = np.where(unserved, self.first_s[others] < self.first_s[best], takes)
            if not takes.any():
                return int(best)
            at += 1 + int(takes.argmax())

    def cost(self, row: int) -> int:
        """GPUs of the next step."""
        return int(self.curves[row].gpus[self.rung[row] + 1] - self.gpus[row])

    def close(self, row: int) -> None:
        """It gets no more."""
        self.open = self.open[self.open != row]

    def grant(self, row: int) -> None:
        """Give the next step, and look at the one after it."""
        curve = self.curves[row]
        rung = int(self.rung[row]) + 1
        self.rung[row] = rung
        self.gpus[row] = curve.gpus[rung]
        per_s = curve.per_s[rung]
        self.left_s[row] = self.work[row] / per_s
        if rung + 1 == len(curve.gpus) or curve.per_s[rung + 1] <= per_s:
            self.close(row)
            return
        gain = (curve.per_s[rung + 1] - per_s) / (curve.gpus[rung + 1] - curve.gpus[rung])
        self.as_short[row] = gain / per_s
        self.as_long[row] = gain / curve.per_s[rung + 1]


def by_gain(curves: Sequence[Curve], gpus: int) -> IntArray:
    """(jobs,) more GPUs: one worker at a time to the job that gains most speed from each GPU of it.

    Curves begin at what a job has. A job for whose next worker there are too few GPUs gets no more. Taking
    the largest next gain again and again is to take all gains by the least gain of their job so far: one
    sort instead of a heap.
    """
    given = np.zeros(len(curves), dtype=np.int64)
    steps = [_gains(curve) for curve in curves]
    counts = [len(gain) for gain, _ in steps]
    if not sum(counts) or gpus <= 0:
        return given
    row = np.repeat(np.arange(len(curves)), counts)
    gain = np.concatenate([gain for gain, _ in steps])
    cost = np.concatenate([cost for _, cost in steps])
    order = np.lexsort((row, -gain))  # stable: the steps of one job stay in their order
    row, cost = row[order], cost[order]
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
