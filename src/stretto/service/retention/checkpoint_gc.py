"""Checkpoints of jobs that ended long ago are deleted where the service chose the place, if it is told to.

There is no list of what is still to do: every look goes through the directories that there are. What a job
file names (`checkpoint.dir`) is its owner's, also where that lies among them, and so is what lies elsewhere.
"""

import asyncio
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from math import isinf
from pathlib import Path

from stretto.backends.protocol import BackendUnreachable
from stretto.service.eventlog import EndedJobs, LeadLost, StoreError
from stretto.service.eventlog.archive import record_of
from stretto.service.eventlog.clock import Clock
from stretto.service.leadership import Leadership
from stretto.service.reconcile.worker_env import TOKEN, WorkerContext
from stretto.service.retention.job_retention import RetentionPolicy
from stretto.service.state.records import JobRecord
from stretto.service.state.state import State

AT_ONCE = 500  # directories that are looked up together; chosen: one query
CHECK_S, PAUSE_S = 600.0, 0.05  # of wall time between two looks, and after each directory; chosen
THROUGH = ("COMPLETED", "CANCELLED")  # others may still be needed, to see why or to go on from

log = logging.getLogger(__name__)


@dataclass
class CheckpointGC:
    """Looks for what is old enough now and then."""

    state: State
    table: EndedJobs
    context: WorkerContext
    clock: Clock
    keep: RetentionPolicy
    leadership: Leadership | None = None

    async def run(self) -> None:
        """Delete what is old enough until cancelled; whatever goes wrong is tried again later."""
        if isinf(self.keep.checkpoints_s):
            return
        while True:
            try:
                await self.look()
            except LeadLost:
                raise
            except (StoreError, OSError, BackendUnreachable) as wrong:
                log.warning("no checkpoints are deleted: %s", wrong)
            await asyncio.sleep(min(CHECK_S, max(self.clock.wall_s(self.keep.checkpoints_s) / 10, PAUSE_S)))

    async def look(self) -> None:
        """All that are old enough now.

        Raises StoreError, LeadLost or BackendUnreachable where it is not sure that we lead, and OSError where
        nothing can be listed.
        """
        if self.state.calendar.unsettled_since_s is not None:  # something is wrong with a clock: files wait
            return
        there = await asyncio.to_thread(directories_in, self.context.checkpoints)
        for start in range(0, len(there), AT_ONCE):
            rows = await asyncio.to_thread(self.table.of, there[start : start + AT_ONCE])
            before_s = self.clock.now_s() - self.keep.checkpoints_s
            for row in rows:
                if row.ended_s < before_s and row.state in THROUGH and self._is_ours(record_of(row)):
                    if self.leadership is not None:
                        await self.leadership.check()  # or what we know of open jobs may be out of date
                    await self._delete(row.job)
                    await asyncio.sleep(PAUSE_S)

    def _is_ours(self, record: JobRecord) -> bool:
        """Whether the service chose the directory, and no open job was told the same by its file."""
        if record.id in self.state.jobs or named_by(record):
            return False
        root = self.context.checkpoints
        return not any(
            overlap(root / record.id, root / named)
            for each in self.state.open_jobs()
            if (named := named_by(each))
        )

    async def _delete(self, job: str) -> None:
        place = self.context.checkpoints / job
        try:
            if await asyncio.to_thread(delete, place, job):
                log.info("checkpoints of job %s are deleted: %s", job, place)
        except OSError as wrong:
            log.warning("checkpoints of job %s cannot be deleted; it is tried again: %s", job, wrong)


def has_been_deleted(checkpoint: str, root: Path) -> bool:
    """Whether a checkpoint that a job reported lay where the service chose, and is there no more."""
    place = Path(checkpoint)
    return bool(checkpoint) and place.is_relative_to(root) and not place.exists()


def directories_in(root: Path) -> list[str]:
    """Names of the directories there, without links."""
    with suppress(FileNotFoundError), os.scandir(root) as found:
        return sorted(each.name for each in found if each.is_dir(follow_symlinks=False))
    return []


def named_by(record: JobRecord) -> str:
    """The directory that a job's file names; "" for none."""
    checkpoint = record.spec.checkpoint
    return checkpoint.dir if checkpoint else ""


def overlap(one: Path, other: Path) -> bool:
    """Whether these directories are the same, or one is in the other."""
    first, second = (Path(os.path.realpath(each)) for each in (one, other))
    return first == second or first in second.parents or second in first.parents


def delete(place: Path, job: str) -> bool:
    """Delete the directory of a job; False where another job has been there, whose token lies beside."""
    tokens = {each.name for each in place.glob(f"{TOKEN}*")}
    if tokens - {f"{TOKEN}{job}"}:
        return False
    shutil.rmtree(place)
    return True
