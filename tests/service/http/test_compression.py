"""The stream of a page in gzip: a tenth of the bytes, and every part is there at once."""

import json
import zlib
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers
from tests.service.http.rig import Rig, a_rig, play, token_of

from stretto.service.http.compression import IN_PLACE, accepts_gzip

pytestmark = [pytest.mark.sqlite, pytest.mark.sockets]


async def submit(rig: Rig, name: str) -> None:
    await rig.submit("ada", text=f"{{name: {name}, run: 'true'}}")


@pytest.mark.parametrize(
    ("given", "accepts"),
    [
        ("gzip", True),
        ("deflate, GZip;q=0.5, br", True),
        ("br, *", True),
        ("identity;q=1, gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("*;q=0", False),
        ("x-gzip2", False),
        ("", False),
    ],
)
def test_a_caller_that_can_read_gzip_says_so(given: str, accepts: bool) -> None:
    assert accepts_gzip(Headers({"accept-encoding": given} if given else {})) is accepts


def test_the_overview_is_small_in_gzip_and_says_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.client("ada") as client:
            for number in range(60):
                await submit(rig, f"train-{number}")
            plain = await client.get("/api/v1/overview", headers={"accept-encoding": "identity"})
            async with client.stream(
                "GET", "/api/v1/overview", headers={"accept-encoding": "gzip"}
            ) as packed:
                raw = b"".join([part async for part in packed.aiter_raw()])
            assert "content-encoding" not in plain.headers
            assert packed.headers["content-encoding"] == "gzip"
            assert {plain.headers["vary"], packed.headers["vary"]} == {"accept-encoding"}
            told = [
                json.loads(text.partition("data: ")[2])
                for text in (plain.text, zlib.decompress(raw, 31).decode())
                for text in text.split("\n\n")
                if "data: " in text
            ]
            assert [job["name"] for job in told[0]["jobs"]] == [job["name"] for job in told[-1]["jobs"]]
            assert len(plain.content) > IN_PLACE / 4
            assert len(raw) < len(plain.content) / 8

    play(story)


def test_a_page_that_follows_hears_of_each_change_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.listening() as (host, port):
            headers = {"accept-encoding": "gzip", "authorization": f"Bearer {token_of('ada')}"}
            async with (
                httpx.AsyncClient(
                    base_url=f"http://{host}:{port}", headers=headers, trust_env=False
                ) as client,
                client.stream("GET", "/api/v1/overview?follow=true") as answer,
            ):
                assert answer.headers["content-encoding"] == "gzip"
                lines = answer.aiter_lines()

                async def next_jobs() -> list[str]:
                    async for line in lines:
                        if line.startswith("data: ") and "jobs" in (told := json.loads(line[6:])):
                            return [job["name"] for job in told["jobs"]]
                    raise AssertionError("the stream ended")

                assert await next_jobs() == []
                await submit(rig, "first")
                assert await next_jobs() == ["first"]
                await submit(rig, "second")
                assert await next_jobs() == ["second"]

    play(story)


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/jobs"])
def test_what_may_hold_secrets_is_not_compressed(tmp_path: Path, path: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as client:
            await rig.submit("ada")
            answer = await client.get(path, headers={"accept-encoding": "gzip"})
            assert answer.status_code == 200
            assert "content-encoding" not in answer.headers

    play(story)
