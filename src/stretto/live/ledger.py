"""The one writer: events become durable, then they are folded, in one order; then whoever asked is told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from stretto.live.clock import Clock
from stretto.live.events import Event, body_of, event_of, subject_of
from stretto.live.state import State
from stretto.live.store import LogMoved, Recorded, Store, StoreError, Unrecorded

MOST_TOGETHER = 2_000  # events of one transaction; chosen
AGAIN_S = 1.0  # between attempts while the store does not answer; chosen

Listener = Callable[[Sequence[tuple[int, Event]]], None]


@dataclass
class Ledger:
    """Appends to the store what it is given, many givers at once, and keeps the state in step.

    What waits together is written together: a transaction costs a flush of the disk, not each event.
    """

    store: Store
    state: State
    clock: Clock
    healthy: bool = True  # the store answered last time
    listeners: list[Listener] = field(default_factory=list)
    _waiting: list[tuple[Sequence[Event], "asyncio.Future[int]"]] = field(default_factory=list)
    _there: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, *events: Event) -> Awaitable[int]:
        """Durable and folded once awaited; the number of the last. Events keep the order of the calls."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((events, future))
        self._there.set()
        return future

    async def write_for_ever(self) -> None:
        """Write what is given until cancelled. Raises LogMoved where somebody else writes to the log."""
        while True:
            await self._there.wait()
            await self.write_waiting()

    async def write_waiting(self) -> None:
        """Write everything that waits now."""
        while self._waiting:
            batch, count = [], 0
            while self._waiting and count < MOST_TOGETHER:
                batch.append(self._waiting.pop(0))
                count += len(batch[-1][0])
            await self._write([event for events, _ in batch for event in events])
            for _, future in batch:
                if not future.done():
                    future.set_result(self.state.seq)
        self._there.clear()

    async def _write(self, events: Sequence[Event]) -> None:
        if not events:
            return
        at_s = self.clock.now_s()
        rows = [Unrecorded(at_s, type(event).__name__, subject_of(event), body_of(event)) for event in events]
        numbers: Sequence[int] = ()
        while not numbers:
            try:
                numbers = await asyncio.to_thread(self._append, rows)
            except LogMoved:
                raise
            except StoreError:
                self.healthy = False
                await asyncio.sleep(AGAIN_S)
        self.healthy = True
        for number, event in zip(numbers, events, strict=True):
            self.state.apply(event, number, at_s)
        told = list(zip(numbers, events, strict=True))
        for listener in self.listeners:
            listener(told)

    def _append(self, rows: Sequence[Unrecorded]) -> Sequence[int]:
        """Append; if an earlier try reached the log although nobody said so, that one counts.

        Only we write, so what follows on what we know can only be ours, and is all of it.
        """
        if not self.healthy:
            there = tuple(one.seq for one in self.store.read(after=self.state.seq))
            if there:
                return there
        return self.store.append(rows, self.state.seq)


def fold(state: State, recorded: Recorded) -> Event:
    """Fold one event of the log."""
    event = event_of(recorded.kind, recorded.body)
    state.apply(event, recorded.seq, recorded.at_s)
    return event
