"""The multi-level feedback queue (MLFQ) of Cornucopia, section 4.2: thresholds, promotion and demotion."""

from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray, JobId, JobTable, Snapshot

INTERACTIVE, BATCH, LONG = 1, 2, 3  # the queues, highest first; 0: a job that was not seen yet
SLACK_S = 1e-3  # chosen: a timer that rings a rounding error early has rung


@dataclass(frozen=True, slots=True)
class Means:
    """Durations of jobs that had ended when thresholds were renewed, by label: executed seconds.

    Where the policy follows them itself, of all that have ended by now.
    """

    interactive: int = 0  # jobs
    interactive_s: float = 0.0  # their sum
    batch: int = 0
    batch_s: float = 0.0

    @property
    def jobs(self) -> int:
        """All that have ended."""
        return self.interactive + self.batch

    def with_ended(self, executed_s: FloatArray, interactive: BoolArray) -> "Means":
        """These and some more jobs."""
        count = int(interactive.sum())
        return Means(
            self.interactive + count,
            self.interactive_s + float(executed_s[interactive].sum()),
            self.batch + len(executed_s) - count,
            self.batch_s + float(executed_s[~interactive].sum()),
        )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a job changes its queue."""

    interactive_s: float  # executed in queue 1, then down to queue 2
    batch_s: float  # executed in queue 2, then down to queue 3
    starved_s: float  # without any GPU in queue 3, then up to queue 2


def thresholds_of(
    interactive_mean_s: float,
    rttf_s: float,
    batch_mean_s: float,
    factor: float = 2.0,
    rttf_factor: float | None = None,
) -> Thresholds:
    """Twice the mean interactive duration, the mean time to failure, and the mean batch duration.

    rttf_factor: of the time to failure alone; None: the same.
    """
    of_failure = factor if rttf_factor is None else rttf_factor
    return Thresholds(factor * interactive_mean_s, of_failure * rttf_s, factor * batch_mean_s)


def is_renewal_due(renewed_at: int, ended: int, every: int) -> bool:
    """Whether thresholds follow from new means: every 1,000 jobs (section 4.2), counted from the first.

    Before the first 1,000 they do whenever the number of ended jobs has doubled. The paper begins with means
    of a history that a new cluster does not have.
    """
    if ended < every:
        return ended > 0 and ended >= 2 * renewed_at
    return ended // every > renewed_at // every


def mean_of(total_s: float, jobs: int, fewest: int, otherwise_s: float) -> float:
    """The mean of as many jobs as can be relied upon; what is assumed where they are fewer."""
    return total_s / jobs if jobs >= fewest else otherwise_s


@dataclass(frozen=True, eq=False)
class Runners:
    """The jobs that were given GPUs at the last decision: columns over them."""

    # Positions in `ids`, increasing
    rows: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    interactive: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))  # by their labels
    executed_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # up to that decision
    gpus: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    since_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # from when on with so many


@dataclass(frozen=True, eq=False)
class Remembered:
    """What Cornucopia keeps from one decision to the next. Columns are over the jobs that it saw then.

    A live job that was held for a while comes back as a new one.
    """

    thresholds: Thresholds
    means: Means = field(default_factory=Means)
    ids: tuple[JobId, ...] = ()
    queue: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    entered_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # executed when it came to its queue
    joined_s: FloatArray = field(default_factory=lambda: np.zeros(0))  # the time at which it came there
    profiled_upto: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # GPUs
    at_s: float = 0.0  # of the last decision
    runners: Runners = field(default_factory=Runners)


def aligned(memory: Remembered, jobs: JobTable) -> Remembered:
    """The same over these jobs, in their order; 0 for those that were not seen yet."""
    ids = jobs.ids
    if ids == memory.ids:
        return memory
    # Columns over all jobs are looked up by name; -1 is read as the last row and masked.
    before, now = ({name: row for row, name in enumerate(names)} for names in (memory.ids, ids))
    row_before = np.array([before.get(name, -1) for name in ids], dtype=np.int64)

    def over_jobs(column: FloatArray | IntArray) -> Any:
        return (
            np.where(row_before >= 0, column[row_before], 0).astype(column.dtype)
            if len(column)
            else np.zeros(len(row_before), column.dtype)
        )

    runners = memory.runners
    rows = np.array([now.get(memory.ids[row], -1) for row in runners.rows.tolist()], dtype=np.int64)
    # Runners stay sorted by row, which `_with_runners` searches by bisection.
    here = np.flatnonzero(rows >= 0)
    here = here[rows[here].argsort()]
    columns = {entry.name: getattr(runners, entry.name)[here] for entry in fields(runners)}
    return replace(
        memory,
        ids=ids,
        queue=over_jobs(memory.queue),
        entered_s=over_jobs(memory.entered_s),
        joined_s=over_jobs(memory.joined_s),
        profiled_upto=over_jobs(memory.profiled_upto),
        runners=Runners(**{**columns, "rows": rows[here]}),
    )


def means_with_ended(memory: Remembered, snapshot: Snapshot) -> Means:
    """The means of all that have ended: those that ran at the last decision and have gone since."""
    runners, present = memory.runners, set(snapshot.jobs.ids)
    gone = np.array([memory.ids[row] not in present for row in runners.rows.tolist()], dtype=np.bool_)
    if not gone.any():
        return memory.means
    executed_s = runners.executed_s[gone] + (snapshot.now_s - memory.at_s)
    return memory.means.with_ended(executed_s, runners.interactive[gone])


def promote_and_demote(memory: Remembered, jobs: JobTable, now_s: float) -> Remembered:
    """Every job into the queue where it now belongs: demotion and promotion policy of section 4.2.

    A job that comes to a queue starts its executed time there afresh, and comes last there. So a job promoted
    from queue 3 is not demoted at once. One step at a time: a job leaving queue 1 has run 0 seconds in queue
    2.
    """
    # New jobs enter by their label: interactive ones into queue 1, all others into queue 2.
    thresholds, executed_s = memory.thresholds, jobs.progress.executed_s
    before = memory.queue.astype(np.int64)
    queue = np.where(before == 0, np.where(jobs.interactive, INTERACTIVE, BATCH), before)
    entered_s = np.where(before == 0, 0.0, memory.entered_s)
    local_s = executed_s - entered_s + SLACK_S
    starving_s = now_s - jobs.progress.last_stop_s  # NaN, which is never too long, for a job that never ran
    # Promotion: only time without any GPU counts.
    starved = (queue == LONG) & (jobs.held_gpus == 0) & (starving_s + SLACK_S >= thresholds.starved_s)
    # Demotion, from the bottom up, so that no job falls two queues at once.
    moved = (queue == BATCH) & (local_s >= thresholds.batch_s)
    queue = np.where(moved, LONG, queue)
    demoted = (queue == INTERACTIVE) & (local_s >= thresholds.interactive_s)
    queue = np.where(demoted | starved, BATCH, queue)
    entered_s = np.where(moved | demoted | starved, executed_s, entered_s)

    joined_s = np.where(queue != before, now_s, memory.joined_s)
    return replace(memory, queue=queue.astype(memory.queue.dtype), entered_s=entered_s, joined_s=joined_s)


def next_threshold_s(memory: Remembered, jobs: JobTable, gpus: IntArray, now_s: float) -> float:
    """When the next job will cross a threshold if it is left with these GPUs; infinite where none will."""
    thresholds, queue = memory.thresholds, memory.queue
    local_s = jobs.progress.executed_s - memory.entered_s
    ends_s = np.array([inf, thresholds.interactive_s, thresholds.batch_s, inf])
    runs = np.flatnonzero(gpus)
    to_go_s = float((ends_s[queue[runs]] - local_s[runs]).min(initial=inf))
    waits = (queue == LONG) & (gpus == 0)
    stopped_s = np.where(jobs.held_gpus > 0, now_s, jobs.progress.last_stop_s)[waits]
    first_s = float(np.fmin.reduce(stopped_s, initial=inf))  # of those that ever ran
    to_go_s = min(to_go_s, first_s + thresholds.starved_s - now_s)
    return now_s + max(to_go_s, SLACK_S)
