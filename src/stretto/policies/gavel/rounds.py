"""Gavel's rounds: from fractions of time to the jobs that run now, with an account of each one's time.

Gavel (Narayanan et al., OSDI 2020), section 5.
"""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, JobId, Snapshot
from stretto.policies.gavel.programs import Timeshare

NEVER_RECEIVED = 1e9  # stands for 1 / 0 in a priority, as in the published code


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """Time received so far. Rows are the jobs of one decision."""

    received_s: FloatArray  # (jobs, types) with the head start
    owed_s: FloatArray  # (jobs, types) what the fractions promised
    total_s: FloatArray  # (types,) given to all jobs there have been, with their head starts
    isolated_s: FloatArray  # (jobs,) what the steps done would have taken on its own share of the cluster


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """What Gavel remembers of a decision."""

    at_s: float
    ids: tuple[JobId, ...]  # its jobs, by row
    kind: IntArray  # (jobs,) type given, -1 none
    account: Account
    per_s: FloatArray  # (jobs, types) the throughputs of the programme, 0 where a job cannot run
    capacity: IntArray  # (types,) the GPUs of the programme
    share: Timeshare  # its solution
    remaining: FloatArray  # (jobs,) steps left, zeros where the objective does not ask
    isolated_per_s: FloatArray  # (jobs,) steps per second on a share of its own, zeros where not needed


def new_account(jobs: int, types: int, head_start_s: float) -> Account:
    """No job has received anything but the head start."""
    received_s = np.full((jobs, types), head_start_s)
    return Account(received_s, np.zeros((jobs, types)), received_s.sum(axis=0), np.zeros(jobs))


def account_now(snapshot: Snapshot, before: Ledger, remaining: FloatArray, head_start_s: float) -> Account:
    """The account brought forward from the last decision to this one.

    A job received the time since then on the type that it holds; one that has gone, on the type that it was
    given. New jobs get the head start, which counts into the total like time given.
    """
    jobs, types = snapshot.jobs, len(snapshot.cluster.types)
    since_s = snapshot.now_s - before.at_s
    was = _rows_before(before.ids, jobs.ids)
    known = np.flatnonzero(was >= 0)
    blank = new_account(len(jobs), types, head_start_s)
    received_s, owed_s, isolated_s = blank.received_s, blank.owed_s, blank.isolated_s
    received_s[known] = before.account.received_s[was[known]]
    owed_s[known] = before.account.owed_s[was[known]] + before.share.fraction[was[known]] * since_s
    rate = before.isolated_per_s[was[known]]
    # Progress since then, at the speed in isolation: what the job would have taken alone.
    steps = before.remaining[was[known]] - remaining[known]
    isolated_s[known] = before.account.isolated_s[was[known]] + np.divide(
        steps, rate, out=np.zeros(len(known)), where=rate > 0
    )

    served = known[jobs.held_gpus[known] > 0]
    received_s[served, jobs.held_kind[served]] += since_s
    # Jobs that have ended since count with the type that they were given: the total is over all that ran.
    gone = np.ones(len(before.ids), dtype=np.bool_)
    gone[was[known]] = False
    given = np.concatenate((jobs.held_kind[served], before.kind[gone & (before.kind >= 0)]))
    new = len(jobs) - len(known)
    total_s = before.account.total_s + np.bincount(given, minlength=types) * since_s + new * head_start_s
    return Account(received_s, owed_s, total_s, isolated_s)


def pairs_by_priority(
    fraction: FloatArray, account: Account, head_start_s: float, can_run: BoolArray
) -> tuple[IntArray, IntArray]:
    """(pairs,) rows and types in the order in which they may take GPUs.

    Priority: X / f with f the part of a type's time that the job received. Ties go to the pair that is
    owed most, then to the larger fraction, then by type and row.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        received = account.received_s / account.total_s
        priority = np.where(received > 0, fraction / received, fraction * NEVER_RECEIVED)
    deficit_s = np.where(fraction > 0, account.owed_s - (account.received_s - head_start_s), 0.0)
    kind, row = np.nonzero(can_run.T)
    order = np.lexsort((-fraction[row, kind], -deficit_s[row, kind], -priority[row, kind]))
    return row[order], kind[order]


def fill(
    rows: IntArray, kinds: IntArray, gpus: IntArray, capacity: IntArray, kind_before: IntArray
) -> tuple[IntArray, IntArray]:
    """Types given (jobs,), -1 none, and GPUs that remain (types,), after walking the pairs in order.

    kind_before: (jobs,) types given already. A pair is passed over where its job has one or does not fit.
    """
    kind, left = kind_before.tolist(), capacity.tolist()
    asks = gpus.tolist()
    for row, type_index in zip(rows.tolist(), kinds.tolist(), strict=True):
        if kind[row] < 0 and asks[row] <= left[type_index]:
            kind[row] = type_index
            left[type_index] -= asks[row]
            if not any(left):
                break
    return np.array(kind, dtype=np.int64), np.array(left, dtype=np.int64)


def _rows_before(before: tuple[JobId, ...], now: tuple[JobId, ...]) -> IntArray:
    """(jobs now,) the row of each in `before`, -1 where it is new."""
    if before == now:
        return np.arange(len(now))
    row = {job: index for index, job in enumerate(before)}
    return np.array([row.get(job, -1) for job in now], dtype=np.int64)
