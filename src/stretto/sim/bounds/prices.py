"""A bound on the sum of completion times: what jobs would do if GPUs had prices that change over time.

At any prices each job can choose for itself the GPUs that cost it the least, in time and price. No schedule
is better than all of these choices together, less what the cluster earns: a Lagrangian relaxation of the
capacities. With λ_k(t) ≥ 0 the price of a GPU-second of type k in seconds of completion time, and N_k GPUs,

    Σ C ≥ Σ_j min over schedules of j alone [C_j + ∫ Σ_k λ_k(t) n_jk(t) dt] - ∫ Σ_k λ_k(t) N_k dt

A job of work W that must end at C pays at least, for any worth µ of a unit of its work,

    µ W - ∫ max over (k, n) of [µ v_k(n) - λ_k(t) n]+ dt        v_k(n): its speed on n GPUs of type k

The bound is concave in the prices, and its slope is what jobs ask for less what there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.model import Cluster, FloatArray, IntArray, floats
from stretto.sim.bounds.needs import Needs, NeedsOfJobs
from stretto.sim.bounds.one_machine import least_completions_s

SLOTS = 720  # in which prices stay; chosen
LEAST_S = 1.0  # from the first to the last slot's end, at least; chosen
TAIL = 2.0  # after the last arrival, by the longest that a job takes alone; chosen
WORTHS = np.geomspace(0.5, 60.0, 32)  # of a unit of work, over its least time; chosen
ROUNDS = 160  # in which prices are moved, at the most; chosen
VISITS = 500_000  # of jobs in all rounds together, which take about a minute; chosen
HOPE = 0.1  # by which the bound is hoped to grow at first, over the time that jobs take alone; chosen
PATIENCE = 8  # rounds without a better bound until half as much is hoped for; chosen
BETTER = 1e-4  # by which it must grow for that, over the same; chosen


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices over time, and the bound that they give."""

    edges_s: FloatArray  # (slots + 1,)
    prices: FloatArray  # (types, slots) seconds of completion time for a GPU-second
    total_s: float  # the sum of completion times is at least so much


def best_prices(cluster: Cluster, ready_s: FloatArray, needs: NeedsOfJobs, fastest_s: FloatArray) -> Prices:
    """The prices of the highest bound that was found.

    ready_s, fastest_s: (jobs,) when each can begin, and its least time. Prices begin with what a second's
    delay costs all jobs that are there, if the cluster was one machine. Each round moves them along a
    subgradient. How far follows from how much the bound is hoped to grow (Polyak, USSR Computational
    Mathematics and Mathematical Physics, 1969).
    """
    market = _Market(cluster, ready_s, needs, fastest_s)
    best = Prices(market.edges_s, market.first_prices(needs), -np.inf)
    prices, alone_s = best.prices, float(fastest_s.sum())
    hope_s, in_vain = HOPE * alone_s, 0
    for _ in range(min(ROUNDS, 1 + VISITS // len(ready_s))):
        total_s, demand = market.at(prices)
        in_vain = 0 if total_s > best.total_s + BETTER * alone_s else in_vain + 1
        if total_s > best.total_s:
            best = Prices(market.edges_s, prices, total_s)
        if in_vain > PATIENCE:  # from the best once more, in smaller steps
            hope_s, in_vain, prices = hope_s / 2, 0, best.prices
            continue
        slope = (demand - market.gpus[:, None]) * market.slot_s
        slope[(prices <= 0) & (slope < 0)] = 0.0
        length = float((slope**2).sum())
        if length == 0.0:
            break  # as much is asked for as there is
        prices = np.maximum(prices + (best.total_s + hope_s - total_s) / length * slope, 0.0)
    return best


class _Market:
    """Jobs that choose GPUs at prices."""

    def __init__(
        self, cluster: Cluster, ready_s: FloatArray, needs: NeedsOfJobs, fastest_s: FloatArray
    ) -> None:
        self.cluster = cluster
        self.gpus = cluster.capacity.astype(np.float64)
        self.ready_s = ready_s
        self.no_wait_s = float(ready_s.sum())
        begins_s = float(ready_s.min())
        # All may end as they come. At any length of a slot there is nothing to pay for then.
        ends_s = max(float(ready_s.max()) + TAIL * float(fastest_s.max()), begins_s + LEAST_S)
        self.edges_s = np.linspace(begins_s, ends_s, SLOTS + 1)
        self.slot_s = float(self.edges_s[1] - self.edges_s[0])
        index = np.array(needs.index)
        self.groups = [
            _Group(needed, np.flatnonzero(index == number), needs.times[index == number])
            for number, needed in enumerate(needs.made)
        ]

    def first_prices(self, needs: NeedsOfJobs) -> FloatArray:
        """(types, slots) jobs that are there, over the GPUs, if all GPUs together were one machine."""
        alike = 1.0 / float(self.gpus.sum())
        work_s = needs.of_each([float(needed.gpu_s.min(axis=1).sum()) * alike for needed in needs.made])
        moments_s = (self.edges_s[1:] + self.edges_s[:-1]) / 2
        ends_s = least_completions_s(self.ready_s, work_s)
        there = np.searchsorted(np.sort(self.ready_s), moments_s) - np.searchsorted(ends_s, moments_s)
        return np.tile(there * alike, (len(self.gpus), 1))

    def at(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """(bound of the sum of completion times, (types, slots) GPUs that jobs ask for)."""
        demand = np.zeros_like(prices)
        total_s = self.no_wait_s - float((self.gpus @ prices).sum()) * self.slot_s
        for group in self.groups:
            total_s += self._choices(group, prices, demand)
        return total_s, demand

    def _choices(self, group: "_Group", prices: FloatArray, demand: FloatArray) -> float:
        """Sum of what the jobs of a group pay at the least, in time and GPUs; counts what they ask for."""
        worths = WORTHS / group.fastest
        gain, gpus = group.gains(worths, prices)
        # (worths, slots + 1) time that has passed, less what running gains, up to each edge
        lost_s = np.zeros((len(worths), len(self.edges_s)))
        np.cumsum((1.0 - gain) * self.slot_s, axis=1, out=lost_s[:, 1:])
        paid_s = 0.0
        for row, times in zip(group.rows.tolist(), group.times.tolist(), strict=True):
            ready_s = float(self.ready_s[row])
            first = min(int((ready_s - self.edges_s[0]) / self.slot_s), len(self.edges_s) - 2)
            into = (ready_s - self.edges_s[first]) / self.slot_s
            before_s = lost_s[:, first] + into * (lost_s[:, first + 1] - lost_s[:, first])
            ends = lost_s[:, first:] - before_s[:, None]
            ends[:, 0] = 0.0
            ends += (worths * group.work * times)[:, None]
            # Linear between two edges for each worth: least at one of them, and the best worth counts.
            slots = np.minimum(ends[:, :-1], ends[:, 1:])
            worth = slots.argmax(axis=0)
            least_s = slots[worth, np.arange(slots.shape[1])]
            np.maximum(least_s, self.edges_s[first:-1] - ready_s, out=least_s)
            slot = int(least_s.argmin())
            paid_s += min(float(least_s[slot]), float(self.edges_s[-1]) - ready_s)
            until = slice(first, first + slot + 1)
            demand[:, until] += gpus[worth[slot], :, until]
        return paid_s


class _Group:
    """Jobs with equal needs, and the sizes that any prices may make them choose."""

    def __init__(self, needs: Needs, rows: IntArray, times: FloatArray) -> None:
        self.rows, self.times, self.work = rows, times, needs.work
        self.sizes = [_sizes_worth_having(of_type) for of_type in needs.speeds.tolist()]
        self.fastest = float(needs.speeds.max())
        self.on_several_types = needs.on_several_types

    def gains(self, worths: FloatArray, prices: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(worths, slots) the most that a second brings over its price, (worths, types, slots) GPUs for it.

        worths: of a unit of work. prices: (types, slots). Without GPUs a second brings 0.
        """
        of_types = np.zeros((len(worths), *prices.shape))
        gpus = np.zeros_like(of_types)
        for kind, (sizes, speeds) in enumerate(self.sizes):
            # Speed grows ever more slowly: further GPUs are taken while they are worth their price.
            slopes = np.diff(speeds) / np.diff(sizes)
            chosen = np.searchsorted(-slopes, -prices[kind] / worths[:, None])
            of_types[:, kind] = worths[:, None] * speeds[chosen] - prices[kind] * sizes[chosen]
            gpus[:, kind] = sizes[chosen]
        if self.on_several_types:
            return of_types.sum(axis=1), gpus
        best = of_types.argmax(axis=1)[:, None]
        gpus[np.arange(len(prices))[:, None] != best] = 0.0
        return np.take_along_axis(of_types, best, axis=1)[:, 0], gpus


def _sizes_worth_having(speeds: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """(sizes,) GPUs and speeds: nothing, and what is on the upper hull of speed over GPUs.

    speeds: by GPUs, from 0 on; 0 where a job cannot run.
    """
    hull: list[Point] = [(0.0, 0.0)]
    for gpus, speed in enumerate(speeds):
        if speed <= hull[-1][1]:
            continue
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], (gpus, speed)):
            hull.pop()
        hull.append((float(gpus), speed))
    sizes, of_sizes = floats(hull).T
    return sizes, of_sizes


Point = tuple[float, float]


def _is_below(left: Point, middle: Point, right: Point) -> bool:
    """Whether the middle point is not above the line from left to right."""
    return (middle[1] - left[1]) * (right[0] - left[0]) <= (right[1] - left[1]) * (middle[0] - left[0])
