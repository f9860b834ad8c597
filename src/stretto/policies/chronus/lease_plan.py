"""Leases before deadlines: which jobs can still make it, and which have to run now? Arrays in, arrays out.

Chronus (Gao et al., SoCC 2021): time is cut into leases of one length. A job that needs L leases must hold L
of the Q that begin before its deadline, at full size, in any order.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from stretto.model import BoolArray, FloatArray, IntArray
from stretto.solve.integer import maximise_whole

SAFETY = 1.1  # [published code]
OVERHEAD_MIN = 0.5  # minutes of a checkpoint and a resumption on one GPU, once a lease [published code]
ROUNDING_S = 1e-6  # chosen: a remaining time this little beyond a lease does not take another
LATEST_S = 1e12  # chosen: stands for a deadline that there is not
PROVEN_GAP = 1e-4  # chosen: relative; rewards are whole numbers, and few
HOLD_BACK = 1e-3  # chosen: of 1, or of the least reward below; what all GPUs of the current lease cost


def safe_s(remaining_s: FloatArray, gpus: IntArray, lease_s: float) -> FloatArray:
    """(jobs,) remaining time with its margin: T (1 + (1 + log2 n) 0.5 / lease [min]) 1.1."""
    overhead = (1.0 + np.log2(gpus)) * OVERHEAD_MIN / (lease_s / 60.0)
    return remaining_s * (1.0 + overhead) * SAFETY


def leases_needed(remaining_s: FloatArray, lease_s: float) -> IntArray:
    """(jobs,) L: leases that hold the remaining time, at least one."""
    return np.maximum(np.ceil((remaining_s - ROUNDING_S) / lease_s), 1).astype(np.int64)


def leases_before(deadline_s: FloatArray, first: int, lease_s: float) -> IntArray:
    """Q, in the shape of the deadlines: leases from number `first` on that end before each, 0 if none."""
    number = np.floor((np.minimum(deadline_s, LATEST_S) + ROUNDING_S) / lease_s).astype(np.int64)
    return np.maximum(number - first, 0)


def rounded_up(gpus: IntArray, per_node: int) -> IntArray:
    """(jobs,) GPUs with which buddy cells always consolidate: the next power of two, or whole nodes."""
    power = 2 ** np.ceil(np.log2(gpus)).astype(np.int64)
    return np.where(gpus <= per_node, np.minimum(power, per_node), -(-gpus // per_node) * per_node)


def backward_order(gpus: IntArray, slack: IntArray) -> IntArray:
    """(jobs,) rows in the order in which they are fitted: more GPUs first, then less slack, then row."""
    return np.lexsort((slack, -gpus))


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A lease plan by backward first fit."""

    fits: BoolArray  # (jobs,) has its leases before its deadline
    now: BoolArray  # (jobs,) holds the first of the leases
    free: IntArray  # (leases,) GPUs that are left


def fit_backward(free: IntArray, gpus: IntArray, needs: IntArray, before: IntArray) -> Fitted:
    """Give each job the latest leases before its deadline in which it fits, in `backward_order`.

    free: (leases,) GPUs. gpus, needs, before: (jobs,) n, L and Q. One step for each job; each costs as much
    as the job has leases before its deadline.
    """
    left = free.copy()
    fits, now = np.zeros(len(gpus), dtype=np.bool_), np.zeros(len(gpus), dtype=np.bool_)
    possible = backward_order(gpus, before - needs)
    possible = possible[needs[possible] <= before[possible]]
    columns = (gpus[possible], needs[possible], before[possible])
    for row, asks, leases, due in zip(possible.tolist(), *(each.tolist() for each in columns), strict=True):
        room = np.flatnonzero(left[:due] >= asks)
        if room.size < leases:
            continue
        leases_used = room[room.size - leases :]
        left[leases_used] -= asks
        fits[row], now[row] = True, leases_used[0] == 0
    return Fitted(fits, now, left)


def fit_one(free: IntArray, gpus: int, needs: int, before: int) -> IntArray | None:
    """What is left of `free` with one more job fitted backward; None where it does not fit."""
    if needs > before:
        return None
    room = np.flatnonzero(free[:before] >= gpus)
    if room.size < needs:
        return None
    left = free.copy()
    left[room[room.size - needs :]] -= gpus
    return left


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A deadline for each job, and which jobs run now."""

    step: IntArray  # (jobs,) which of its deadlines; -1: none can be kept
    now: BoolArray  # (jobs,)
    value: float  # rewards of the deadlines kept
    proven: bool  # no plan keeps more


def choose_deadlines(
    free: IntArray,
    gpus: IntArray,
    needs: IntArray,
    before: IntArray,
    reward: FloatArray,
    periods: int,
    nodes: int,
) -> Chosen | None:
    """The deadlines that are worth most, and least use of the first lease; None where nothing was found.

    before, reward: (jobs, steps) Q and V, reward 0 where there is no such step. Maximises Σ V s over integer
    leases x by period and binary s, with Σ_{periods before Q_f} x >= L s_f, Σ_f s_f <= 1 and Σ n x <= free.
    The leases are put together into at most `periods` periods that end at deadlines, the first alone. Within
    a period only sums are kept. A plan of single leases may fall a little short of these where jobs of many
    GPUs meet. At most `nodes` nodes of branch and bound.
    """
    # Variables: leases x of each job by period, then one binary s for each deadline that can be met.
    ends = period_ends(before, reward, len(free), periods)
    length = np.diff(ends, prepend=0)
    room = np.add.reduceat(free, np.concatenate(([0], ends[:-1])))
    jobs, count = len(gpus), len(ends)
    row, step = np.nonzero((reward > 0) & (before >= needs[:, None]))
    x = np.arange(jobs * count).reshape(jobs, count)
    s = jobs * count + np.arange(row.size)
    variables = jobs * count + row.size

    # A deadline that is kept needs its leases before it: L s - Σ x <= 0.
    covered = ends[None, :] <= before[row, step][:, None]  # (choices, periods) whole periods before it
    choice, period = np.nonzero(covered)
    in_time = sparse.csr_array(
        (
            np.concatenate((-np.ones(choice.size), needs[row].astype(np.float64))),
            (
                np.concatenate((choice, np.arange(row.size))),
                np.concatenate((x[row[choice], period], s)),
            ),
        ),
        shape=(row.size, variables),
    )
    # At most one deadline of a job counts, and each period has so many GPUs.
    at_most_one = sparse.csr_array((np.ones(row.size), (row, s)), shape=(jobs, variables))
    within = sparse.csr_array(
        (np.repeat(gpus, count).astype(np.float64), (np.tile(np.arange(count), jobs), x.ravel())),
        shape=(count, variables),
    )
    # Rewards; and a little less for every lease in the first period, so that it is used only where needed.
    gain = np.zeros(variables)
    gain[s] = reward[row, step]
    hold_back = HOLD_BACK * float(reward[row, step].min(initial=1.0))
    gain[x[:, 0]] = -hold_back * gpus / max(int(gpus.sum()), 1)
    solution = maximise_whole(
        gain,
        sparse.vstack((in_time, at_most_one, within)),
        np.concatenate((np.zeros(row.size), np.ones(jobs), room)),
        np.concatenate((np.tile(length, jobs), np.ones(row.size))),
        nodes,
        PROVEN_GAP,
    )
    if solution is None:
        return None
    # Back to a deadline for each job, and whether it runs in the first lease.
    answer = solution.x
    chosen_step = np.full(jobs, -1, dtype=np.int64)
    picked = answer[s] > 0
    chosen_step[row[picked]] = step[picked]
    value = float(reward[row[picked], step[picked]].sum())
    return Chosen(chosen_step, (answer[x[:, 0]] > 0) & (chosen_step >= 0), value, solution.proven)


def period_ends(before: IntArray, reward: FloatArray, leases: int, periods: int) -> IntArray:
    """(periods,) where they end: after the first lease, and at deadlines spread evenly over the jobs."""
    due = np.sort(before[(reward > 0) & (before > 1)])
    picks = np.linspace(0, len(due) - 1, num=min(periods - 2, len(due))).astype(np.int64)
    ends = np.unique(np.concatenate(([1], due[picks], [leases])))
    return ends[ends <= leases]
