"""The Secret of each job: the token of its workers, and the secrets that it names, as long as it has pods.

A service may be killed between the creation of a Secret and that of a pod. So a note on disk comes before the
Secret, and says that there may be one. It goes after it.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.api import Api, Refusal, suppress_refusal
from stretto.backends.protocol import BackendUnreachable, NotNow, StaleLeader, WorkerStart

log = logging.getLogger(__name__)

MOST_AT_ONCE = 20  # Secrets that are taken away at one look; chosen
UNUSED_S = 60.0  # without a pod, before a Secret goes whose pods are refused again and again; chosen

Key = tuple[str, str]  # namespace, job


class JobSecrets:
    """The Secrets of one service. Its account may not list them: notes say which there may be."""

    def __init__(self, api: Api, service: str, folder: Path, of_log: Iterable[Key] = ()) -> None:
        """folder: of notes, also those of an earlier service on this machine.

        of_log: of jobs that have begun, by the log. A leader elsewhere may have left their Secrets, and has
        its notes there.
        """
        self.api, self.service, self.folder = api, service, folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # When those that there may be were last needed. Those of an earlier service have their time, too.
        self.needed_s: dict[Key, float] = dict.fromkeys([*self._noted(), *of_log], time.monotonic())
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
                    self._note(key, worker.id)
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
            self._path(key).unlink(missing_ok=True)

    def unused(self, with_pods: Set[Key]) -> Sequence[Key]:
        """Those of jobs that have had no pod for a while. with_pods: of the jobs that have some."""
        old = [key for key, at_s in self.needed_s.items() if time.monotonic() > at_s + UNUSED_S]
        return [key for key in old if key not in with_pods]

    async def take_away_unused(
        self, with_pods: Set[Key], drop: Callable[[str, str], Awaitable[None]]
    ) -> None:
        """Have some of them taken away; what cannot be now is tried again later. drop: one, by its key."""
        for key in self.unused(with_pods)[:MOST_AT_ONCE]:
            try:
                await drop(*key)
            except (BackendUnreachable, StaleLeader) as failure:
                self.needed_s[key] = time.monotonic()
                log.info("the secret of job %s is not taken away yet: %s", key[1], failure)

    def _noted(self) -> list[Key]:
        """What the notes on disk name."""
        keys = []
        for path in self.folder.glob("*.json"):
            try:
                namespace, job = json.loads(path.read_bytes())
                keys.append((str(namespace), str(job)))
            except (OSError, ValueError, TypeError) as failure:  # it was just being written: no Secret yet
                log.warning("%s: %s", path, failure)
                path.unlink(missing_ok=True)
        return keys

    def _note(self, key: Key, worker_id: str) -> None:
        """Note on disk that there may be a Secret; raises NotNow where the disk takes none."""
        try:
            self._path(key).write_text(json.dumps(key), encoding="utf-8")
        except OSError as failure:
            raise NotNow(f"worker {worker_id}: the Secret of its job cannot be noted: {failure}") from None

    def _path(self, key: Key) -> Path:
        namespace, job = key
        return self.folder / f"{manifests.secret_name(self.service, job)}.{namespace}.json"

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
