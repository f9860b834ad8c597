"""Programs beside workers: who may begin one, and what becomes of terminals that idle or are left."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.service.http.rig import Rig, a_rig, play, token_of
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from stretto.agent.exec_session import frame
from stretto.service.http.rate_limits import Limits

pytestmark = [pytest.mark.sqlite, pytest.mark.processes]

COMMAND = b"s" + json.dumps({"argv": ["bash"], "tty": True}).encode()


class Played:
    """A line whose other end is played by the test."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.heard = bytearray()
        self.is_closed = False
        self.breaks = False
        self.is_tried = False  # although it has broken

    async def readexactly(self, n: int, /) -> bytes:
        return await self.reader.readexactly(n)

    def write(self, data: bytes, /) -> None:
        self.heard += data

    async def drain(self) -> None:
        if self.breaks:
            self.is_tried = True
            raise ConnectionResetError

    def close(self) -> None:
        self.is_closed = True
        if self.reader.exception() is None:
            self.reader.feed_eof()


async def a_job(rig: Rig) -> tuple[str, list[Played]]:
    """A job of ada's that runs, and the lines to its worker as they are opened."""
    lines: list[Played] = []

    async def reach(worker_id: str) -> Played:
        lines.append(Played())
        return lines[-1]

    rig.backend.reach = reach
    job = await rig.submit("ada", text="run: sleep")
    await rig.until(lambda: any(one.has_begun for one in rig.service.state.jobs[job].alive))
    return job, lines


def line_to(address: tuple[str, int], path: str, token: str) -> connect:
    headers = {"authorization": f"Bearer {token}"}
    return connect(
        f"ws://{address[0]}:{address[1]}/api/v1/jobs/{path}", additional_headers=headers, proxy=None
    )


async def said(socket: ClientConnection, letter: bytes) -> bytes:
    """The next message that begins so."""
    while True:
        message = await socket.recv()
        assert isinstance(message, bytes)
        if message[:1] == letter and message != b"n":
            return message[1:]


async def refusal(address: tuple[str, int], path: str, token: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused:
        await line_to(address, path, token)
    answer = refused.value.response
    return answer.status_code, json.loads(answer.body or b"{}")["detail"]


def test_only_owners_and_operators_reach_a_job_and_never_by_a_token_for_reading(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as address, rig.client("root") as root:
            job, _ = await a_job(rig)
            asked = {"name": "reads", "user": "ada", "role": "user", "scope": "read"}
            reads = (await root.post("/api/v1/tokens", json=asked)).json()["token"]
            for what in ("exec", "attach", "forward?port=80"):
                assert (await refusal(address, f"{job}/{what}", "stretto_none"))[0] == 401
                assert await refusal(address, f"{job}/{what}", reads) == (
                    403,
                    "the token is for reading only",
                )
                assert (await refusal(address, f"{job}/{what}", token_of("bob")))[0] == 404
            for person in ("ada", "olga"):
                async with line_to(address, f"{job}/exec", token_of(person)) as socket:
                    await socket.send(COMMAND)
                    assert json.loads(await said(socket, b"i"))["job"] == job

    play(story)


def test_a_backend_that_reaches_no_worker_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as address:
            job = await rig.submit("ada")
            assert await refusal(address, f"{job}/exec", token_of("ada")) == (
                409,
                "workers on the backend fake cannot be reached",
            )

    play(story)


def test_an_idle_terminal_is_warned_and_parked_and_comes_back_with_the_end_of_its_output(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        limits = Limits(idle_s=1.0, warned_s=0.6)
        async with a_rig(tmp_path, limits=limits) as rig, rig.listening() as address:
            job, lines = await a_job(rig)
            async with line_to(address, f"{job}/exec", token_of("ada")) as socket:
                await socket.send(COMMAND)
                await said(socket, b"i")
                lines[0].reader.feed_data(frame(b"o", b"x" * 70_000))
                assert await said(socket, b"o") == b"x" * 70_000
                assert b"will be parked" in await said(socket, b"n")
                assert b"parked: idle" in await said(socket, b"n")
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            assert not lines[0].is_closed
            async with line_to(address, f"{job}/attach", token_of("ada")) as socket:
                about = json.loads(await said(socket, b"i"))
                assert (about["kept"], about["lost"]) == (65_536, 70_000 - 65_536)
                assert await said(socket, b"o") == b"x" * 65_536
                lines[0].reader.feed_data(frame(b"x", b'{"status": 6, "why": ""}'))
                assert json.loads(await said(socket, b"x")) == {"status": 6, "why": ""}

    play(story)


def test_a_terminal_to_which_nobody_comes_back_is_ended_and_the_audit_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(parked_s=0.3, warned_s=0.2)
        async with a_rig(tmp_path, limits=limits) as rig, rig.listening() as address:
            job, lines = await a_job(rig)
            async with line_to(address, f"{job}/exec", token_of("ada")) as socket:
                await socket.send(COMMAND)
                await said(socket, b"i")
            await rig.until(lambda: lines[0].is_closed)
            async with rig.client("root") as root:
                while True:
                    events = (await root.get("/api/v1/events")).text
                    if "exec ended" in events:
                        break
            assert "nobody came back within 0 s: bash" in events

    play(story)


def test_a_revoked_token_ends_what_it_opened(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as address, rig.client("root") as root:
            job, _ = await a_job(rig)
            asked = {"name": "lent", "user": "ada", "role": "user"}
            lent = (await root.post("/api/v1/tokens", json=asked)).json()["token"]
            async with line_to(address, f"{job}/exec", lent) as socket:
                await socket.send(COMMAND)
                await said(socket, b"i")
                await root.delete("/api/v1/tokens/lent")
                ended = json.loads(await said(socket, b"x"))
            assert ended["why"] == "the token that opened it holds no more"

    play(story)


def test_a_program_whose_last_word_cannot_be_read_is_over_and_makes_room_for_another(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=Limits(programs=1)) as rig, rig.listening() as address:
            job, lines = await a_job(rig)
            for last, why in (
                (frame(b"x", b"no JSON"), "its node sent b'no JSON', expected how the program has ended"),
                (frame(b"x", b"[]"), "its node sent b'[]', expected how the program has ended"),
                (
                    b"o\xff\xff\xff\xff",
                    "its node sent a frame of 4294967295 bytes, expected at most 1048576",
                ),
            ):
                async with line_to(address, f"{job}/exec", token_of("ada")) as socket:
                    await socket.send(COMMAND)
                    await said(socket, b"i")
                    lines[-1].reader.feed_data(last)
                    assert json.loads(await said(socket, b"x")) == {"status": 137, "why": why}
                assert lines[-1].is_closed

    play(story)


def test_a_client_that_sends_hears_why_its_line_broke(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as address:
            job, lines = await a_job(rig)
            for what in ("exec", "forward?port=80"):
                async with line_to(address, f"{job}/{what}", token_of("ada")) as socket:
                    if what == "exec":
                        await socket.send(COMMAND)
                        await said(socket, b"i")
                    else:
                        await rig.until(lambda: len(lines) == 2 and bool(lines[1].heard))
                    lines[-1].breaks = True
                    await socket.send(b"dmore")
                    await rig.until(lambda: lines[-1].is_tried)
                    lines[-1].reader.set_exception(OSError("srun: refused"))
                    why = json.loads(await said(socket, b"x"))["why"]
                    assert why == "the line to its node is lost: srun: refused"

    play(story)


def test_who_has_as_many_programs_and_connections_as_it_may_begins_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(programs=1, forwards=1)
        async with a_rig(tmp_path, limits=limits) as rig, rig.listening() as address:
            job, lines = await a_job(rig)
            ada = token_of("ada")
            async with line_to(address, f"{job}/exec", ada), line_to(address, f"{job}/forward?port=80", ada):
                assert await refusal(address, f"{job}/exec", ada) == (
                    429,
                    "at most 1 programs of one user at once",
                )
                assert await refusal(address, f"{job}/forward?port=80", ada) == (
                    429,
                    "at most 1 connections of one user at once",
                )
                assert len(lines) == 2
            await rig.until(lambda: all(line.is_closed for line in lines))
            async with line_to(address, f"{job}/exec", ada), line_to(address, f"{job}/forward?port=80", ada):
                assert len(lines) == 4

    play(story)
