"""Uploads that no job has named for long enough are deleted."""

import asyncio
import logging
from dataclasses import dataclass

from stretto.backends.protocol import BackendUnreachable
from stretto.service.eventlog import LeadLost
from stretto.service.leadership import Leadership
from stretto.service.state.state import State
from stretto.service.uploads import LEAST_KEPT_S, UploadStore

CHECK_S = LEAST_KEPT_S / 4  # of wall time between two looks; what is used is marked as such each time; chosen

log = logging.getLogger(__name__)


@dataclass
class UploadGC:
    """Looks for what is old enough now and then."""

    state: State
    uploads: UploadStore
    leadership: Leadership | None = None

    async def run(self) -> None:
        """Delete what is old enough until cancelled; whatever goes wrong is tried again later."""
        while True:
            try:
                await self.look()
            except LeadLost:
                raise
            except (OSError, BackendUnreachable) as wrong:
                log.warning("no uploads are deleted: %s", wrong)
            await asyncio.sleep(CHECK_S)

    async def look(self) -> None:
        """All that are old enough now. Raises OSError; LeadLost, BackendUnreachable unless we surely lead."""
        if self.leadership is not None:
            await self.leadership.check()  # or what we know of open jobs may be out of date
        in_use = {
            (record.user, record.spec.upload.digest)
            for record in self.state.open_jobs()
            if record.spec.upload is not None
        }
        collected = await asyncio.to_thread(self.uploads.collect, in_use)
        if collected.gone:
            log.info("%d uploads are deleted, which no job has named for a while", collected.gone)
        for failure in collected.failures:
            log.warning("uploads of one owner cannot be deleted; it is tried again: %s", failure)
