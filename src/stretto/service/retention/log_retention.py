"""What jobs have written is deleted a while after their end: a few at a time, beside everything else."""

import asyncio
import logging
from dataclasses import dataclass, field
from math import isinf

from stretto.backends.protocol import Backend, BackendUnreachable
from stretto.service.eventlog import EndedJobs, LeadLost, StoreError
from stretto.service.eventlog.clock import Clock
from stretto.service.leadership import Leadership
from stretto.service.retention.job_retention import RetentionPolicy
from stretto.service.state.calendar import Calendar

AT_ONCE = 20  # jobs that are looked up together
CHECK_S, PAUSE_S = 60.0, 0.05  # of wall time between two looks, and after each job; chosen
MOST_TROUBLE = 10  # jobs that fail until the next look; chosen: a node that is silent costs seconds each time
BEGINNING = (-1.0, -1)

log = logging.getLogger(__name__)


@dataclass
class LogRetention:
    """Goes through the table of ended jobs, oldest ends first, and begins anew at its end.

    A job whose logs could not be deleted comes again next round, behind all others. So a node that is silent
    for days keeps no other job's waiting.
    """

    table: EndedJobs
    backend: Backend
    clock: Clock
    keep: RetentionPolicy
    leadership: Leadership | None = None
    calendar: Calendar = field(default_factory=Calendar)
    _behind: tuple[float, int] = BEGINNING  # end and number of the job that was looked at last

    async def run(self) -> None:
        """Delete what is old enough until cancelled; whatever goes wrong is tried again later."""
        if isinf(self.keep.logs_s):
            return
        while True:
            try:
                await self.look()
            except LeadLost:
                raise
            except StoreError as wrong:
                log.warning("no logs are deleted: %s", wrong)
            await asyncio.sleep(min(CHECK_S, max(self.clock.wall_s(self.keep.logs_s) / 10, PAUSE_S)))

    async def look(self) -> None:
        """All that are old enough now, unless there is too much trouble. Raises StoreError."""
        trouble = 0
        if self.calendar.unsettled_since_s is not None:  # something is wrong with a clock: files wait
            return
        while trouble < MOST_TROUBLE:
            before_s = self.clock.now_s() - self.keep.logs_s
            ended_jobs = await asyncio.to_thread(self.table.with_logs, before_s, self._behind, AT_ONCE)
            if not ended_jobs:
                self._behind = BEGINNING
                return
            for ended_s, number, job in ended_jobs:
                self._behind = (ended_s, number)
                trouble += not await self._delete(job)
                await asyncio.sleep(PAUSE_S)

    async def _delete(self, job: str) -> bool:
        """Whether the logs of a job are gone."""
        try:
            if self.leadership is None:
                await self.backend.delete_logs(job)
            else:
                await self.leadership.command(lambda: self.backend.delete_logs(job))
        except LeadLost:
            raise
        except BackendUnreachable as trouble:
            log.info("logs of job %s are deleted later: %s", job, trouble)
            return False
        except Exception:  # whatever it is: logs that stay are no reason to stop scheduling
            log.exception("logs of job %s cannot be deleted; it is tried again", job)
            return False
        await asyncio.to_thread(self.table.note_logs_deleted, [job], self.clock.now_s())
        return True


def age_in_words(seconds: float) -> str:
    """A number of days, or of hours or minutes where that is none."""
    for unit_s, unit in ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute")):
        count = int(seconds // unit_s)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"
