"""The lead as the service relies on it: looked at before each command to a backend, and now and then.

A service that was frozen, or cut off from its store, may wake up after another has taken its place. Its state
is old then, and it would stop what the other one runs. So nothing is commanded unless the lead is sure. Nodes
that can compare refuse the commands of earlier leaders as well. A process without the lead ends at once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from stretto.backends.protocol import Backend, BackendUnreachable, Fences, StaleLeader
from stretto.service.eventlog import Lead, LeadLost, Standing, StoreError
from stretto.service.eventlog.writer import LogWriter
from stretto.service.state.events import LeadTaken

CHECK_S = 2.0  # between two looks; chosen: a dead server is noticed before a write is late
SURE_S = 10.0  # after the last look that found it held; chosen: a few looks may fail

log = logging.getLogger(__name__)

Given = TypeVar("Given")


@dataclass
class Leadership:
    """That this service is the one that leads, as far as that is known."""

    log_writer: LogWriter
    lead: Lead
    backend: Backend
    check_s: float = CHECK_S
    is_lost: bool = False
    _held_s: float = field(default_factory=time.monotonic)  # when it was last found held
    _doubtful: bool = False  # another process may have led since: the log tells
    _proposed: set[int] = field(default_factory=set)  # epochs that are ours, once they are in the log
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next: "asyncio.Future[None] | None" = None  # the look that has not begun yet
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_sure(self) -> bool:
        """Whether the lead was found held a moment ago."""
        return not self.is_lost and time.monotonic() - self._held_s < SURE_S

    async def take(self, above: int = 0) -> None:
        """Record that we lead, under a number larger than those of all leaders before, and than `above`.

        Raises LogMoved, through the writer of the log, where another service has written since.
        """
        epoch = max(self.log_writer.state.epoch, above) + 1
        self._proposed.add(epoch)
        await self.log_writer.record(LeadTaken(epoch))
        self.command_as(epoch)

    def command_as(self, epoch: int) -> None:
        """Have the backend take the number along with each command."""
        if isinstance(self.backend, Fences):
            self.backend.epoch = epoch

    async def command(self, give: Callable[[], Awaitable[Given]]) -> Given:
        """What a command to the backend gives, which is given only where we lead.

        Raises LeadLost, BackendUnreachable where it has to be given again, and as the command does.
        """
        await self.check()
        try:
            return await give()
        except StaleLeader as later:
            await self.outdo(later.epoch)
            raise BackendUnreachable(str(later)) from later

    async def outdo(self, epoch: int) -> None:
        """A node has seen a later leader than us. Raises LeadLost where that is so.

        Where we lead all the same, its number came from a log that this one is an older copy of.
        """
        await self.check()
        log.warning(
            "a node knows of leader %d, a later one than this: we lead, and take a larger number", epoch
        )
        if epoch >= self.log_writer.state.epoch:
            await self.take(above=epoch)

    async def check(self) -> None:
        """Return once the lead was found held, by a look that begins from now on.

        Raises LeadLost, and BackendUnreachable while it is not known: then nothing may be commanded.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._look())
        await asyncio.shield(self._next)

    async def _look(self) -> None:
        async with self._looking:
            self._next = None  # a caller that asks from here on is told of a later moment than this
            if self.is_lost:
                raise LeadLost
            standing = (
                self.lead.standing() if self.lead.is_near else await asyncio.to_thread(self.lead.standing)
            )
            self._doubtful |= standing is Standing.RETAKEN
            if standing is Standing.LOST or (self._doubtful and await self._was_led_by_another()):
                self.is_lost = True
                self._gone.set()
                raise LeadLost
            if standing is Standing.UNKNOWN:
                raise BackendUnreachable("it is not known whether this service still leads")
            self._doubtful, self._held_s = False, time.monotonic()

    async def _was_led_by_another(self) -> bool:
        """Whether the log has a leader that we have not recorded. Raises BackendUnreachable."""
        after = self.log_writer.state.seq
        try:
            newer = await asyncio.to_thread(
                lambda: list(self.log_writer.store.read(after, kinds=(LeadTaken.__name__,), limit=1))
            )
        except StoreError as wrong:
            raise BackendUnreachable(f"it is not known whether another service has led: {wrong}") from wrong
        return any(recorded.body["epoch"] not in self._proposed for recorded in newer)

    async def run(self) -> None:
        """Look now and then, until cancelled. Raises LeadLost as soon as the lead is."""
        while True:
            try:
                await self.check()
            except BackendUnreachable as wrong:
                log.warning("%s", wrong)
            try:
                async with asyncio.timeout(self.check_s):
                    await self._gone.wait()
            except TimeoutError:
                continue
