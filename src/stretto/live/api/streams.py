"""Server-sent events: what happens as it happens, from where the reader left off."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stretto.live.api.access import Asked, Caller, Role, Who
from stretto.live.api.feed import Entry, Feed
from stretto.live.api.problems import Problem
from stretto.live.api.shapes import LARGEST_NUMBER
from stretto.live.service import Service
from stretto.live.state.events import ArraySubmitted

router = APIRouter(prefix="/api/v1", tags=["events"])

TICK_S = 15.0  # between two comments on a quiet stream, so that nobody in between hangs up
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
class Places:
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


def streamed(request: Request, caller: Caller, texts: AsyncIterator[str]) -> StreamingResponse:
    """The answer that sends texts while the caller has a place for them."""
    app = request.app.state

    async def sent() -> AsyncIterator[str]:
        with app.meters.streams.track_inprogress():
            yield f"retry: {RETRY_MS}\n\n"
            async for text in texts:
                yield text

    return PlacedStream(sent(), app.places, caller)


class PlacedStream(StreamingResponse):
    """A stream that takes a place before it says anything, so that of many at once none comes between."""

    def __init__(self, texts: AsyncIterator[str], places: Places, caller: Caller) -> None:
        super().__init__(texts, media_type=STREAM, headers={"x-accel-buffering": "no"})
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
) -> AsyncIterator[str]:
    """Events behind `seen` as texts; with `follow`, until it is over or the caller's token is revoked.

    chosen: those of some events that are shown; None: all.
    """
    while True:
        over = is_over()
        upto, entries = await feed.after(seen, subjects)
        for entry in entries if chosen is None else await chosen(entries):
            yield text_of(entry, service.state.calendar.unix_at(entry.at_s))
        seen = upto
        if not caller.holds_still(service):
            return
        if feed.last > seen:
            continue
        if over or not follow or service.ending:
            return
        if await service.wait_for(partial(_moved, feed, seen), TICK_S) is None:
            yield ": still here\n\n"


def _moved(feed: Feed, seen: int) -> bool | None:
    return True if feed.last > seen else None


def text_of(entry: Entry, unix_s: float) -> str:
    """An event on the wire; its time is since the log began, and `unix_s`."""
    said = {key: value for key, value in entry.body.items() if key not in SECRET}
    said |= {"seq": entry.seq, "kind": entry.kind, "at_s": entry.at_s, "unix_s": unix_s}
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
