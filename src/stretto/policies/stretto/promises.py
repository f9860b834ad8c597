"""Deadlines: which can be kept together and are promised, and how long each job can still wait."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, JobId, JobTable, floats
from stretto.solve.due_dates import slack, taken_on

LEAST_S = 1e-9  # of the machine, for a job that is all but done


@dataclass(frozen=True, slots=True, eq=False)
class Promises:
    """Deadlines that were promised; columns are (those jobs,)."""

    ids: tuple[JobId, ...] = ()
    due_s: tuple[float, ...] = ()  # on the clock of the snapshot


NONE_YET = Promises()


@dataclass(frozen=True, slots=True, eq=False)
class Deadlines:
    """What becomes of the deadlines of all jobs; columns are (jobs,)."""

    due_s: FloatArray  # that the job is to meet, on the clock of the snapshot; NaN: none that it can
    reward: FloatArray  # of meeting it
    promised: BoolArray
    slack_s: FloatArray  # by which it could begin later

    def promises(self, ids: tuple[JobId, ...]) -> Promises:
        """What has to be kept from now on."""
        rows = np.flatnonzero(self.promised).tolist()
        return Promises(tuple(ids[row] for row in rows), tuple(self.due_s[rows].tolist()))


def deadlines_of(
    jobs: JobTable,
    now_s: float,
    takes_s: Sequence[FloatArray],
    gpus: Sequence[FloatArray],
    cluster_gpus: float,
    share: float,
    before: Promises,
) -> Deadlines:
    """Which deadline each job is to meet, and which of these are promised.

    takes_s: of each job, seconds until its end in each configuration, infinite where it cannot have it.
    gpus: in the same shape. share: of the cluster, as much as is promised.

    The cluster counts as one machine that does a GPU-second of work in 1 / `cluster_gpus` seconds. A job is
    the work of the fewest GPU-seconds with which it is in time. What was promised before goes first, with the
    deadline that was. Then comes the most reward for its work, with the first deadline for which there is
    room. A job that finds none aims at the first that the clock allows, and is looked at again next time.
    """
    count = len(jobs)
    deadlines = Deadlines(
        np.full(count, np.nan), np.zeros(count), np.zeros(count, dtype=np.bool_), np.full(count, np.inf)
    )
    kept_due_s = dict(zip(before.ids, before.due_s, strict=True))
    rows: list[int] = []
    options: list[list[tuple[float, float]]] = []  # of each of these: (seconds left, work)
    longer: list[list[tuple[float, float]]] = []  # the same as the share of the machine does it
    rewards: list[list[float]] = []
    for row in np.flatnonzero(np.isfinite(jobs.deadline_s)).tolist():
        steps = [
            (each.deadline_s - now_s, each.value)
            for each in jobs[row].rewards
            if each.value > 0 and each.deadline_s >= kept_due_s.get(jobs.ids[row], now_s)
        ]
        in_time = [(left_s, value, takes_s[row] <= left_s) for left_s, value in steps]
        in_time = [step for step in in_time if step[2].any()]
        if in_time:
            rows.append(row)
            work = takes_s[row] * gpus[row] / cluster_gpus
            least = [int(np.where(fits, work, np.inf).argmin()) for _, _, fits in in_time]
            options.append(
                [(left_s, float(work[best])) for (left_s, _, _), best in zip(in_time, least, strict=True)]
            )
            # The machine has only its share for promises: as if all took longer, though not than one alone.
            longer.append(
                [
                    (left_s, float(min(work[best] / share, takes_s[row][best])))
                    for (left_s, _, _), best in zip(in_time, least, strict=True)
                ]
            )
            rewards.append([value for _, value, _ in in_time])
    if not rows:
        return deadlines
    kept = np.array([jobs.ids[row] in kept_due_s for row in rows], dtype=np.bool_)
    density = floats(
        [each[0] / max(first[0][1], LEAST_S) for each, first in zip(rewards, options, strict=True)]
    )
    taken = taken_on(longer, kept, density)
    aims = [max(option, 0) for option in taken]
    left_s = floats([each[aim][0] for each, aim in zip(options, aims, strict=True)])
    works = floats([each[aim][1] for each, aim in zip(options, aims, strict=True)])
    deadlines.due_s[rows] = now_s + left_s
    deadlines.reward[rows] = [each[aim] for each, aim in zip(rewards, aims, strict=True)]
    deadlines.promised[rows] = np.array(taken) >= 0
    # It can wait as long as the clock allows, and as long as all that are due by then can be done after.
    least_s = floats([takes_s[row].min() for row in rows])
    deadlines.slack_s[rows] = np.maximum(np.minimum(left_s - least_s, slack(left_s, works)), 0.0)
    return deadlines
