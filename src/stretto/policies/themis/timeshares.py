"""Themis as others compare with it: Gavel's programme of finish-time fairness, realised in Gavel's rounds."""

from dataclasses import dataclass

import numpy as np

from stretto.model import FloatArray, IntArray, Snapshot
from stretto.policies.gavel.policy import SHORTEST_JOB_S, Gavel, Objective
from stretto.policies.gavel.programs import (
    MOST_STEPS,
    RATIO_TOLERANCE,
    Timeshare,
    isolated_per_s,
)
from stretto.policies.gavel.rounds import Account


@dataclass(frozen=True)
class FairTimeshares(Gavel):
    """Gavel with the objective of finish-time fairness, and no linear programme on a single GPU type."""

    objective: Objective = Objective.FINISH_TIME_FAIRNESS

    def _solve(
        self,
        snapshot: Snapshot,
        per_s: FloatArray,
        capacity: IntArray,
        remaining: FloatArray,
        account: Account,
    ) -> tuple[Timeshare, FloatArray]:
        """As Gavel's; where there is one type, by `fair_on_one_type`."""
        within = np.flatnonzero(per_s[:, 0] > 0)
        if len(capacity) > 1 or not within.size:
            return super()._solve(snapshot, per_s, capacity, remaining, account)
        jobs = snapshot.jobs
        isolated = np.zeros(len(jobs))
        isolated[within] = isolated_per_s(per_s[within], jobs.gpus[within], capacity)
        # Time alone on an equal part of the cluster: of the past from the account, of the rest from its
        # speed.
        isolated_s = np.maximum(
            account.isolated_s[within] + remaining[within] / isolated[within], SHORTEST_JOB_S
        )
        fraction = np.zeros(per_s.shape)
        fraction[within, 0], ratio = fair_on_one_type(
            alone_s=remaining[within] / per_s[within, 0],
            gpus=jobs.gpus[within],
            capacity=int(capacity[0]),
            age_s=snapshot.now_s - jobs.submitted_s[within],
            isolated_s=isolated_s,
        )
        return Timeshare(fraction, None, ratio), isolated


def fair_on_one_type(
    alone_s: FloatArray, gpus: IntArray, capacity: int, age_s: FloatArray, isolated_s: FloatArray
) -> tuple[FloatArray, float]:
    """(jobs,) time fractions x that make the largest finish-time ratio smallest, and that ratio.

        min ρ,  age + alone / x <= ρ isolated  for all,  x <= 1,  sum R x <= G

    A ratio asks x >= alone / (ρ isolated - age) of each job, which falls as ρ grows: bisection. What is left
    then goes to the jobs that ask for fewest GPUs, up to all of their time.
    """
    least = float(((age_s + alone_s) / isolated_s).max())  # at x = 1: nobody can do better
    most = max(2.0 * least, 1.0)
    for _ in range(MOST_STEPS):
        if (gpus * _asked(most, alone_s, age_s, isolated_s)).sum() <= capacity:
            break
        most *= 2
    while most - least > RATIO_TOLERANCE * most:
        ratio = (least + most) / 2
        if ratio <= least:  # no number lies between: of jobs new and done the ratio is 0
            break
        if (gpus * _asked(ratio, alone_s, age_s, isolated_s)).sum() <= capacity:
            most = ratio
        else:
            least = ratio
    fraction = _asked(most, alone_s, age_s, isolated_s)
    order = np.argsort(gpus, kind="stable")
    wish = (gpus * (1.0 - fraction))[order]
    left = max(capacity - float((gpus * fraction).sum()), 0.0)
    more = np.clip(left - (np.cumsum(wish) - wish), 0.0, wish)
    fraction[order] += more / gpus[order]
    return np.minimum(fraction, 1.0), most


def _asked(ratio: float, alone_s: FloatArray, age_s: FloatArray, isolated_s: FloatArray) -> FloatArray:
    """(jobs,) the fraction of its time that each needs for a ratio; infinite where none is enough."""
    left_s = ratio * isolated_s - age_s
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(left_s > 0, alone_s / left_s, np.inf)
    asked: FloatArray = np.where(needed <= 1 + 1e-12, np.minimum(needed, 1.0), np.inf)
    return asked
