"""Jobs that wait, in the order in which the policy is shown them: by priority, then by fair share.

A policy that takes jobs in turn keeps to that order. One that weighs all jobs at once leaves only ties to it:
there the simulated futures of `forecast` say which job starts next.
"""

from dataclasses import dataclass

import numpy as np

from stretto.model import Snapshot
from stretto.scheduler.constraints.steps import visible_part
from stretto.scheduler.round import Scheduler


@dataclass
class Line:
    """The line of the latest snapshot; worked out once for each."""

    _of: Snapshot | None = None
    _ids: tuple[str, ...] = ()

    def ids(self, snapshot: Snapshot | None, scheduler: Scheduler) -> tuple[str, ...]:
        """Jobs of a snapshot that held nothing, the first in line first."""
        if snapshot is not self._of:
            self._ids = () if snapshot is None else line_of(snapshot, scheduler)
            self._of = snapshot
        return self._ids


def line_of(snapshot: Snapshot, scheduler: Scheduler) -> tuple[str, ...]:
    """The same for one snapshot."""
    jobs = visible_part(snapshot, scheduler).snapshot.jobs
    waiting = np.flatnonzero(jobs.held_gpus == 0)
    if snapshot.constraints.priorities_act:
        waiting = waiting[np.argsort(-jobs.priority[waiting], kind="stable")]
    ids = jobs.ids
    return tuple(str(ids[row]) for row in waiting.tolist())
