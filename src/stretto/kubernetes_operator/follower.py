"""A queue of things to look at again: when they change, when a job of theirs does, and now and then.

What a look finds out is not kept, so that a look too many does no harm.
"""

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from itertools import cycle
from typing import Any

import httpx

from stretto.backends.kubernetes.api import Refusal
from stretto.backends.kubernetes.informer import Key
from stretto.backends.protocol import BackendUnreachable
from stretto.client import Client, ServiceError

RETRY_S = 2.0  # after a failure of the service or of the API server; chosen
REFRESH_S = 20.0  # between looks at reasons, which change without an event; chosen
ANSWER_S, SILENCE_S = 15.0, 60.0  # of the service, which says something on its stream every 15 s; chosen
AT_ONCE = 8  # keys that are reconciled side by side; chosen

log = logging.getLogger(__name__)


class Follower(ABC):
    """Reconciles objects of a cluster, each by its key, with jobs of a service."""

    def __init__(self, service: Client) -> None:
        """service: a connection, which is closed at the end."""
        self.service = service
        self.of_job: dict[str, Key] = {}  # by the job's id
        self._due: dict[Key, None] = {}  # what to look at, the oldest first
        self._wakes = asyncio.Event()
        self._under_way: set[Key] = set()

    @abstractmethod
    def follow(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What keeps the objects of the cluster up to date, until cancelled."""

    @abstractmethod
    def look_at_all(self) -> None:
        """Look at all objects whose jobs may change."""

    @abstractmethod
    async def reconcile(self, key: Key) -> None:
        """Bring one object and its job together. Raises BackendUnreachable, Refusal, ServiceError."""

    async def run(self) -> None:
        """Reconcile until cancelled. Raises InputError where the service refuses the token."""
        await asyncio.to_thread(lambda: list(self.service.queues()))  # a wrong token is said at once
        try:
            async with asyncio.TaskGroup() as group:
                for story in (*self.follow(), self._heed_events(), self._refresh()):
                    group.create_task(story)
                for _ in range(AT_ONCE):
                    group.create_task(self._work())
        finally:
            self.service.http.close()

    def look_at(self, key: Key) -> None:
        """Reconcile an object soon."""
        self._due[key] = None
        self._wakes.set()

    async def _heed_events(self) -> None:
        """Look at objects whose jobs have changed; after an outage of the service at all of them."""
        headers = self.service.http.headers
        limit, follow = httpx.Timeout(ANSWER_S, read=SILENCE_S), {"after": "-1", "follow": "true"}
        asking: dict[str, Any] = {"headers": headers, "verify": self.service.verify}
        for url in cycle(self.service.addresses):
            try:
                async with (
                    httpx.AsyncClient(**asking, base_url=url, timeout=limit, trust_env=False) as http,
                    http.stream("GET", "/api/v1/events", params=follow) as answer,
                ):
                    answer.raise_for_status()
                    self.look_at_all()
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            self._look_at_jobs(json.loads(line.removeprefix("data: ")))
            except httpx.HTTPError as failure:
                log.info("events of %s: %s", url, failure)
            await asyncio.sleep(RETRY_S)

    def _look_at_jobs(self, event: Mapping[str, Any]) -> None:
        """Look at the objects of the jobs that an event is about."""
        for each in (event, *(event.get("actions") or ())):
            if key := self.of_job.get(str(each.get("job", ""))):
                self.look_at(key)

    async def _refresh(self) -> None:
        """Look at all of them now and then."""
        while True:
            await asyncio.sleep(REFRESH_S)
            self.look_at_all()

    async def _work(self) -> None:
        """Reconcile what is due, one object after the other."""
        while True:
            key = next((key for key in self._due if key not in self._under_way), None)
            if key is None:
                self._wakes.clear()
                await self._wakes.wait()
                continue
            del self._due[key]
            self._under_way.add(key)
            try:
                await self.reconcile(key)
            except (BackendUnreachable, Refusal, ServiceError) as failure:
                log.info("%s/%s: %s; tried again", *key, failure)
                asyncio.get_running_loop().call_later(RETRY_S, self.look_at, key)
            finally:
                self._under_way.discard(key)
                self._wakes.set()
