"""Server-sent events: the newest events in memory, and the streams that follow them.

The newest events in memory, for the many that follow: only one that is far behind asks the store.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stretto.service.eventlog.writer import LogWriter
from stretto.service.http.auth import Asked, Caller, Role, Who
from stretto.service.http.compression import accepts_gzip, in_gzip
from stretto.service.http.problems import Problem
from stretto.service.http.schemas import LARGEST_NUMBER
from stretto.service.service import Service
from stretto.service.state.event_words import said_of, what_of
from stretto.service.state.events import ArraySubmitted, Event, body_of, subject_of

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

    log_writer: LogWriter
    kept: int = KEPT
    most_bytes: int = MOST_BYTES
    _tail: deque[tuple[int, float, Event]] = field(default_factory=deque)
    _sizes: deque[int] = field(default_factory=deque)  # of these events in the log, in bytes
    _bytes: int = 0  # their sum
    _before: int = field(init=False)  # the number of the event before the oldest in the tail

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self._before = self.log_writer.state.seq
        self.log_writer.listeners.append(self.heard)

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._before + len(self._tail)

    @property
    def in_memory(self) -> tuple[int, int]:
        """(events, bytes) that are kept for listeners."""
        return len(self._tail), self._bytes

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Keep what happened."""
        for (seq, event), size in zip(told, self.log_writer.told_bytes, strict=True):
            self._tail.append((seq, self.log_writer.state.at_s, event))
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
            for one in self.log_writer.store.read(after=seen, subjects=subjects, limit=READ_AT_ONCE)
        ]
        if len(found) == READ_AT_ONCE:
            return found[-1].seq, found
        return max(upto, found[-1].seq if found else 0), found


# ── server-sent events: what happens as it happens, from where the reader left off ──────────────────────────


router = APIRouter(prefix="/api/v1", tags=["events"])

TICK_S = 15.0  # between two comments on a quiet stream, so that no proxy in between hangs up
RETRY_MS = 2_000  # after which a reader that was cut off comes back
SECRET = frozenset({"spec", "secret", "sha256", "key"})  # fields of events that no stream shows
FOR_ALL = frozenset(
    {
        "Began",
        "ClockSet",
        "Configured",
        "NodeSeen",
        "NodeLost",
        "NodeDead",
        "NodeCordoned",
        "TypesSeen",
        "LenderSet",
        "LenderDeleted",
        "NeedReported",
        "NodesHandedOver",
        "GuaranteeMissed",
        "QueueSet",
        "QueueDeleted",
        "PriorityClassSet",
        "PriorityClassDeleted",
    }
)
STREAM = "text/event-stream"

After = Annotated[int, Query(ge=-1, le=LARGEST_NUMBER, description="number of an event; -1: from now on")]
LastId = Annotated[
    str,
    Header(pattern=r"^\d{0,16}$", description="where a reader goes on that was cut off: wins over `after`"),
]


@dataclass
class StreamSlots:
    """How many streams each user follows."""

    most: int
    taken: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def one(self, caller: Caller) -> Iterator[None]:
        """A place while the stream is open. Raises 429 where there is none."""
        self.check(caller)
        self.taken[caller.user] = self.taken.get(caller.user, 0) + 1
        try:
            yield
        finally:
            self.taken[caller.user] -= 1
            if not self.taken[caller.user]:
                del self.taken[caller.user]

    def check(self, caller: Caller) -> None:
        """Raise 429 where there is none."""
        if caller.token is not None and self.taken.get(caller.user, 0) >= self.most:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS, f"at most {self.most} streams of one user", {"retry-after": "5"}
            )


def start_of(after: int, last_event_id: str, feed: Feed) -> int:
    """The number behind which a stream begins."""
    if last_event_id:
        return min(int(last_event_id), feed.last)
    return feed.last if after < 0 else min(after, feed.last)


def streamed(
    request: Request, caller: Caller, texts: AsyncIterator[str], compresses: bool = False
) -> StreamingResponse:
    """The answer that sends texts while the caller has a place for them.

    compresses: in gzip, where the caller can read that. It is for what has no secrets. Of a secret beside
    text that a stranger chooses, the length of what is sent would give it away, letter by letter.
    """
    app = request.app.state

    async def sent() -> AsyncIterator[str]:
        with app.meters.streams.track_inprogress():
            yield f"retry: {RETRY_MS}\n\n"
            async for text in texts:
                yield text

    if compresses and accepts_gzip(request.headers):
        return PlacedStream(in_gzip(sent()), app.places, caller, {"content-encoding": "gzip"})
    return PlacedStream(sent(), app.places, caller)


class PlacedStream(StreamingResponse):
    """A stream that takes a place before it says anything, so that of many at once none comes between."""

    def __init__(
        self,
        texts: AsyncIterator[str] | AsyncIterator[bytes],
        places: StreamSlots,
        caller: Caller,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        usual = {"x-accel-buffering": "no", "vary": "accept-encoding"}
        super().__init__(texts, media_type=STREAM, headers={**usual, **(headers or {})})
        self.places, self.caller = places, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Raises 429 where the caller has no place left."""
        with self.places.one(self.caller):
            await super().__call__(scope, receive, send)


async def happening(
    service: Service,
    feed: Feed,
    caller: Caller,
    seen: int,
    follow: bool,
    chosen: Callable[[list[Entry]], Awaitable[list[Entry]]] | None,
    subjects: Collection[str] | None = None,
    is_over: Callable[[], bool] = lambda: False,
    words: bool = False,
) -> AsyncIterator[str]:
    """Events behind `seen` as texts; with `follow`, until it is over or the caller's token is revoked.

    chosen: those of some events that are shown; None: all. words: with each in the words that people read.
    """
    while True:
        over = is_over()
        upto, entries = await feed.after(seen, subjects)
        for entry in entries if chosen is None else await chosen(entries):
            yield text_of(entry, service.state.calendar.unix_at(entry.at_s), words)
        seen = upto
        if not caller.holds_still(service):
            return
        if feed.last > seen:
            continue
        if over or not follow or service.ending:
            return
        if not await next_event(service, feed, seen, TICK_S):
            yield ": still here\n\n"


async def next_event(service: Service, feed: Feed, seen: int, wait_s: float) -> bool:
    """Whether there is an event after a number, once there is one or the time is over."""
    return bool(await service.wait_for(lambda: feed.last > seen or None, wait_s))


def text_of(entry: Entry, unix_s: float, words: bool = False) -> str:
    """An event on the wire; its time is since the log began, and `unix_s`."""
    said = {key: value for key, value in entry.body.items() if key not in SECRET}
    said |= {"seq": entry.seq, "kind": entry.kind, "at_s": entry.at_s, "unix_s": unix_s}
    if words:
        said["words"] = [what_of(said), said_of(said)]
    return f"id: {entry.seq}\nevent: {entry.kind}\ndata: {json.dumps(said)}\n\n"


@router.get("/events", response_class=StreamingResponse, responses={200: {"content": {STREAM: {}}}})
async def events(
    request: Request,
    service: Asked,
    caller: Who,
    after: After = 0,
    follow: bool = False,
    kind: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006  (FastAPI copies it)
    last_event_id: LastId = "",
) -> Response:
    """What has happened; with `follow`, as it happens. Users see their own jobs, nodes and queues."""
    feed: Feed = request.app.state.feed
    wanted = frozenset(kind)

    async def chosen(entries: list[Entry]) -> list[Entry]:
        entries = [entry for entry in entries if not wanted or entry.kind in wanted]
        if caller.role >= Role.OPERATOR:
            return entries
        jobs = [str(entry.body.get("job", "")) for entry in entries]
        owners = await service.archive.owners_of({job for job in jobs if job})
        return [
            entry
            for entry, job in zip(entries, jobs, strict=True)
            if entry.kind in FOR_ALL
            or (job in owners and caller.sees(owners[job]))
            or (entry.kind == ArraySubmitted.__name__ and caller.sees(entry.body["user"]))
        ]

    seen = start_of(after, last_event_id, feed)
    return streamed(request, caller, happening(service, feed, caller, seen, follow, chosen))
