"""What is it worth to start a job then, and what will it hold? Expected over its distribution.

3Sigma (Park et al., EuroSys 2018), section 4.3. Arrays in, arrays out; times are seconds from now.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from stretto.model import BoolArray, FloatArray, IntArray
from stretto.solve.integer import maximise_whole

TINY_GPUS = 1e-6  # chosen: rounding in sums of expected GPUs
LEAST = 0.01  # chosen: what a best-effort job is worth at least, however late; no job is worth nothing


@dataclass(frozen=True, slots=True, eq=False)
class Utility:
    """Worth of completing at a time: steps for deadlines, a line for best effort."""

    due_s: FloatArray  # (jobs, steps) ascending, -inf where there are fewer
    value: FloatArray  # (jobs, steps)
    since_s: FloatArray  # (jobs,) submission, <= 0
    fade_s: FloatArray  # (jobs,) from submission until a best-effort job is worth least
    best_effort: float  # worth of one that completes at once

    def at(self, done_s: FloatArray, mean_s: FloatArray, soonest_s: FloatArray) -> FloatArray:
        """(jobs, starts, bins) worth of completing at `done_s`, of that shape.

        A deadline job that cannot be in time even at its shortest (over-estimate handling) loses its last
        worth linearly over one more mean runtime. Every job is worth at least what best effort is.
        """
        age = (done_s - self.since_s[:, None, None]) / self.fade_s[:, None, None]
        worth = self.best_effort * np.maximum(1.0 - age, LEAST)
        if not self.due_s.shape[1]:
            return worth
        for step in range(self.due_s.shape[1]):
            in_time = done_s <= self.due_s[:, step, None, None]
            worth = np.maximum(worth, np.where(in_time, self.value[:, step, None, None], 0.0))
        last = np.argmax(self.due_s, axis=1)
        last_s, last_value = (column[np.arange(len(last)), last] for column in (self.due_s, self.value))
        late = np.isfinite(last_s) & (soonest_s > last_s)
        behind = (done_s - last_s[:, None, None]) / np.maximum(mean_s, 1.0)[:, None, None]
        fading = last_value[:, None, None] * np.clip(1.0 - behind, 0.0, 1.0)
        return np.where(late[:, None, None], np.maximum(worth, fading), worth)


def expected_utility(
    support_s: FloatArray, probability: FloatArray, starts_s: FloatArray, utility: Utility
) -> FloatArray:
    """(jobs, starts) EU = Σ_τ p(τ) U(s + τ). support_s, probability: (jobs, bins), 0 where there is none."""
    mean_s = (support_s * probability).sum(axis=1)
    soonest_s = np.where(probability > 0, support_s, np.inf).min(axis=1)
    done_s = starts_s[None, :, None] + support_s[:, None, :]
    worth = utility.at(done_s, mean_s, soonest_s)
    return np.asarray((probability[:, None, :] * worth).sum(axis=2))


def survival(support_s: FloatArray, probability: FloatArray, after_s: FloatArray) -> FloatArray:
    """(jobs, times) P(τ > t): the part of its GPUs that a job is expected to hold that long after a start."""
    longer = support_s[:, None, :] > after_s[None, :, None]
    return np.asarray((probability[:, None, :] * longer).sum(axis=2))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Which jobs start when, and which make room."""

    slot: IntArray  # (waiting,) -1: not within the plan
    stopped: BoolArray  # (running best effort,)
    proven: bool  # to the gap that was asked for


@dataclass(frozen=True, slots=True, eq=False)
class StartOptions:
    """What a plan chooses from: starts of waiting jobs, and stops of those that make room."""

    worth: FloatArray  # (waiting, slots) expected utility of starting then
    held: FloatArray  # (waiting, slots) survival after so many slots
    gpus: IntArray  # (waiting,)
    room: FloatArray  # (slots,) GPUs expected to be free
    cost: FloatArray  # (stoppable,) expected utility that stopping costs
    frees: FloatArray  # (stoppable, slots) GPUs expected back


def plan_starts(options: StartOptions, nodes: int, gap: float) -> Plan | None:
    """Most expected utility, less that of those stopped; None where nothing was found in so many nodes.

    Jobs that are alike are one integer variable for each slot.
    """
    worth, survival, gpus, room = options.worth, options.held, options.gpus, options.room
    cost, frees = options.cost, options.frees
    groups, members = _alike(worth, survival, gpus)
    slots = len(room)
    job, start = np.nonzero(worth[groups] > 0)
    count = np.array([len(rows) for rows in members], dtype=np.float64)
    columns = job.size + len(cost)
    # Expected use: a job started in a slot holds its GPUs in a later one as far as it survives until then.
    use = np.zeros((slots, columns))
    for offset in range(slots):
        fitting = np.flatnonzero(start + offset < slots)
        use[start[fitting] + offset, fitting] = (
            gpus[groups][job[fitting]] * survival[groups][job[fitting], offset]
        )
    use[:, job.size :] = -frees.T
    once = sparse.csr_array((np.ones(job.size), (job, np.arange(job.size))), shape=(len(groups), columns))
    solution = maximise_whole(
        np.concatenate((worth[groups][job, start], -cost)),
        sparse.vstack((once, sparse.csr_array(use))),
        np.concatenate((count, room)),
        np.concatenate((count[job], np.ones(len(cost)))),
        nodes,
        gap,
    )
    if solution is None:
        return None
    answer = solution.x
    # Jobs that are alike take the starts of their variable in their order.
    slot = np.full(len(worth), -1, dtype=np.int64)
    for group, rows in enumerate(members):
        mine = np.flatnonzero(job == group)
        picked = np.repeat(start[mine], answer[mine])
        slot[rows[: picked.size]] = picked
    return Plan(slot, answer[job.size :] > 0, solution.proven)


def pulled_forward(
    slot: IntArray, order: IntArray, gpus: IntArray, survival: FloatArray, room: FloatArray
) -> IntArray:
    """The slots of a plan once those fit in now, in `order`, that fit beside all that the plan starts.

    Starts that are worth the same now and later are the same to the programme. GPUs that no job needs in any
    slot should not wait for one. slot: (waiting,) -1 not planned. survival: (waiting, slots). room: (slots,)
    GPUs expected to be free before the plan.
    """
    slot, slots = slot.copy(), len(room)
    left = room.copy()
    for row in np.flatnonzero(slot >= 0).tolist():
        # What the plan itself is expected to use.
        left[slot[row] :] -= gpus[row] * survival[row, : slots - slot[row]]
    for row in order[slot[order] != 0].tolist():
        # A job that moves to now gives back what it would have used later.
        own = np.zeros(slots)
        if slot[row] > 0:
            own[slot[row] :] = gpus[row] * survival[row, : slots - slot[row]]
        after = left + own - gpus[row] * survival[row]
        if (after >= -TINY_GPUS).all():
            slot[row], left = 0, after
    return slot


def _alike(worth: FloatArray, held: FloatArray, gpus: IntArray) -> tuple[IntArray, list[IntArray]]:
    """The first row of each group of equal rows, and all rows of each."""
    members: dict[bytes, list[int]] = {}
    for row in range(len(gpus)):
        key = worth[row].tobytes() + held[row].tobytes() + gpus[row].tobytes()
        members.setdefault(key, []).append(row)
    groups = [np.array(rows, dtype=np.int64) for rows in members.values()]
    return np.array([rows[0] for rows in groups], dtype=np.int64), groups
