"""What one more GPU of each type has been worth over time, as decisions said."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.service.service import Service
from stretto.service.state.events import Decided, Event

KEPT = 20_000  # decisions with prices; chosen: two weeks of one each minute, and some megabytes
EVENTS_BEFORE = 100_000  # of the log, that are looked through for older ones; chosen: some seconds, once


@dataclass
class PriceHistory:
    """Prices of the newest decisions, in order; those from before this process are read once."""

    service: Service
    rows: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)
    _began_seq: int = field(init=False)
    _reading: "asyncio.Task[None] | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self._began_seq = self.service.state.seq
        self.service.log_writer.listeners.append(self.heard)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Keep prices."""
        for _, event in told:
            if isinstance(event, Decided) and event.prices is not None:
                self.rows.append((event.at_s, tuple(map(float, event.prices))))
        del self.rows[: max(len(self.rows) - KEPT, 0)]

    async def since(self, from_s: float, most: int) -> list[tuple[float, tuple[float, ...]]]:
        """Those since a time, and the last before it; the newest of each of `most` parts of the time."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        await asyncio.shield(self._reading)
        first = max(bisect_left(self.rows, (from_s, ())) - 1, 0)
        rows = self.rows[first:]
        if len(rows) <= most:
            return rows
        begin_s, part_s = rows[0][0], max((rows[-1][0] - rows[0][0]) / most, 1e-9)
        return list({int((row[0] - begin_s) / part_s): row for row in rows}.values())

    async def _read(self) -> None:
        """What was decided before this process began."""
        store, upto = self.service.log_writer.store, self._began_seq

        def found() -> list[tuple[float, tuple[float, ...]]]:
            after = max(upto - EVENTS_BEFORE, 0)
            decided = store.read(after=after, kinds={Decided.__name__}, up_to=upto)
            return [
                (float(event.body["at_s"]), tuple(map(float, event.body["prices"])))
                for event in decided
                if event.body.get("prices") is not None
            ]

        before = await asyncio.to_thread(found)
        self.rows[:0] = before
        del self.rows[: max(len(self.rows) - KEPT, 0)]
