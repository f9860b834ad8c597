"""The newest events in memory, for the many who follow: only who is far behind asks the store."""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from stretto.live.history.ledger import Ledger
from stretto.live.state.events import Event, body_of, subject_of

KEPT, MOST_BYTES = 4_096, 16 << 20  # events, at most so large; chosen: some minutes of a busy service
READ_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """An event with its number."""

    seq: int
    at_s: float
    kind: str
    subject: str
    body: dict[str, Any]


@dataclass
class Feed:
    """What happened after a number."""

    ledger: Ledger
    kept: int = KEPT
    most_bytes: int = MOST_BYTES
    _tail: deque[tuple[int, float, Event]] = field(default_factory=deque)
    _sizes: deque[int] = field(default_factory=deque)  # of these events in the log, in bytes
    _bytes: int = 0  # their sum
    _before: int = field(init=False)  # the number of the event before the oldest in the tail

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self._before = self.ledger.state.seq
        self.ledger.listeners.append(self.heard)

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._before + len(self._tail)

    @property
    def in_memory(self) -> tuple[int, int]:
        """(events, bytes) that are kept for those who ask."""
        return len(self._tail), self._bytes

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Keep what happened."""
        for (seq, event), size in zip(told, self.ledger.told_bytes, strict=True):
            self._tail.append((seq, self.ledger.state.at_s, event))
            self._sizes.append(size)
            self._bytes += size
            while len(self._tail) > self.kept or self._bytes > self.most_bytes:
                self._tail.popleft()
                self._bytes -= self._sizes.popleft()
                self._before += 1

    async def after(self, seen: int, subjects: Collection[str] | None = None) -> tuple[int, list[Entry]]:
        """(how far this looked, events up to there), of these subjects or of all. Raises StoreError."""
        if seen >= self._before:
            news = islice(self._tail, max(seen - self._before, 0), None)
            return max(self.last, seen), [
                Entry(seq, at_s, type(event).__name__, subject_of(event), body_of(event))
                for seq, at_s, event in news
                if subjects is None or subject_of(event) in subjects
            ]
        upto = self._before
        return await asyncio.to_thread(self._read, seen, upto, subjects)

    def _read(self, seen: int, upto: int, subjects: Collection[str] | None) -> tuple[int, list[Entry]]:
        found = [
            Entry(one.seq, one.at_s, one.kind, one.subject, one.body)
            for one in self.ledger.store.read(after=seen, subjects=subjects, limit=READ_AT_ONCE)
        ]
        if len(found) == READ_AT_ONCE:
            return found[-1].seq, found
        return max(upto, found[-1].seq if found else 0), found
