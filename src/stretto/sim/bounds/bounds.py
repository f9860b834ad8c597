"""Bounds of a workload on a cluster: mean JCT, missed deadlines, interactive queuing.

The bound of the mean JCT is the largest of three. No job is faster than on what suits it best. A cluster is
no better than one machine that is as fast as all GPUs together (`one_machine`). And no schedule is better
than all jobs together where GPUs have prices (`prices`).

On the one machine each job works for what it costs. GPUs of each type have a price, all of them together
earn 1 a second, and a job takes its cheapest GPU time. Any prices give a bound. Those that are taken are the
means of the prices over time.
"""

from collections.abc import Sequence

import numpy as np

from stretto.model import BoolArray, Cluster, FloatArray, Requests, floats
from stretto.sim.bounds.deadlines import most_rewards
from stretto.sim.bounds.needs import NeedsOfJobs, needs_of
from stretto.sim.bounds.one_machine import least_completions_s
from stretto.sim.bounds.prices import Prices, best_prices
from stretto.sim.result import NO_BOUNDS, Bounds
from stretto.sim.run import Setup
from stretto.sim.setup import physics_of
from stretto.traces.workload import Workload


def bounds_of(workload: Workload, setup: Setup) -> Bounds:
    """The bounds of a workload in the world of a setup; its policy is not asked.

    All nodes count as if they were there all the time, those of lenders, too. Overheads are those of a first
    start; rounds, profiling and changes cost nothing. Jobs run within their ranges: what a policy lets a job
    do on fewer GPUs, to profile it, is not considered.
    """
    physics = physics_of(workload, setup.cluster, setup.sim, setup.profiles, setup.seed)
    needs = needs_of(physics, setup.sim)
    return bounds_for(physics.requests, needs)


def bounds_for(requests: Requests, needs: NeedsOfJobs) -> Bounds:
    """The same where what each job needs is known."""
    jobs = len(requests.jobs)
    if not jobs:
        return NO_BOUNDS
    ready_s = requests.submitted_s + needs.start_s
    fastest_s = needs.of_each([needed.fastest_s for needed in needs.made])
    path = best_prices(requests.cluster, ready_s, needs, fastest_s)
    machine = Machine(ready_s, fastest_s, needs, _constant(path, requests.cluster))
    total_s = max(machine.least_total_completion_s(), path.total_s)
    first = [[(reward.deadline_s, 1.0) for reward in job.rewards[:1]] for job in requests.jobs]
    every = [
        # A deadline that is worth nothing cannot be missed by any weight.
        [
            (reward.deadline_s, reward.value / job.deadline_value)
            for reward in job.rewards
            if job.deadline_value
        ]
        for job in requests.jobs
    ]
    return Bounds(
        avg_jct_s=(total_s - float(requests.submitted_s.sum())) / jobs,
        interactive_avg_queue_s=machine.least_avg_queue_s(requests.interactive),
        deadline_miss_rate=machine.least_missed(first),
        weighted_deadline_miss_rate=machine.least_missed(every),
    )


def _constant(path: Prices, cluster: Cluster) -> FloatArray:
    """(types,) prices that do not change, at which all GPUs earn 1 a second."""
    prices = path.prices.mean(axis=1)
    if not prices.any():  # nobody has to wait
        prices = np.ones(len(prices))
    return floats(prices / float(prices @ cluster.capacity))


class Machine:
    """A cluster at prices that do not change, as one machine."""

    def __init__(
        self, ready_s: FloatArray, fastest_s: FloatArray, needs: NeedsOfJobs, prices: FloatArray
    ) -> None:
        """ready_s, fastest_s: (jobs,) when each can begin, and its least time. prices: (types,)."""
        self.ready_s, self.fastest_s = ready_s, fastest_s
        self.work_s = needs.of_each(
            [float((needed.gpu_s * prices).min(axis=1).sum()) for needed in needs.made]
        )
        self.slowest_s = needs.of_each([needed.slowest_s for needed in needs.made])

    def least_total_completion_s(self, rows: BoolArray | slice = slice(None)) -> float:
        """A bound of the sum of completion times of some jobs that have the machine to themselves."""
        ready_s = self.ready_s[rows]
        alone_s = float((ready_s + self.fastest_s[rows]).sum())
        return max(alone_s, float(least_completions_s(ready_s, self.work_s[rows]).sum()))

    def least_avg_queue_s(self, rows: BoolArray) -> float:
        """A bound of the mean time without a GPU of some jobs; NaN of none.

        They hold GPUs while they do not wait: at the longest for as long as on the slowest that they accept.
        """
        if not rows.any():
            return np.nan
        held_until_s = self.ready_s[rows] + self.slowest_s[rows]
        waited_s = self.least_total_completion_s(rows) - float(held_until_s.sum())
        return max(waited_s, 0.0) / int(rows.sum())

    def least_missed(self, deadlines: Sequence[Sequence[tuple[float, float]]]) -> float:
        """1 - the most that jobs can earn over what all would; NaN where none has a deadline.

        deadlines: for each job, (deadline, what it earns by then over the most that it can earn).
        """
        jobs = sum(1 for options in deadlines if options)
        if not jobs:
            return np.nan
        return max(1.0 - most_rewards(self.ready_s, self.work_s, self.fastest_s, deadlines) / jobs, 0.0)
