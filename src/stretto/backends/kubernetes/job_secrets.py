"""The Secret of each job: the token of its workers, and the secrets that it names, as long as it has pods."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.api import Api, Refusal, suppress_refusal
from stretto.backends.protocol import WorkerStart

UNUSED_S = 60.0  # without a pod, before a Secret goes whose pods are refused again and again; chosen

Key = tuple[str, str]  # namespace, job


class JobSecrets:
    """The Secrets of one service. Its account may not list them: which there are follows from its pods."""

    def __init__(self, api: Api, service: str) -> None:
        self.api, self.service = api, service
        self.needed_s: dict[Key, float] = {}  # of those that this service has made: when they last were
        self.digests: dict[Key, str] = {}  # of what these have in them
        self.starting: Counter[Key] = Counter()  # pods that are just being created
        self.locks: dict[Key, asyncio.Lock] = {}
        self.at_it: Counter[Key] = Counter()  # who has a lock, or waits for it

    @asynccontextmanager
    async def during(self, namespace: str, worker: WorkerStart) -> AsyncIterator[None]:
        """Have the Secret of a job, and keep it while a pod of the job is created; raises Refusal.

        Its account may not change a Secret. So one with other values, set since, makes way for a new one.
        """
        key = (namespace, worker.job)
        if manifests.TOKEN not in worker.env and not worker.secrets:
            yield
            return
        self.starting[key] += 1
        try:
            async with self._alone(key):
                secret = manifests.token_secret(namespace, self.service, worker)
                digest = manifests.digest_of(secret)
                if self.digests.get(key) != digest:
                    await self._put(namespace, secret, bool(worker.secrets))
                    self.digests[key] = digest
                self.needed_s[key] = time.monotonic()
            yield
        finally:
            self.starting[key] -= 1
            if not self.starting[key]:  # else there would be one for every job that ever was
                del self.starting[key]

    async def drop(self, namespace: str, job: str, has_pods: Callable[[], bool]) -> None:
        """Delete the Secret of a job that has no pods, and is to have none just now; raises Refusal."""
        key = (namespace, job)
        async with self._alone(key):
            if has_pods() or self.starting[key]:
                return
            name = manifests.secret_name(self.service, job)
            with suppress_refusal(404):
                await self.api.delete(f"api/v1/namespaces/{namespace}/secrets/{name}")
            self.needed_s.pop(key, None)
            self.digests.pop(key, None)

    def unused(self, with_pods: Set[Key]) -> Sequence[Key]:
        """Those of jobs that have had no pod for a while. with_pods: of the jobs that have some."""
        old = [key for key, at_s in self.needed_s.items() if time.monotonic() > at_s + UNUSED_S]
        return [key for key in old if key not in with_pods]

    async def _put(self, namespace: str, secret: dict[str, Any], may_differ: bool) -> None:
        """Create a Secret. may_differ: one that is there may have other values, and is replaced."""
        path = f"api/v1/namespaces/{namespace}/secrets"
        manager = {"fieldManager": "stretto"}
        try:
            await self.api.call("POST", path, secret, params=manager)
        except Refusal as refusal:
            if refusal.code != HTTPStatus.CONFLICT:
                raise
            if may_differ:
                with suppress_refusal(404):
                    await self.api.delete(f"{path}/{secret['metadata']['name']}")
                await self.api.call("POST", path, secret, params=manager)

    @asynccontextmanager
    async def _alone(self, key: Key) -> AsyncIterator[None]:
        self.at_it[key] += 1
        try:
            async with self.locks.setdefault(key, asyncio.Lock()):
                yield
        finally:
            self.at_it[key] -= 1
            if not self.at_it[key]:
                del self.at_it[key], self.locks[key]
