"""Logs of pods, kept by us: a kubelet removes the log of a pod with the pod.

Each log is followed while its pod runs. Lines come with a stamp. By it a follower that was cut off, or a
service that begins again, goes on where it was. `ID.at` beside a log says up to which stamp it is written,
how long it then was, and whose log it is. What the workers of a job have written is bounded: what is oldest
goes first.
"""

import asyncio
import json
import logging
import os
import random
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stretto.agent.log_bounds import LogBound
from stretto.agent.server import read_piece
from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.api import PODS, Api, Expired, Refusal
from stretto.backends.kubernetes.objects import Pod
from stretto.backends.protocol import BackendUnreachable, LogPiece, NoSuchWorker

log = logging.getLogger(__name__)

SILENCE_S = (
    120.0  # of a log that is followed, before it is asked for again: its connection may be dead; chosen
)
RETRY_S, LONGEST_RETRY_S = 0.5, 10.0  # before a log is asked for again, ever later while that fails; chosen
POLL_S = 0.1  # between looks of a reader; chosen
CATCH_UP_S = 5.0  # that a reader waits for the end of a log whose worker has ended; chosen
LAST_TRIES = 10  # for the end of a log whose kubelet does not give it; chosen
STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)) ?")
SAVE_EACH_BYTES = 1 << 16
BOUND_LOGS_S = 2.0  # between looks at how much was written; chosen


@dataclass
class Position:
    """How far a log is written."""

    stamp: str = ""  # of the last line
    same: int = 0  # lines with exactly this stamp
    size: int = 0  # bytes of the log
    complete: bool = False
    pod: str = ""  # uid of the pod whose log it is; "" while none is known


class LogSpool:
    """Logs of all workers, in one directory."""

    def __init__(self, folder: Path, api: Api, max_log_bytes: int = 0) -> None:
        """max_log_bytes: that the logs of a job may take; 0: any amount."""
        self.folder, self.api = folder, api
        self.bound = LogBound(max_log_bytes)
        self.followers: dict[str, asyncio.Task[None]] = {}
        self._pods: dict[str, str] = {}  # what positions say of them, as far as it was asked
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.by_job: dict[str, set[Path]] = defaultdict(set)  # all logs that there are
        for path in folder.glob("*.log"):
            self.by_job[job_of(path.name)].add(path)

    def path(self, worker_id: str) -> Path:
        """Of a log."""
        return self.folder / f"{worker_id}.log"

    def is_complete(self, worker_id: str) -> bool:
        """Whether all that a worker has written is here."""
        return self._position(worker_id).complete

    def knows(self, worker_id: str) -> bool:
        """Whether there is a log of this worker."""
        return self.path(worker_id).exists()

    def pod_of(self, worker_id: str) -> str:
        """The uid of the only pod that this worker has had; "" while none is known."""
        if worker_id not in self._pods:
            self._pods[worker_id] = self._position(worker_id).pod
        return self._pods[worker_id]

    def note_pod(self, worker_id: str, uid: str) -> None:
        """Note the pod of a worker, once: another one by the same name is none of it."""
        if self.pod_of(worker_id):
            return
        self._pods[worker_id] = uid
        try:
            self.begin(worker_id)
            self._save(worker_id, self._position(worker_id))
        except OSError as failure:  # it is known as long as this service lives
            log.warning("pod of %s: %s", worker_id, failure)

    def begin(self, worker_id: str, words: str = "") -> None:
        """There is a log from now on, though nothing is written yet. words: a first line of our own."""
        is_new = not self.knows(worker_id)
        self.path(worker_id).touch(mode=0o600)
        if is_new and words:
            self.path(worker_id).write_text(f"{words}\n", encoding="utf-8")
        self.by_job[job_of(worker_id)].add(self.path(worker_id))

    def finish(self, worker_id: str, words: str = "") -> None:
        """Nothing will follow: its pod never began, or is gone. words: a last line of our own."""
        self.begin(worker_id)
        if words:
            with self.path(worker_id).open("ab") as file:
                file.write(words.encode() + b"\n")
        position = self._position(worker_id)
        position.size, position.complete = self.path(worker_id).stat().st_size, True
        self._save(worker_id, position)

    def follow(self, worker_id: str, pod: Pod, has_ended: Callable[[], bool]) -> None:
        """Follow a log, unless that is done already. has_ended: whether its containers have terminated."""
        follower = self.followers.get(worker_id)
        if (follower is not None and not follower.done()) or self.is_complete(worker_id):
            return
        self.begin(worker_id)
        self.followers[worker_id] = asyncio.create_task(self._follow(worker_id, pod, has_ended))

    async def catch_up(self, worker_id: str) -> None:
        """Wait until the log of an ended worker is here, or its kubelet has had its time."""
        if follower := self.followers.get(worker_id):
            await asyncio.wait([follower], timeout=CATCH_UP_S)

    async def _follow(self, worker_id: str, pod: Pod, has_ended: Callable[[], bool]) -> None:
        path = f"{PODS.path(pod.metadata.namespace, pod.metadata.name)}/log"
        position, tries, pause_s = self._position(worker_id), 0, RETRY_S
        if self.path(worker_id).stat().st_size > position.size:  # written, and not yet noted as such
            os.truncate(self.path(worker_id), position.size)
        while not position.complete:
            ended_before = has_ended()  # what is read after its end is all
            try:
                await self._read(worker_id, path, position, follow=not ended_before)
                whole, pause_s = ended_before, RETRY_S
            except (BackendUnreachable, Refusal, Expired, OSError) as failure:
                whole = False
                if ended_before and isinstance(failure, Refusal):
                    tries += 1
                    if failure.code == 404 or tries >= LAST_TRIES:
                        self.finish(worker_id)
                        return
                if isinstance(failure, OSError):  # of our own disk, which may have room again later
                    log.warning("log of %s: %s", worker_id, failure)
                pause_s = min(pause_s * 2, LONGEST_RETRY_S)
            if whole:
                position.complete = True
                self._save(worker_id, position)
                return
            await _pause(pause_s, has_ended if not ended_before else lambda: False)

    async def _read(self, worker_id: str, path: str, position: Position, *, follow: bool) -> None:
        """Append what comes after a position, until the stream ends."""
        params: dict[str, str | int] = {"container": manifests.CONTAINER, "timestamps": "true"}
        if follow:
            params["follow"] = "true"
        if position.stamp:
            params["sinceTime"] = f"{position.stamp[:19]}Z"  # whole seconds
        skip = (position.stamp, position.same)
        rest, saved_at = b"", position.size
        with self.path(worker_id).open("ab", buffering=0) as file:
            try:
                async with self.api.stream(path, params, SILENCE_S) as answer:
                    async for chunk in answer.aiter_bytes():
                        *lines, rest = (rest + chunk).split(b"\n")
                        skip = self._append(file.write, [line + b"\n" for line in lines], position, skip)
                        if position.size - saved_at > SAVE_EACH_BYTES:
                            self._save(worker_id, position)
                            saved_at = position.size
                if rest and not follow:
                    self._append(file.write, [rest], position, skip)  # a last line without its end
            finally:
                self._save(worker_id, position)

    @staticmethod
    def _append(
        write: Callable[[bytes], object], lines: list[bytes], position: Position, skip: tuple[str, int]
    ) -> tuple[str, int]:
        """Write the lines that are new. skip: a stamp, and how many lines of it were written before."""
        old_stamp, left = skip
        text = b""
        for line in lines:
            match = STAMPED.match(line)
            stamp = match[1].decode() if match else position.stamp
            content = line[match.end() :] if match else line
            if old_stamp and (_padded(stamp) < _padded(old_stamp)):
                continue
            if stamp == old_stamp and left > 0:
                left -= 1
                continue
            position.same = position.same + 1 if stamp == position.stamp else 1
            position.stamp = stamp
            text += content
        if text:
            write(text)
            position.size += len(text)
        return old_stamp, left

    async def read(
        self, worker_id: str, offset: int, limit: int, wait_s: float, has_ended: Callable[[], bool]
    ) -> LogPiece:
        """A piece of a log, once there is any; raises NoSuchWorker.

        Pods are seen to end before the last of their log is here: a reader of an ended one waits for that.
        """
        limit = max(limit, 0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            if not self.knows(worker_id):
                raise NoSuchWorker(f"no worker {worker_id}")
            ended = has_ended()
            complete = ended and self.is_complete(worker_id)  # before reading
            begin, data, size = await asyncio.to_thread(read_piece, self.path(worker_id), offset, limit)
            is_all = complete or len(data) >= limit or (bool(data) and not ended)
            patience_s = max(wait_s, CATCH_UP_S) if ended else wait_s
            if is_all or loop.time() >= began_s + patience_s:
                return LogPiece(data, begin, begin + len(data), complete and begin + len(data) >= size)
            await asyncio.sleep(POLL_S)

    def delete(self, worker_ids: list[str]) -> None:
        """Remove logs."""
        for worker_id in worker_ids:
            if follower := self.followers.pop(worker_id, None):
                follower.cancel()
            for path in (self.path(worker_id), self._at(worker_id)):
                path.unlink(missing_ok=True)
            self._pods.pop(worker_id, None)
            self.by_job[job_of(worker_id)].discard(self.path(worker_id))
            if not self.by_job[job_of(worker_id)]:
                del self.by_job[job_of(worker_id)]

    async def keep_bounded(self) -> None:
        """Keep the logs of each job that is followed within their bound, until cancelled."""
        while self.bound.most_bytes > 0:
            followed = {job_of(worker_id) for worker_id, task in self.followers.items() if not task.done()}
            for job in followed:
                try:
                    await asyncio.to_thread(self.bound.keep, [*self.by_job[job]])
                except OSError as failure:  # of one: the others must not suffer from it
                    log.warning("logs of job %s are not cut: %s", job, failure)
            await asyncio.sleep(BOUND_LOGS_S)

    def of_job(self, job: str) -> list[str]:
        """Workers of a job that have a log."""
        return sorted(path.name.removesuffix(".log") for path in self.by_job.get(job, ()))

    async def close(self) -> None:
        """Follow no more."""
        for follower in self.followers.values():
            follower.cancel()
        await asyncio.gather(*self.followers.values(), return_exceptions=True)

    def _at(self, worker_id: str) -> Path:
        return self.folder / f"{worker_id}.at"

    def _position(self, worker_id: str) -> Position:
        with suppress(OSError, ValueError, TypeError):
            return Position(**json.loads(self._at(worker_id).read_bytes()))
        return Position()

    def _save(self, worker_id: str, position: Position) -> None:
        """Write a position down. A log stays complete, whatever a follower that ends late still knows."""
        if not self.knows(worker_id):
            return  # deleted
        position.complete = position.complete or self.is_complete(worker_id)
        position.pod = self._pods.get(worker_id) or position.pod
        part = self._at(worker_id).with_suffix(".part")
        part.write_text(json.dumps(vars(position)), encoding="ascii")
        part.replace(self._at(worker_id))


async def _pause(pause_s: float, is_over: Callable[[], bool]) -> None:
    """Wait for about so long, since others wait for the same server; no longer than until something is so."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + pause_s * random.uniform(0.5, 1.5)
    while (left_s := until_s - loop.time()) > 0:
        await asyncio.sleep(min(left_s, RETRY_S))
        if is_over():
            return


def job_of(worker_id: str) -> str:
    """The job of a worker, or of the file with its log."""
    return worker_id.partition(".")[0]


def _padded(stamp: str) -> str:
    """A stamp that compares as a text: nanoseconds may have lost their last zeros."""
    whole, dot, fraction = stamp.removesuffix("Z").partition(".")
    return f"{whole}.{fraction.ljust(9, '0')}" if dot else f"{whole}.000000000"
