"""Deadlines: which can be kept together and are promised, and how long each job can still wait."""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, JobId, JobTable, floats
from stretto.policies.sia.cells import Cells
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
    cells: Cells,
    takes_s: FloatArray,
    gpus: IntArray,
    cluster_gpus: float,
    share: float,
    before: Promises,
) -> Deadlines:
    """Which deadline each job is to meet, and which of these are promised.

    cells: the configurations of each job. takes_s: (cells,) seconds until its end, infinite where it cannot
    have it. gpus: (cells,). share: of the cluster, as much as is promised.

    The cluster counts as one machine that does a GPU-second of work in 1 / `cluster_gpus` seconds. A job is
    the work of the fewest GPU-seconds with which it is in time. What was promised before goes first, with the
    deadline that was. Then comes the most reward for its work, with the first deadline for which there is
    room. A job that finds none aims at the first that the clock allows, and is looked at again next time.
    """
    count = len(jobs)
    deadlines = Deadlines(
        np.full(count, np.nan), np.zeros(count), np.zeros(count, dtype=np.bool_), np.full(count, np.inf)
    )
    steps = _steps_in_time(jobs, now_s, cells, takes_s, gpus / cluster_gpus, share, before)
    rows, first, options = np.unique(steps.row, return_index=True, return_counts=True)
    if not rows.size:
        return deadlines
    promised_before = set(before.ids)
    kept = np.array([jobs.ids[row] in promised_before for row in rows.tolist()], dtype=np.bool_)
    density = steps.reward[first] / np.maximum(steps.work_s[first], LEAST_S)
    taken = taken_on(steps.left_s, steps.shared_s, np.append(first, first[-1] + options[-1]), kept, density)
    aims = np.where(taken >= 0, taken, first)
    left_s = steps.left_s[aims]
    deadlines.due_s[rows] = now_s + left_s
    deadlines.reward[rows] = steps.reward[aims]
    deadlines.promised[rows] = taken >= 0
    # It can wait as long as the clock allows, and as long as all that are due by then can be done after.
    clock_s = left_s - cells.least(takes_s)[rows]
    deadlines.slack_s[rows] = np.maximum(np.minimum(clock_s, slack(left_s, steps.work_s[aims])), 0.0)
    return deadlines


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Deadlines of jobs that the clock still allows, with their rewards; columns are (these,)."""

    row: IntArray  # of the job, ascending; the deadlines of a job by time
    left_s: FloatArray  # until then
    reward: FloatArray
    work_s: FloatArray  # of the whole machine, for the job
    shared_s: FloatArray  # of the share of it that is promised


def _steps_in_time(
    jobs: JobTable,
    now_s: float,
    cells: Cells,
    takes_s: FloatArray,
    part: FloatArray,
    share: float,
    before: Promises,
) -> _Steps:
    """part: (cells,) of the machine that a job has there. Of a promised job none before the one that was.

    That is the one nearest to it by now: clocks are set, and deadlines with them.
    """
    rewards, rows = jobs.requests.rewards, jobs.rows
    of_jobs = Cells.between(rewards.bounds[rows, None], rewards.bounds[rows + 1, None])
    kept_due_s = dict(zip(before.ids, before.due_s, strict=True))
    due_s = rewards.deadline_s[of_jobs.column]
    not_before_s = np.full(len(jobs), now_s)
    if kept_due_s:
        kept_s = floats([kept_due_s.get(name, np.nan) for name in jobs.ids])
        off_s = np.abs(due_s - kept_s[of_jobs.row])
        nearest = of_jobs.first(off_s <= of_jobs.least(off_s)[of_jobs.row])
        has = nearest >= 0
        not_before_s[has] = np.maximum(due_s[nearest[has]], now_s)
    still = due_s >= not_before_s[of_jobs.row]
    row, reward, left_s = of_jobs.row[still], rewards.value[of_jobs.column][still], due_s[still] - now_s
    # Every deadline with every configuration of its job: the least work with which it is in time.
    pairs = Cells.between(cells.bounds[row, None], cells.bounds[row + 1, None])
    pair_takes_s = takes_s[pairs.column]
    in_time = pair_takes_s <= left_s[pairs.row]
    work_s = np.where(in_time, pair_takes_s * part[pairs.column], np.inf)
    least_s = pairs.least(work_s)
    can = np.isfinite(least_s)
    best = pairs.first(work_s == least_s[pairs.row])[can]
    # The machine has only its share for promises: as if all took longer, though not than one alone.
    shared_s = np.minimum(least_s[can] / share, pair_takes_s[best])
    return _Steps(row[can], left_s[can], reward[can], least_s[can], shared_s)
