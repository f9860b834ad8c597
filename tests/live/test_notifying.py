"""Whoever a job file names is told what becomes of the job."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.live.api.rig import Rig, a_rig, play

from stretto.live.jobfile import read_submission


@dataclass
class Listener:
    """Somebody who is to be told. statuses: of the next answers; then 200."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # (path, body)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.splitlines() if line.lower().startswith("content-length"))
        body = json.loads(await reader.readexactly(int(length.partition(":")[2])))
        assert head.startswith("POST ")
        self.heard.append((head.split()[1], body))
        status = self.statuses.pop(0) if self.statuses else 200
        where = "location: /elsewhere\r\n" if status == 302 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{where}content-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    def moments(self, path: str) -> list[str]:
        return [body["moment"] for where, body in self.heard if where == path]


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.answer, "127.0.0.1", 0)
    async with server:
        listener.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield listener


@asynccontextmanager
async def telling(path: Path, *pauses_s: float) -> AsyncIterator[Rig]:
    async with a_rig(path) as rig:
        rig.service.notifier.pauses_s = pauses_s
        telling = asyncio.create_task(rig.service.notifier.notify_for_ever())
        try:
            yield rig
        finally:
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling


def test_everybody_is_told_of_what_they_asked_for_and_of_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig:
            url = listener.url
            every = "[started, preempted, completed, failed, cancelled, timeout]"
            text = f"run: x\nname: mine\nnotify: [{url}/ends, {{url: '{url}/all', on: {every}}}]"
            job = await rig.submit("ada", text=text)
            await rig.until(lambda: listener.moments("/all") == ["started"])
            await rig.backend.finish(f"{job}.1.0", 143)  # somebody stops it
            await rig.until(lambda: listener.moments("/all") == ["started", "preempted", "started"])
            await rig.backend.finish(f"{job}.2.0", 0)
            await rig.until(lambda: "completed" in listener.moments("/all") and listener.moments("/ends"))
            assert listener.moments("/all") == ["started", "preempted", "started", "completed"]
            assert listener.moments("/ends") == ["completed"]
            body = listener.heard[-1][1]
            assert (body["job"], body["name"], body["user"], body["status"]) == (job, "mine", "ada", 0)
            assert body["attempt"] == 2

    play(story)


@pytest.mark.parametrize("status", [500, 302])
def test_who_does_not_answer_well_is_told_again_and_led_nowhere(tmp_path: Path, status: int) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path, 0.0, 0.0) as rig:
            listener.statuses = [status]
            job = await rig.submit("ada", text=f"run: x\nnotify: {listener.url}/ends")
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 7)
            await rig.until(lambda: len(listener.heard) == 2)
            assert listener.moments("/ends") == ["failed", "failed"]

    play(story)


def test_an_address_where_nobody_is_holds_up_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        async with listening() as listener, telling(tmp_path) as rig:
            nobody = "'http://127.0.0.1:1/', 'http://[', 'http://127.0.0.1:65536'"
            text = f"run: x\nnotify: [{nobody}, '{listener.url}/ends']"
            assert len(read_submission(text)[0].notify) == 4
            job = await rig.submit("ada", text=text)
            await rig.until(lambda: rig.backend.started)
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: listener.moments("/ends") == ["completed"])

    play(story)
