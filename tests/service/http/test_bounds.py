"""What is too large, too slow or no request at all is refused, and nothing is started by it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import SMALL, a_rig, play, token_of

from stretto.jobfile import JobSpec
from stretto.service.eventlog.log import Store
from stretto.service.http import schemas
from stretto.service.http.rate_limits import Limits

pytestmark = pytest.mark.sqlite

MIB = 1 << 20


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        pytest.param("POST", "/api/v1/jobs", b"{", 422, id="half a JSON"),
        pytest.param("POST", "/api/v1/jobs", b"[" * 100_000, 400, id="JSON that is too deep"),
        pytest.param("POST", "/api/v1/jobs", b'{"text": "\xff"}', 400, id="no UTF-8"),
        pytest.param("POST", "/api/v1/jobs", b"null", 422, id="nothing"),
        pytest.param("POST", "/api/v1/jobs", b'{"text": 1}', 422, id="a number for a text"),
        pytest.param("POST", "/api/v1/jobs", b'{"text": "run: x", "root": true}', 422, id="an unknown key"),
        pytest.param("POST", "/api/v1/jobs", rb'{"text": "run: \ud800"}', 422, id="half a character"),
        pytest.param("POST", "/api/v1/jobs", rb'{"text": "run: x\u0000y"}', 422, id="NUL"),
        pytest.param(
            "POST", "/api/v1/jobs", b'{"text": "run: x\\nworkdir: ../../etc"}', 422, id="workdir above"
        ),
        pytest.param(
            "POST", "/api/v1/jobs", b'{"text": "run: x\\nworkdir: a/../../b"}', 422, id="workdir winding"
        ),
        pytest.param("POST", "/api/v1/jobs", b'{"text": "run: x\\nname: ../x"}', 422, id="a path for a name"),
        pytest.param("PATCH", "/api/v1/jobs", b"{}", 405, id="a wrong method"),
        pytest.param("GET", "/api/v1/jobs/1/cancel", b"", 405, id="reading a verb"),
        pytest.param("GET", "/api/v1/nowhere", b"", 404, id="no such route"),
        pytest.param("GET", "/api/v1/jobs/..%2f..%2fetc%2fpasswd/log", b"", 404, id="a path for a job"),
        pytest.param("GET", "/api/v1/jobs/1%00/log", b"", 404, id="NUL in a job"),
        pytest.param("GET", "/api/v1/jobs/1/log?rank=../../x", b"", 422, id="a path for a rank"),
        pytest.param("GET", "/api/v1/jobs/1/log?rank=-1", b"", 422, id="a rank below zero"),
        pytest.param("GET", "/api/v1/jobs/1/log?attempt=9999999999999999999", b"", 422, id="a huge attempt"),
        pytest.param("GET", "/api/v1/jobs/1/log?offset=1e400", b"", 422, id="an endless offset"),
        pytest.param("GET", "/api/v1/jobs/1/wait?wait_s=nan", b"", 422, id="waiting for NaN"),
        pytest.param("GET", "/api/v1/jobs?limit=100000000", b"", 422, id="a page of everything"),
        pytest.param("GET", "/api/v1/jobs?after=nobody", b"", 422, id="a cursor that is none"),
        pytest.param("GET", "/api/v1/jobs?state=SLEEPING", b"", 422, id="a state that is none"),
        pytest.param(
            "GET", "/api/v1/events?after=99999999999999999999", b"", 422, id="an event beyond numbers"
        ),
        pytest.param("POST", "/api/v1/nodes/..%2f/drain", b"", 404, id="a path for a node"),
        pytest.param("PUT", "/api/v1/queues/..%2fx", b"{}", 404, id="a path for a queue"),
        pytest.param("PUT", "/api/v1/queues/x", b'{"weight": 1e999}', 422, id="an endless weight"),
        pytest.param("POST", "/api/v1/tokens", b'{"name": "a b", "user": "x"}', 422, id="a token's name"),
        pytest.param(
            "POST", "/api/v1/tokens", b'{"name": "a", "user": "x", "role": "god"}', 422, id="a role"
        ),
    ],
)
def test_a_request_that_is_wrong_is_told_so_in_one_line(
    tmp_path: Path, method: str, path: str, content: bytes, status: int
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            answer = await root.request(
                method, path, content=content, headers={"content-type": "application/json"}
            )
            assert answer.status_code == status, answer.text
            said = schemas.ProblemShown.model_validate(answer.json())
            assert said.request_id == answer.headers["x-request-id"]
            assert "\n" not in said.detail
            assert "Traceback" not in answer.text
            assert not rig.backend.started

    play(story)


def test_a_wrong_method_is_told_the_right_ones(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            for path, methods in (
                ("/api/v1/jobs", "GET, POST"),
                ("/api/v1/tokens", "GET, POST"),
                ("/api/v1/jobs/1", "GET"),
                ("/api/v1/queues/long", "DELETE, PUT"),
            ):
                answer = await root.request("OPTIONS", path)
                assert (answer.status_code, answer.headers["allow"]) == (405, methods)
                assert "access-control-allow-origin" not in answer.headers  # pages of others get nothing

    play(story)


@pytest.mark.sockets
def test_a_job_file_of_100_mb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as (host, port):
            url, headers = f"http://{host}:{port}/api/v1/jobs", {"authorization": f"Bearer {token_of('ada')}"}
            sent = 0

            def pieces() -> Iterator[bytes]:
                nonlocal sent
                for _ in range(100):
                    sent += MIB
                    yield b"x" * MIB

            def ask(content: bytes | Iterator[bytes]) -> httpx.Response:
                return httpx.post(url, content=content, headers=headers, trust_env=False, timeout=60)

            whole = await asyncio.to_thread(ask, b"x" * 100 * MIB)
            assert (whole.status_code, whole.headers["connection"]) == (413, "close")
            assert (await asyncio.to_thread(ask, pieces())).status_code == 413
            assert sent < 50 * MIB
            assert not rig.service.state.jobs

    play(story)


async def spoken(host: str, port: int, said: bytes, hangs_up: bool = False) -> bytes:
    """What a server answers to bytes; b"" where nobody stays to listen."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(said)
    await writer.drain()
    answer = b"" if hangs_up else await reader.read(65536)
    writer.close()
    return answer


def request_of(body: bytes, key: str, length: int | None = None) -> bytes:
    return (
        f"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token_of('ada')}\r\n"
        f"content-type: application/json\r\nidempotency-key: {key}\r\n"
        f"content-length: {len(body) if length is None else length}\r\n\r\n"
    ).encode() + body


@pytest.mark.sockets
def test_who_hangs_up_after_the_whole_submission_has_submitted_and_before_has_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.listening() as (host, port):
            body = json.dumps(SMALL).encode()
            for number in range(30):
                await spoken(host, port, request_of(body, f"whole-{number}"), hangs_up=True)
                half = request_of(body[: number % len(body)], f"half-{number}", len(body))
                await spoken(host, port, half, hangs_up=True)
            await rig.until(lambda: len(rig.service.state.jobs) == 30)
            async with rig.client("ada") as ada:
                for number in range(30):
                    headers = {"idempotency-key": f"whole-{number}"}
                    assert (await ada.post("/api/v1/jobs", json=SMALL, headers=headers)).status_code == 200
                    headers = {"idempotency-key": f"half-{number}"}
                    assert (await ada.post("/api/v1/jobs", json=SMALL, headers=headers)).status_code == 201
            assert len(rig.service.state.jobs) == 60

    play(story)


@pytest.mark.sockets
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(
            b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"a" * 200_000 + b"\r\n\r\n", id="huge headers"
        ),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS"),
        pytest.param(b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", id="a length that is none"),
        pytest.param(
            b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", id="two lengths"
        ),
    ],
)
def test_what_is_no_request_gets_a_problem_too(tmp_path: Path, said: bytes) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as (host, port):
            answer = await spoken(host, port, said)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"application/problem+json" in answer
            assert (await spoken(host, port, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")

    play(story)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("said", "answered"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nlong: " + b"a" * 40_000, b"HTTP/1.1 400 ", id="headers"),
        pytest.param(request_of(b"{", "long", 8 * MIB), b"HTTP/1.1 413 ", id="a body"),
    ],
)
def test_who_still_sends_what_was_refused_is_told_so_and_sees_no_error(
    tmp_path: Path, said: bytes, answered: bytes
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            answer = await reader.readuntil(b"}")
            for _ in range(4):
                writer.write(b"a" * 1000)
                await writer.drain()
                await asyncio.sleep(0.01)  # an error of the line would be seen by the next drain
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            assert answer.startswith(answered)
            assert not rig.service.state.jobs

    play(story)


@pytest.mark.sockets
def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=Limits(body_s=0.2)) as rig, rig.listening() as (host, port):
            answer = await spoken(host, port, request_of(b"{", "slow", 100))
            assert answer.startswith(b"HTTP/1.1 408 ")

    play(story)


def test_a_store_that_does_not_answer_is_said_and_the_job_is_there_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with (
            a_rig(tmp_path, limits=Limits(durable_s=0.1), decides=False) as rig,
            rig.client("ada") as ada,
        ):
            go_on = threading.Event()
            append = Store.append

            def later(*given: Any) -> Any:
                go_on.wait(60.0)
                return append(*given)

            monkeypatch.setattr(Store, "append", later)
            key = {"idempotency-key": "patient"}
            answer = await ada.post("/api/v1/jobs", json=SMALL, headers=key)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            go_on.set()
            await rig.until(lambda: rig.service.state.jobs)
            assert (await ada.post("/api/v1/jobs", json=SMALL, headers=key)).status_code == 200

    play(story)


def test_a_fault_is_told_without_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            monkeypatch.setattr(rig.service, "status_of", lambda record: 1 / 0)
            job = await rig.service.submit(JobSpec("true"), "ada")
            answer = await ada.get(f"/api/v1/jobs/{job.names[0]}")
            assert answer.status_code == 500
            assert (
                schemas.ProblemShown.model_validate(answer.json()).detail == "this is a fault of the service"
            )
            assert "division" not in answer.text

    play(story)
