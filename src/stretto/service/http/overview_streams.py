"""Streams of the overview: pages that see the same are told the same texts, which are worked out once.

What a page is told is a text of everything, and then texts of what has changed, in order. A page that comes
while the newest text of everything is fresh gets that one, and each change since.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from stretto.service.http.auth import Caller
from stretto.service.http.node_rows import NodeRows
from stretto.service.http.overview import Overview
from stretto.service.http.sse import Feed, next_event
from stretto.service.service import Service

GATHER_S = 0.25  # events that come together are shown together; chosen
TICK_S = 15.0  # between two looks at what changes without an event: times that are left
FRESH_S = 2.0  # that a text of everything is handed out with the changes since; chosen
MOST_BEHIND = 64  # texts that are kept for a page that reads slowly, before it is told everything again

LOG = logging.getLogger("stretto.api")


class OverviewStreams:
    """All streams of a service, by what they may see."""

    def __init__(self, service: Service, feed: Feed, rows: NodeRows | None = None) -> None:
        self.service, self.feed, self.rows = service, feed, rows or NodeRows(service)
        self._views: dict[str | None, _View] = {}  # by user; None: everybody's jobs

    @property
    def followers(self) -> int:
        """How many pages follow."""
        return sum(len(view.followers) for view in self._views.values())

    async def stream(self, caller: Caller, follow: bool) -> AsyncIterator[str]:
        """Texts of server-sent events; with `follow`, until the service ends or the token is revoked."""
        if not follow:
            yield _text("whole", await Overview(self.service, self.feed, caller, self.rows).whole())
            return
        seen_by = None if caller.is_operator else caller.user
        view = self._views.setdefault(seen_by, _View(Overview(self.service, self.feed, caller, self.rows)))
        follower = _Follower()
        view.followers.append(follower)
        try:
            while caller.holds_still(self.service):
                if follower.is_behind:
                    for told in await view.everything(follower):
                        yield told
                elif (text := await follower.texts.get()) is None:
                    return
                elif caller.holds_still(self.service):
                    yield text
        finally:
            view.followers.remove(follower)
            if not view.followers:
                view.end()
                if self._views.get(seen_by) is view:
                    del self._views[seen_by]


@dataclass(eq=False)
class _Follower:
    """A page, and what it has not been told yet."""

    texts: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)  # None: there will be no more
    is_behind: bool = True  # it has to be told everything


@dataclass(eq=False)
class _View:
    """The overview that several pages follow, and a task that keeps it up to date while there are any."""

    overview: Overview
    followers: list[_Follower] = field(default_factory=list)
    _since: list[str] = field(default_factory=list)  # the newest text of everything, and each change after it
    _whole_s: float = 0.0  # when that was, on the clock that only goes on
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # texts are made one after the other
    _task: asyncio.Task[None] | None = None

    async def everything(self, follower: _Follower) -> list[str]:
        """What brings a page up to date; from then on it gets each change."""
        async with self._turn:
            if not self._since or not self._is_fresh():
                whole, change = await self.overview.renewed()
                self._tell(_text("change", change))  # to those that follow already
                self._since, self._whole_s = [_text("whole", whole)], time.monotonic()
            follower.texts, follower.is_behind = asyncio.Queue(), False
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(
                    self._keep_up(), name=f"overview of {self.overview.caller.user or 'all'}"
                )
            return list(self._since)

    def end(self) -> None:
        """Stop working out changes."""
        if self._task is not None:
            self._task.cancel()

    async def _keep_up(self) -> None:
        service, overview = self.overview.service, self.overview
        try:
            while not service.ending:
                if await next_event(service, overview.feed, overview.seen, TICK_S):
                    await asyncio.sleep(GATHER_S)
                    async with self._turn:
                        overview.seen, entries = await overview.feed.after(overview.seen)
                        self._tell(_text("change", await overview.changed(entries)))
                else:
                    async with self._turn:
                        self._tell(_text("change", await overview.running()))
        except Exception:
            LOG.exception("the overview cannot be kept up to date: its pages come back by themselves")
        finally:
            for follower in self.followers:
                follower.texts.put_nowait(None)

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._whole_s < FRESH_S

    def _tell(self, text: str) -> None:
        self._since = [*self._since, text] if self._since and self._is_fresh() else []
        for follower in self.followers:
            if follower.is_behind:
                continue
            if follower.texts.qsize() < MOST_BEHIND:
                follower.texts.put_nowait(text)
            else:
                follower.texts, follower.is_behind = asyncio.Queue(), True


def _text(kind: str, body: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n"
