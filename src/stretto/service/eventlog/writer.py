"""The one writer: events become durable, then they are folded, in one order; then the caller is told."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from stretto.errors import InputError
from stretto.service.eventlog import (
    EndedJob,
    LogMoved,
    Mark,
    Reached,
    Recorded,
    Store,
    StoreError,
    Unrecorded,
    recorded,
)
from stretto.service.eventlog.archive import rows_of
from stretto.service.eventlog.clock import Clock
from stretto.service.state.events import Event, Retired, UnknownEvent, body_of, event_of, subject_of
from stretto.service.state.reducer import apply_or_skip, skip
from stretto.service.state.state import State

MOST_TOGETHER = 2_000  # events of one transaction; chosen
AGAIN_S = 1.0  # between attempts while the store does not answer; chosen
LATE_S = 3.0  # after which a write counts as late; chosen: a busy disk takes a tenth of that

Done = TypeVar("Done")
Listener = Callable[[Sequence[tuple[int, Event]]], None]

log = logging.getLogger(__name__)


@dataclass
class LogWriter:
    """Appends to the store what it is given, many givers at once, and keeps the state in step.

    What waits together is written together: a transaction costs a flush of the disk, not each event.
    """

    store: Store
    state: State
    clock: Clock
    mark: Mark | None = None  # where it is noted how far the log has come
    healthy: bool = True  # the store answered last time
    listeners: list[Listener] = field(default_factory=list)
    told_bytes: Sequence[int] = ()  # how large the events are that listeners are being told of
    _waiting: list[tuple[Sequence[Event], "asyncio.Future[int]"]] = field(default_factory=list)
    _there: asyncio.Event = field(default_factory=asyncio.Event)
    _told: list["asyncio.Future[int]"] = field(default_factory=list)  # of what is being written
    _has_ended: bool = False  # nothing is written any more
    _writing_since: float | None = None  # monotonic; None while nothing is being written
    _thread: ThreadPoolExecutor = field(  # its own: others may keep the usual threads busy
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="log")
    )

    @property
    def keeps_up(self) -> bool:
        """Whether what is given now will be durable soon: the store answers, and no write is late."""
        since = self._writing_since
        return self.healthy and (since is None or time.monotonic() - since < LATE_S)

    def record(self, *events: Event) -> Awaitable[int]:
        """Durable and folded once awaited; the number of the last. Events keep the order of the calls.

        Cancelled where nothing is written any more.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._has_ended:
            future.cancel()
            return future
        self._waiting.append((events, future))
        self._there.set()
        return future

    async def caught_up(self) -> None:
        """Return once all that was given before is folded. Cancelled where nothing is written any more."""
        if self._waiting or self._writing_since is not None:
            await self.record()

    async def run(self) -> None:
        """Write what is given until cancelled. Raises LogMoved where another process writes to the log.

        A caller that waits for a write when this ends is cancelled: whether it became durable stays open.
        """
        self._has_ended = False
        try:
            while True:
                await self._there.wait()
                await self.write_waiting()
        finally:
            self._has_ended = True
            for future in [*self._told, *(future for _, future in self._waiting)]:
                future.cancel()
            self._waiting.clear()

    async def write_waiting(self) -> None:
        """Write everything that waits now."""
        while self._waiting:
            at_s = self.clock.now_s()
            told = self._told = []
            events: list[Event] = []
            rows: list[Unrecorded] = []
            while self._waiting and len(events) < MOST_TOGETHER:
                given, future = self._waiting.pop(0)
                try:
                    rows += [_row(event, at_s) for event in given]
                except InputError as wrong:  # its giver is told; others are not kept from writing
                    if not future.done():
                        future.set_exception(wrong)
                    continue
                events += given
                told.append(future)
            await self._write(events, rows, at_s)
            for future in told:
                if not future.done():
                    future.set_result(self.state.seq)
        self._there.clear()

    async def _write(self, events: Sequence[Event], rows: Sequence[Unrecorded], at_s: float) -> None:
        if not events:
            return
        numbers: Sequence[int] = ()
        self._writing_since = time.monotonic()
        ended = [row for event in events if isinstance(event, Retired) for row in rows_of(self.state, event)]
        while not numbers:
            try:
                loop = asyncio.get_running_loop()
                numbers = await _to_its_end(loop.run_in_executor(self._thread, self._append, rows, ended))
            except LogMoved:
                raise
            except StoreError as wrong:
                if self.healthy:
                    log.warning("the store does not answer, it is asked again: %s", wrong)
                self.healthy = False
                await asyncio.sleep(AGAIN_S)
        self.healthy, self._writing_since = True, None
        for number, event in zip(numbers, events, strict=True):
            apply_or_skip(self.state, event, number, at_s)
        self._note_how_far()
        told = list(zip(numbers, events, strict=True))
        self.told_bytes = [len(row.text) for row in rows]
        for listener in self.listeners:
            listener(told)

    def _note_how_far(self) -> None:
        """The next process to start is to notice if this was lost."""
        if self.mark is not None:
            tip, state = self.store.tip, self.state
            chain = tip.chain.hex() if tip.seq == state.seq else ""
            self.mark.note(Reached(state.seq, chain, state.largest_id))

    def _append(self, rows: Sequence[Unrecorded], ended: Sequence[EndedJob]) -> Sequence[int]:
        """Append; if an earlier try reached the log although this was not reported, that one counts.

        Raises LogMoved for what another process wrote, which led while the store could not be reached.
        """
        if not self.healthy:
            after = self.state.seq
            there = tuple(self.store.read(after))
            if there and there != recorded(rows, after):
                raise LogMoved(after, there[-1].seq)
            if there:
                return tuple(row.seq for row in there)
        return self.store.append(rows, self.state.seq, ended)


async def _to_its_end(doing: Awaitable[Done]) -> Done:
    """What comes of it. A cancelled caller waits for it all the same, and is cancelled then.

    A thread cannot be called back: what it still wrote after we have given up the lead would be in the
    next leader's log.
    """
    task = asyncio.ensure_future(doing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def _row(event: Event, at_s: float) -> Unrecorded:
    return Unrecorded(at_s, type(event).__name__, subject_of(event), body_of(event))


def fold(state: State, logged: Recorded) -> Event | None:
    """Fold one event of the log; None for one that cannot be understood, which is passed over and noted.

    Raises UnknownEvent for what a newer version wrote.
    """
    try:
        event = event_of(logged.kind, logged.body)
    except UnknownEvent:
        raise
    except InputError as wrong:
        skip(state, logged.seq, logged.at_s, logged.kind, logged.subject, wrong)
        return None
    apply_or_skip(state, event, logged.seq, logged.at_s)
    return event


def understood(one: Recorded) -> Event | None:
    """The event that was recorded; None where it cannot be understood. Raises UnknownEvent."""
    try:
        return event_of(one.kind, one.body)
    except UnknownEvent:
        raise
    except InputError:
        return None
