"""Gavel's objectives as linear programmes: how much of its time should each job spend on each GPU type?

Gavel (Narayanan et al., OSDI 2020), section 4. In all of them X[j, t] is the fraction of time that job j runs
on type t with all its GPUs R_j. So X >= 0, sum_t X[j, t] <= 1, sum_j R_j X[j, t] <= G_t. Its throughput is
thr(j, X) = sum_t T[j, t] X[j, t].

Arrays: per_s (jobs, types) T, 0 where a job cannot run; gpus (jobs,) R; capacity (types,) G.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from stretto.model import FloatArray, IntArray
from stretto.solve import LpSolution, NoSolution, maximise

SMALLEST_FRACTION = 1e-9  # of a job's time; chosen: less is rounding of the solver
RATIO_TOLERANCE = 1e-4  # relative, of the finish-time fairness that is found; chosen
MOST_STEPS = 100  # of bisection; chosen: about 20 are needed with the tolerance above
V_TOLERANCE = 1e-8  # relative, by which the worst off may fall when the rest is shared out; chosen


@dataclass(frozen=True, slots=True, eq=False)
class Timeshare:
    """The time fractions of an optimum."""

    fraction: FloatArray  # (jobs, types) X
    prices: FloatArray | None  # (types,) what one more GPU adds to the objective, where it is linear
    value: float  # of the objective


def max_sum_throughput(per_s: FloatArray, gpus: IntArray, capacity: IntArray) -> Timeshare:
    """Most steps per second in all: max sum_j thr(j, X)."""
    return _maximise(per_s, gpus, capacity)


def max_min_fairness(per_s: FloatArray, gpus: IntArray, capacity: IntArray, weight: FloatArray) -> Timeshare:
    """The least served job as well off as can be, beside an equal share of every type.

    max min_j  (1/w_j) (thr(j, X) / thr(j, X_eq)) R_j,  X_eq[j, t] = G_t / |J|, scaled to at most 1 a job.
    """
    equal_per_s = (per_s * _capped(np.tile(capacity / len(gpus), (len(gpus), 1)))).sum(axis=1)
    return _maximise(per_s, gpus, capacity, unit=weight * equal_per_s / gpus)


def shortest_makespan(
    per_s: FloatArray, gpus: IntArray, capacity: IntArray, remaining: FloatArray
) -> Timeshare:
    """The last job done as soon as can be: max v with thr(j, X) >= v rem_j; the makespan is 1 / v."""
    return _maximise(per_s, gpus, capacity, unit=remaining)


def isolated_per_s(per_s: FloatArray, gpus: IntArray, capacity: IntArray) -> FloatArray:
    """(jobs,) throughput of each job with a |J|-th of the cluster to itself.

    X_iso[j, t] = G_t / (|J| R_j), scaled to at most 1 a job.
    """
    own: FloatArray = (per_s * _capped(capacity / (len(gpus) * gpus[:, None]))).sum(axis=1)
    return own


def finish_time_fairness(
    per_s: FloatArray,
    gpus: IntArray,
    capacity: IntArray,
    age_s: FloatArray,
    remaining: FloatArray,
    isolated_s: FloatArray,
) -> Timeshare:
    """The job that fares worst beside a cluster of its own fares as well as can be.

    min max_j  (t_j + rem_j / thr(j, X)) / Iso_j,  Iso_j = `isolated_s`, from start to end on its own share.

    Quasi-convex: bisection on the ratio rho. A rho can be had iff some X gives every job
    thr(j, X) >= rem_j / (rho Iso_j - t_j). The X of each step shows a ratio that can be had, which
    narrows the bracket faster than halving it.
    """
    least = float(((age_s + remaining / per_s.max(axis=1)) / isolated_s).max())  # alone on its best type
    # Double the ratio until it can be had, then halve the interval: one linear programme for each.
    share, most = None, np.inf
    ratio = max(2.0 * least, 1.0)
    for _ in range(MOST_STEPS):
        timeshare = _maximise(per_s, gpus, capacity, unit=remaining / (ratio * isolated_s - age_s))
        # The ratio that its answer really reaches may be better than the one that was tried.
        had = (per_s * timeshare.fraction).sum(axis=1)
        left_s = np.divide(remaining, had, out=np.full(len(had), np.inf), where=had > 0)
        reached = float(((age_s + left_s) / isolated_s).max())  # infinite where a job needs next to nothing
        if timeshare.value >= 1:
            reached = min(reached, ratio)
        else:
            least = ratio
        if reached < most:
            share, most = timeshare, reached
        if share is None:
            ratio *= 2
        elif most - least <= RATIO_TOLERANCE * most:
            break
        else:
            ratio = (least + most) / 2
    if share is None:
        raise NoSolution(
            f"no ratio up to {ratio:g} is fair to {len(gpus)} jobs on capacity={capacity.tolist()}"
        )
    return Timeshare(share.fraction, None, most)


def _capped(fraction: FloatArray) -> FloatArray:
    """The same time fractions, scaled down in the rows where they exceed all of a job's time."""
    capped: FloatArray = fraction / np.maximum(fraction.sum(axis=1), 1.0)[:, None]
    return capped


def _maximise(
    per_s: FloatArray, gpus: IntArray, capacity: IntArray, unit: FloatArray | None = None
) -> Timeshare:
    """Most throughput in all; or, with `unit` (jobs,), the most v such that thr(j, X) >= v unit_j.

    What the worst off cannot use goes to the others. Equal jobs are one row of the programme and share its
    time evenly. Of the many optima this is the one that treats equals equally, whatever their order.
    """
    columns = (per_s, gpus[:, None]) if unit is None else (per_s, gpus[:, None], unit[:, None])
    first, group, members = _equal_rows(np.hstack(columns))
    per_s_of, gpus_of = per_s[first], gpus[first].astype(np.float64)
    groups, types = per_s_of.shape

    # Variables: the time of each group on each type, in units of one job's time, by group.
    upper = np.where(per_s_of > 0, members[:, None], 0.0).ravel()
    each_once = sparse.csr_array(sparse.kron(sparse.eye_array(groups), np.ones((1, types))))
    within_type = sparse.csr_array(sparse.kron(gpus_of[None, :], sparse.eye_array(types)))
    limits = np.concatenate((members, capacity)).astype(np.float64)
    if unit is None or not unit.any():
        rows = sparse.vstack((each_once, within_type))
        solution, scale = maximise(per_s_of.ravel(), rows, limits, bounds=(0.0, upper)), 1.0
        time = solution.x
    else:  # One more variable, v in units of what the hardest job could have alone, so that it is near 1.
        best_per_s = per_s_of.max(axis=1)
        with np.errstate(divide="ignore"):
            scale = float((best_per_s / unit[first]).min())
        part = (per_s_of / best_per_s[:, None]).ravel()  # of the best throughput of the job
        served = sparse.csr_array(each_once.multiply(part[None, :]))
        wanted = sparse.csr_array((members * scale * unit[first] / best_per_s)[:, None])
        blocks: list[list[Any]] = [[each_once, None], [within_type, None], [-served, wanted]]
        rows, limits = sparse.block_array(blocks), np.append(limits, np.zeros(groups))
        solution = maximise(np.append(0.0 * part, 1.0), rows, limits, bounds=(0.0, np.append(upper, np.inf)))
        time = _with_the_rest(solution, part, rows, limits, upper)

    fraction = (time.reshape(groups, types) / members[:, None])[group]
    fraction[fraction < SMALLEST_FRACTION] = 0.0
    return Timeshare(fraction, solution.duals[groups : groups + types] * scale, solution.value * scale)


def _with_the_rest(
    solution: LpSolution, part: FloatArray, rows: Any, limits: FloatArray, upper: FloatArray
) -> FloatArray:
    """Times that keep the v that was found and share out what it leaves, for most throughput in parts."""
    lower = np.append(np.zeros(len(part)), solution.value * (1 - V_TOLERANCE))
    try:
        shared = maximise(np.append(part, 0.0), rows, limits, bounds=(lower, np.append(upper, np.inf)))
    except NoSolution:  # the v that was found holds only within the solver's own tolerance
        return solution.x[:-1]
    return shared.x[:-1]


def _equal_rows(rows: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """(first of each group, the group of each row, rows in each group), groups in order of first rows."""
    groups: dict[bytes, int] = {}
    first: list[int] = []
    group = np.empty(len(rows), dtype=np.int64)
    for index, row in enumerate(np.ascontiguousarray(rows)):
        group[index] = groups.setdefault(row.tobytes(), len(first))
        if group[index] == len(first):
            first.append(index)
    return np.array(first), group, np.bincount(group).astype(np.float64)
