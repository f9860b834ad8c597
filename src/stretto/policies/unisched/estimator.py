"""What does each job want now, and what is it worth? The phases and options of UniSched's Estimator.

UniSched (TPDS 2024), sections III-B and III-C2. Rows are the jobs of one decision.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stretto.estimate.placement_runtime import (
    best_effort_suspensions,
    relative_speed,
    suspensions,
    two_gpu_profile,
)
from stretto.model import BoolArray, FloatArray, IntArray, JobTable, Requests, Snapshot, frozen
from stretto.policies.unisched.cells import offers
from stretto.policies.unisched.ilp import Options

MINUTE_S = 60.0
MOST_VALUE_OF_BEST_EFFORT = 1 / 1.01  # below a profiling run's 1, as the paper wants it


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """The jobs of one decision; columns are (jobs,)."""

    kind: IntArray  # GPU type to run on, -1: nowhere
    asks: IntArray  # GPUs for this tick
    gpus: IntArray  # to run, on that type
    profiles: BoolArray  # is still to be profiled
    urgent: BoolArray  # has been, and has a deadline before it
    kept: BoolArray  # runs and may not be stopped
    left_s: FloatArray
    overhead_s: FloatArray  # of one suspension and resumption

    def stays(self, snapshot: Snapshot) -> BoolArray:
        """(jobs,) whether each holds already what it asks for, on nodes that may be used."""
        jobs = snapshot.jobs
        same: BoolArray = (jobs.held_gpus == self.asks) & (jobs.held_kind == self.kind)
        return same if snapshot.usable.all() else same & ~who_is_on(snapshot, ~snapshot.usable)


def who_is_on(snapshot: Snapshot, nodes: BoolArray) -> BoolArray:
    """(jobs,) whether each holds GPUs of these nodes."""
    on = np.zeros(len(snapshot.jobs), dtype=np.bool_)
    for row in snapshot.jobs.held_gpus.nonzero()[0].tolist():
        on[row] = nodes[list(snapshot.placement[snapshot.jobs.ids[row]].nodes)].any()
    return on


def rewards_of(jobs: JobTable) -> tuple[FloatArray, FloatArray]:
    """(jobs, steps) deadlines, NaN where there are fewer, and what meeting them is worth."""
    deadline_s, value = _all_rewards(jobs.requests)
    return deadline_s[jobs.rows], value[jobs.rows]


@lru_cache(maxsize=2)
def _all_rewards(requests: Requests) -> tuple[FloatArray, FloatArray]:
    steps = max((len(job.rewards) for job in requests.jobs), default=0)
    deadline_s, value = np.full((2, len(requests.jobs), steps), np.nan)
    for row, job in enumerate(requests.jobs):
        for step, reward in enumerate(job.rewards):
            deadline_s[row, step], value[row, step] = reward.deadline_s, reward.value
    return frozen(deadline_s), frozen(value)


def best_effort_value(left_s: FloatArray, overhead_s: FloatArray, lease_s: float) -> FloatArray:
    """(jobs,) 1 / minutes left, with the expected suspensions, a little below 1 at most."""
    needed = np.ceil(left_s / lease_s)
    minutes = (left_s + overhead_s * best_effort_suspensions(needed)) / MINUTE_S
    return np.minimum(1.0 / np.maximum(minutes, 1e-3), MOST_VALUE_OF_BEST_EFFORT)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What options are made with."""

    now_s: float
    lease_s: float  # of jobs with deadlines
    top_level: int  # of the cells there are
    consolidates: bool  # only the most consolidated policy
    suspends: bool  # count on suspensions
    whole: bool = True  # a lease that is needed in part is planned whole; False: to the nearest

    def leases(self, time: FloatArray) -> FloatArray:
        """Of a time in leases, how many are planned."""
        return np.ceil(time) if self.whole else np.maximum(np.floor(time + 0.5), 1.0)


def options_for(
    jobs: JobTable,
    rows: IntArray,
    gpus: IntArray,
    left_s: FloatArray,
    overhead_s: FloatArray,
    terms: LeaseTerms,
    kind: int,
) -> Options:
    """The options of some jobs, which `job` names by row.

    L = ceil(T_dur / lease) with T_dur = T_sr + N_iter T_iter (equation 1), Q = floor(time left / lease). Of
    each job those worth most come first, then those that take fewest GPU-leases. gpus, left_s and overhead_s
    are (jobs,).
    """
    # Windows: whole leases until each deadline.
    deadline_s, value = (column[rows] for column in rewards_of(jobs))
    with np.errstate(invalid="ignore"):
        window = np.floor(np.nan_to_num((deadline_s - terms.now_s) / terms.lease_s, nan=-1.0))
    # Leases: what is left, with the suspensions that are to be expected, on consolidated and on spread cells.
    cells, speed = _policies(jobs, rows, gpus[rows], terms, kind)
    runs = terms.leases(left_s[rows] / terms.lease_s)[:, None]
    overhead = np.zeros(window.shape)
    if terms.suspends:
        overhead = overhead_s[rows][:, None] * suspensions(np.maximum(runs, 1), window)
    leases = np.maximum(terms.leases((left_s[rows][:, None] + overhead) / terms.lease_s - 1e-9), 1)
    needed = np.ceil(leases[:, :, None] / speed[:, None, :] - 1e-9)  # (rows, steps, policies)
    possible = (needed <= window[:, :, None]) & (cells > 0)[:, None, :] & (value > 0)[:, :, None]
    # An option for each deadline and way to place that fits into its window.
    row, step, policy = np.nonzero(possible)
    options = Options(
        job=rows[row],
        value=value[row, step],
        gpus=cells[row, policy],
        leases=needed[row, step, policy].astype(np.int64),
        window=window[row, step].astype(np.int64),
    )
    order = np.lexsort((-options.window, options.gpus * options.leases, -options.value, row))
    return options.of(order)


def _policies(
    jobs: JobTable, rows: IntArray, gpus: IntArray, terms: LeaseTerms, kind: int
) -> tuple[IntArray, FloatArray]:
    """(rows, policies) GPUs that each takes, 0 where there is none, and its speed beside the fastest."""
    cells_offered, speed = np.zeros((len(rows), 2), dtype=np.int64), np.ones((len(rows), 2))
    for count in np.unique(gpus).tolist():
        offered = offers(count, terms.top_level)[: 1 if terms.consolidates else 2]
        same = gpus == count
        cells_offered[same, : len(offered)] = [cells for cells, _ in offered]
        if len(offered) == 2:  # only here does the speed of a spread job matter
            for row in np.flatnonzero(same).tolist():
                profile = two_gpu_profile(jobs.tables[int(rows[row])], kind)
                speed[row, 1] = relative_speed(profile, count, False, True)
    return cells_offered, speed
