"""All objects of one kind, kept up to date by a list and a watch, whatever becomes of either.

A watch ends all the time. The server ends it after minutes, forgets the version that it went on from (410),
or dies without closing its socket. So bookmarks keep the version fresh, and a watch that is silent for too
long is given up. After a new list, everything that vanished meanwhile is told as well.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from stretto.backends.kubernetes import objects
from stretto.backends.kubernetes.api import Api, Expired, Kind, Refusal
from stretto.backends.protocol import BackendUnreachable

log = logging.getLogger(__name__)

WATCH_S = 290  # that a watch is asked to last; API servers end them after 5 to 10 minutes anyway; chosen
SILENCE_S = 75.0  # of a watch with bookmarks, which come each minute; chosen
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0  # between attempts, with jitter; chosen
STALE_S = 15.0  # without an answer, before what is known no longer counts; chosen

Item = TypeVar("Item", bound=objects.Object)
Key = tuple[str, str]  # namespace, name


class Informer(Generic[Item]):
    """Objects of one kind in one namespace, or in all (""), by namespace and name."""

    def __init__(
        self,
        api: Api,
        kind: Kind[Item],
        namespace: str,
        changed: Callable[[Item | None, Item | None], None],
        silence_s: float = SILENCE_S,
    ) -> None:
        """changed: called with each object before and after a change; None where there was, or is, none."""
        self.api, self.kind, self.namespace = api, kind, namespace
        self.changed = changed
        self.silence_s = silence_s
        self.items: dict[Key, Item] = {}
        self.version = ""
        self.listed = asyncio.Event()  # once the first list is in
        self.failure = ""  # why the last attempt failed; "" while all is well
        self.failing_since_s = 0.0  # monotonic
        self.lists, self.watches = 0, 0  # how many there were, for metrics

    @property
    def is_stale(self) -> bool:
        """Whether the server has not answered for so long that what is known may not hold any more."""
        return bool(self.failure) and time.monotonic() - self.failing_since_s > STALE_S

    async def follow(self) -> None:
        """List and watch until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if not self.version:
                    await self._list()
                await self._watch()
                pause_s = FIRST_PAUSE_S
                continue
            except (BackendUnreachable, Refusal, Expired) as failure:
                forgotten = isinstance(failure, Expired) and self.version
                if not self.failure and not forgotten:
                    self.failing_since_s = time.monotonic()
                    log.warning("%s: %s", self.kind.plural, failure)
                if not forgotten:  # a watch that the server cannot go on with is no failure
                    self.failure = str(failure)
                if isinstance(failure, Expired) or (isinstance(failure, Refusal) and not failure.is_busy):
                    self.version = ""  # list again, and see what vanished
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _list(self) -> None:
        """Take in a list: what is new, what differs, and what is gone."""
        self.lists += 1
        items, version = await self.api.list(self.kind, self.namespace)
        now = {key_of(item): item for item in items}
        for key in [key for key in self.items if key not in now]:
            if not _is_newer(self.items[key].metadata.resourceVersion, version):  # else it came since
                self.changed(self.items.pop(key), None)
        for item in items:
            self.put(item)
        self.version = version
        self.failure = ""
        self.listed.set()

    async def _watch(self) -> None:
        """Take in changes until the watch ends."""
        self.watches += 1
        events = self.api.watch(
            self.kind,
            self.namespace,
            self.version,
            lasts_s=WATCH_S,
            silence_s=self.silence_s,
            opened=self._recover,
        )
        async with aclosing(events):
            async for happened, item in events:
                if item.metadata.resourceVersion:
                    self.version = item.metadata.resourceVersion
                if happened == "DELETED":
                    before = self.items.pop(key_of(item), None)
                    self.changed(before if before is not None else item, None)
                elif happened != "BOOKMARK":
                    self.put(item)

    def _recover(self) -> None:
        """The server answers, even if nothing has changed."""
        self.failure = ""

    def put(self, item: Item) -> None:
        """Take in one object as it was shown, unless a later one of the same life is known."""
        key = key_of(item)
        before = self.items.get(key)
        if before is not None and _is_later(before, item):
            return
        self.items[key] = item
        if before is not None and before.metadata.uid != item.metadata.uid:
            self.changed(before, None)  # it was deleted and made anew while nobody watched
            before = None
        if before is None or before.metadata.resourceVersion != item.metadata.resourceVersion:
            self.changed(before, item)


def key_of(item: objects.Object) -> Key:
    """By which an object is found."""
    return item.metadata.namespace, item.metadata.name


def _is_later(one: objects.Object, other: objects.Object) -> bool:
    """Whether `one` is a later state of the same object than `other`."""
    same = one.metadata.uid == other.metadata.uid
    return same and _is_newer(one.metadata.resourceVersion, other.metadata.resourceVersion)


def _is_newer(version: str, than: str) -> bool:
    """Whether a version is above another.

    Versions may be compared as numbers since Kubernetes 1.35, and were such in every release before.
    """
    return version.isdecimal() and than.isdecimal() and int(version) > int(than)
