"""Connections that ask for nothing, too slowly or too much: they end, and others are served meanwhile."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from tests.service.files_left import files_left
from tests.service.http.rig import Rig, a_rig, play, token_of

from stretto.agent import open_files
from stretto.service.http import server
from stretto.service.http.connections import Connections, network_of
from stretto.service.http.rate_limits import Limits

pytestmark = [pytest.mark.sockets, pytest.mark.sqlite]

BRIEF = Limits(head_s=0.2)
ADA = f"authorization: Bearer {token_of('ada')}\r\n".encode()
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request(path: str, more: bytes = b"", body: bytes = b"") -> bytes:
    method = b"POST" if body else b"GET"
    length = f"content-length: {len(body)}\r\n".encode() if body else b""
    return method + f" {path} HTTP/1.1\r\nhost: x\r\n".encode() + more + length + b"\r\n" + body


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, which is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1])


# ── time ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        pytest.param(b"", b"", id="nothing"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nx-a: ", b"HTTP/1.1 408 ", id="half a head"),
        pytest.param(request("/healthz"), b"HTTP/1.1 200 ", id="nothing more, without a token"),
        pytest.param(request("/healthz") + b"GET", b"HTTP/1.1 200 ", id="the begin of a second request"),
        pytest.param(
            b"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
            b"HTTP/1.1 401 ",
            id="half a body that nobody wants",
        ),
    ],
)
def test_a_connection_that_asks_for_nothing_is_closed(tmp_path: Path, said: bytes, answered: bytes) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=BRIEF) as rig, rig.listening() as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            answer = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            assert answer.startswith(answered)
            assert bool(answer) == bool(answered)
            await rig.until(lambda: not rig.app.state.connections.count)
            assert rig.app.state.connections.closed["slow"] == 1

    play(story)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=BRIEF) as rig, rig.listening() as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /healthz HTTP/1.1\r\nx-a: ")

            async def drip() -> None:
                while True:
                    writer.write(b"a")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            assert (await asyncio.wait_for(reader.readuntil(b"}"), 20)).startswith(b"HTTP/1.1 408 ")
            dripping.cancel()
            writer.close()

    play(story)


def test_a_connection_with_a_good_token_may_rest_longer(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=BRIEF) as rig, rig.listening() as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request("/api/v1/jobs", ADA))
            assert await status_of(reader) == 200
            silent, other = await asyncio.open_connection(host, port)
            assert await asyncio.wait_for(silent.read(), 20) == b""  # as long as that is not waited for
            writer.write(request("/api/v1/jobs", ADA))
            assert await status_of(reader) == 200
            writer.close()
            other.close()

    play(story)


def test_who_sends_no_more_gets_the_answer_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.listening() as (host, port):
            body = json.dumps({"text": "run: 'true'"}).encode()
            for said, status in (
                (request("/healthz"), b"200"),
                (request("/api/v1/jobs", ADA + b"content-type: application/json\r\n", body), b"201"),
            ):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(said)
                writer.write_eof()
                answer = await asyncio.wait_for(reader.read(), 20)
                assert answer.startswith(b"HTTP/1.1 " + status)
                writer.close()
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /healthz HT")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()

    play(story)


def test_who_sends_no_more_is_not_kept_waiting_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HALF_CLOSED_S", 0.1)

    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.listening() as (host, port):
            job = await rig.submit("ada")
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request(f"/api/v1/jobs/{job}/wait?wait_s=60", ADA))
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()

    play(story)


def test_a_reader_who_does_not_read_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 0.2)

    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.listening() as (host, port):
            for _ in range(200):
                await rig.submit("ada")
            reader, writer = await asyncio.open_connection(host, port, limit=1)
            for _ in range(100):  # more than the buffers of both sides hold
                writer.write(request("/api/v1/jobs?limit=1000", ADA))
            await rig.until(lambda: rig.app.state.connections.count == 1)
            await rig.until(lambda: rig.app.state.connections.count == 0)
            writer.close()
            assert reader is not None

    play(story)


# ── room ──────────────────────────────────────────────────────────────────────────────────────────


async def open_many(address: tuple[str, int], count: int, said: bytes = b"") -> list[Line]:
    lines = []
    for _ in range(count):
        line = await asyncio.open_connection(*address)
        line[1].write(said)
        lines.append(line)
    return lines


def hang_up(lines: list[Line]) -> None:
    for _, writer in lines:
        writer.close()


async def health(address: tuple[str, int]) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return (await client.get(f"http://{address[0]}:{address[1]}/healthz")).status_code


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nx-a: "], ids=["silent", "half a head"])
def test_silent_connections_make_way_for_whoever_asks(tmp_path: Path, said: bytes) -> None:
    async def story() -> None:
        limits = Limits(connections=24, head_s=600.0)
        async with a_rig(tmp_path, limits=limits) as rig, rig.listening() as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request("/api/v1/jobs", ADA))
            assert await status_of(reader) == 200
            lines = await open_many(address, 200, said)
            table: Connections = rig.app.state.connections
            await rig.until(lambda: table.closed["crowded"] >= 200 + 1 - 24)
            assert [await health(address) for _ in range(20)] == [200] * 20
            writer.write(request("/api/v1/jobs", ADA))  # one with a good token has kept its place
            assert await status_of(reader) == 200
            assert table.count <= 24
            hang_up([*lines, (reader, writer)])

    play(story)


def test_requests_under_way_keep_their_places_and_others_are_told_to_come_back(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(connections=8, requests=1_000)
        async with a_rig(tmp_path, limits=limits, decides=False) as rig, rig.listening() as address:
            job = {person: await rig.submit(person) for person in ("ada", "bob")}
            lines = []
            for person, name in job.items():
                header = f"authorization: Bearer {token_of(person)}\r\n".encode()
                lines += await open_many(address, 4, request(f"/api/v1/jobs/{name}/wait?wait_s=60", header))
            await rig.until(lambda: sum(_together(rig).values()) == 8)
            async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                answer = await client.get(f"http://{address[0]}:{address[1]}/healthz")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == 503
            async with rig.client("root") as root:
                for name in job.values():
                    await root.post(f"/api/v1/jobs/{name}/cancel")
            for reader, _ in lines:
                assert await status_of(reader) == 200
            assert await health(address) == 200
            hang_up(lines)

    play(story)


def _together(rig: Rig) -> dict[str, int]:
    taken: dict[str, int] = rig.app.state.together.taken
    return taken


def test_one_user_has_so_many_requests_under_way_and_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=Limits(requests=5), decides=False) as rig:
            job = await rig.submit("ada")
            async with rig.client("ada") as ada, rig.client("bob") as bob:
                waits = [asyncio.create_task(ada.get(f"/api/v1/jobs/{job}/wait?wait_s=60")) for _ in range(5)]
                await rig.until(lambda: _together(rig) == {"user ada": 5})
                refused = await ada.get("/api/v1/jobs")
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
                assert refused.json()["detail"] == "at most 5 requests of one user at once"
                assert (await bob.get("/api/v1/jobs")).status_code == 200
                async with rig.client("root") as root:
                    await root.post(f"/api/v1/jobs/{job}/cancel")
                assert {(await one).status_code for one in waits} == {200}
                assert (await ada.get("/api/v1/jobs")).status_code == 200
                assert not _together(rig)

    play(story)


class Told:
    """A connection that is told to close, and does so when it is let."""

    def __init__(self, table: Connections, address: str, is_trusted: bool = False) -> None:
        self.dropped = False
        table.enter(self, address)
        if is_trusted:
            table.rest(self, True)

    def drop(self) -> None:
        self.dropped = True


def test_who_makes_way_is_of_the_largest_network_and_showed_no_token() -> None:
    table = Connections(6, 100)
    lone = Told(table, "10.0.0.1")
    good, first, second, busy = (Told(table, "10.0.0.2", trusted) for trusted in (True, False, False, False))
    table.work(busy)
    other = Told(table, "10.0.0.3")
    assert table.admit("10.0.0.9", 3)
    assert [one.dropped for one in (lone, good, first, second, busy, other)] == [
        False, False, True, False, False, False,
    ]  # fmt: skip
    table.leave(first)
    table.enter(first, "10.0.0.9")
    for expected in (second, first, other, lone, good):
        assert table.admit("10.0.0.9", 3), expected
        assert expected.dropped
    assert not busy.dropped
    assert not table.admit("10.0.0.9", 3)


def test_one_address_has_so_many_but_this_machine_may_speak_for_others() -> None:
    table = Connections(100, 2)
    lines = [Told(table, "2001:db8::1"), Told(table, "2001:db8::2")]
    assert table.admit("2001:db8::3", 3)
    assert [one.dropped for one in lines] == [True, False]
    for _ in range(5):
        assert table.admit("127.0.0.1", 3)
        Told(table, "127.0.0.1")
    for one in lines:
        table.work(one)
    assert not table.admit("2001:db8::4", 3)
    assert table.admit("2001:db8:1::4", 3)


def test_newcomers_wait_while_many_are_being_closed() -> None:
    table = Connections(16, 100)
    lines = [Told(table, "10.0.0.1") for _ in range(16)]
    for _ in range(4):
        assert not table.is_settling()
        assert table.admit("10.0.0.1", 3)
    assert table.is_settling()
    for one in lines[:4]:
        table.leave(one)
    assert not table.is_settling()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        pytest.param("10.0.0.1", "10.0.0.1", id="version 4"),
        pytest.param("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::", id="version 6"),
        pytest.param("fe80::1%eth0", "fe80::", id="of a link"),
        pytest.param("::ffff:10.0.0.1", "10.0.0.1", id="version 4 within 6"),
        pytest.param("::1", "::1", id="this machine"),
        pytest.param("", "", id="none"),
    ],
)
def test_an_address_of_version_6_stands_for_its_network(address: str, network: str) -> None:
    assert network_of(address) == network


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def test_connections_leave_the_files_alone_that_the_service_needs_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=Limits(head_s=600.0)) as rig, rig.listening() as address:
            with files_left(2 * 100 + open_files.RESERVE + 10):  # both ends are files of this process
                lines = await open_many(address, 100)
                opened = [(tmp_path / "log.db").open("rb") for _ in range(open_files.RESERVE // 2)]
                assert len({one.fileno() for one in opened}) == open_files.RESERVE // 2
                more = await open_many(address, 10)
                for one in opened:
                    one.close()
            assert open_files.can_open()
            hang_up([*lines, *more])

    play(story)


def test_a_lack_of_files_is_told_from_other_failures() -> None:
    with files_left(0):
        assert not open_files.can_open()
        with pytest.raises(OSError, match="Too many open files") as caught:
            Path("/dev/null").open("rb")  # noqa: SIM115  (which cannot be)
        wrapped = RuntimeError("wrapped")
        wrapped.__cause__ = caught.value
        assert open_files.are_short(wrapped)
    assert open_files.can_open()
    assert not open_files.are_short(ConnectionRefusedError(111, "refused"))
    assert not open_files.are_short(None)
