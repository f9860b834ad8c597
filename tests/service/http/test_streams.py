"""Streams of events and logs: from where the reader left off, as it happens, to the end."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import NOWHERE, Rig, a_rig, play, token_of

from stretto.service.http.rate_limits import Limits
from stretto.service.state.events import Prioritised

pytestmark = [pytest.mark.sockets, pytest.mark.sqlite]


async def events_in(answer: httpx.Response) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """(id, event, data) of a stream."""
    said: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            key, _, value = line.partition(": ")
            said[key] = value
        elif "data" in said:
            yield said.get("id", ""), said.get("event", ""), json.loads(said["data"])
            said = {}


def web(address: tuple[str, int], person: str = "ada") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://{address[0]}:{address[1]}",
        headers={"authorization": f"Bearer {token_of(person)}"},
        trust_env=False,
    )


def test_who_is_cut_off_again_and_again_sees_every_event_once_and_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig, rig.listening() as address, web(address) as ada:
            job = await rig.submit("ada")
            path, last = f"/api/v1/jobs/{job}/events?follow=true", ""
            seen: list[int] = []
            changes = asyncio.create_task(_changes(rig, job, 200))
            while 200 not in seen:
                headers = {"last-event-id": last} if last else {}
                async with ada.stream("GET", path, headers=headers) as answer:
                    assert answer.headers["content-type"].startswith("text/event-stream")
                    count = 0
                    async for last, kind, data in events_in(answer):
                        assert str(data["seq"]) == last
                        if kind == "Prioritised":
                            seen.append(data["priority"])
                        count += 1
                        if count == 23 or 200 in seen:
                            break  # and hang up
            await changes
            assert seen == list(range(1, 201))

    play(story)


async def _changes(rig: Rig, job: str, count: int) -> None:
    for number in range(1, count + 1):
        await rig.service.record(Prioritised(job, number))


def test_who_is_far_behind_is_told_from_the_store_and_goes_on_from_memory(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            feed = rig.app.state.feed
            feed.kept = 50
            job = await rig.submit("ada")
            await rig.service.record(*(Prioritised(job, number) for number in range(1_300)))
            async with rig.client("ada") as ada:
                for path in (f"/api/v1/jobs/{job}/events", "/api/v1/events"):
                    text = (await ada.get(path)).text
                    said = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
                    told = [one["priority"] for one in said if one["kind"] == "Prioritised"]
                    assert told == list(range(1_300))

    play(story)


def test_a_stream_of_a_job_ends_with_it_and_need_not_be_taken_up_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as address, web(address) as ada:
            job = await rig.submit("ada")
            path = f"/api/v1/jobs/{job}/events?follow=true"
            async with ada.stream("GET", path) as answer:
                found = events_in(answer)
                assert (await anext(found))[1] == "Submitted"
                await rig.until(lambda: rig.backend.started)
                await rig.backend.finish(f"{job}.1.0")
                told = [(last, kind) async for last, kind, _ in found]
            assert told[-1][1] == "Ended"
            again = await ada.get(path, headers={"last-event-id": told[-1][0]})
            assert again.status_code == 204

    play(story)


def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as address, web(address) as ada:
            async with ada.stream("GET", "/api/v1/events?follow=true&after=-1") as answer:
                await rig.until(lambda: rig.app.state.places.taken)
                async with rig.client("root") as root:
                    await root.delete("/api/v1/tokens/ada")
                assert [one async for one in events_in(answer)] == []
            await rig.until(lambda: not rig.app.state.places.taken)

    play(story)


def test_one_user_follows_so_many_streams_at_once_and_places_come_free(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            a_rig(tmp_path, limits=Limits(streams=1)) as rig,
            rig.listening() as address,
            web(address) as ada,
        ):
            path = "/api/v1/events?follow=true"
            async with ada.stream("GET", path):
                await rig.until(lambda: rig.app.state.places.taken)
                assert (await ada.get(path)).status_code == 429
                async with web(address, "bob") as bob, bob.stream("GET", path) as answer:
                    assert answer.status_code == 200
            await rig.until(lambda: not rig.app.state.places.taken)

    play(story)


def test_of_many_streams_that_come_at_once_exactly_so_many_have_a_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, limits=Limits(streams=8)) as rig, rig.listening() as address:
            statuses: list[int] = []
            over = asyncio.Event()

            async def follow() -> None:
                async with web(address) as ada, ada.stream("GET", "/api/v1/events?follow=true") as answer:
                    statuses.append(answer.status_code)
                    await over.wait()

            following = [asyncio.create_task(follow()) for _ in range(40)]
            await rig.until(lambda: len(statuses) == 40)
            assert sorted(statuses) == [200] * 8 + [429] * 32
            assert rig.app.state.places.taken == {"ada": 8}
            over.set()
            await asyncio.gather(*following)
            await rig.until(lambda: not rig.app.state.places.taken)

    play(story)


def test_a_log_is_followed_to_its_end_and_taken_up_where_it_was_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as address, web(address) as ada:
            job = await rig.submit("ada")
            await rig.until(lambda: rig.backend.started)
            whole = "".join(f"Schritt {number} 🎻\n" for number in range(100)).encode()
            worker, read, last = f"{job}.1.0", "", "0"

            async def write() -> None:
                for begin in range(0, len(whole), 13):
                    await rig.backend.write(worker, whole[begin : begin + 13])
                    await asyncio.sleep(0)
                await rig.backend.finish(worker)

            writing = asyncio.create_task(write())
            ended = False
            while not ended:
                headers = {"last-event-id": last}
                async with ada.stream("GET", f"/api/v1/jobs/{job}/log/follow", headers=headers) as answer:
                    count = 0
                    async for at, kind, data in events_in(answer):
                        ended = kind == "end"
                        if kind == "log":
                            read, last, count = read + data["text"], at, count + 1
                        if count == 9:
                            break
            await writing
            assert read == whole.decode()

    play(story)


@pytest.mark.parametrize("path", ["log", "log/follow"])
def test_the_log_of_a_job_that_waits_is_not_there_and_why_is_said(tmp_path: Path, path: str) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            job = await rig.submit(**NOWHERE)
            answer = await ada.get(f"/api/v1/jobs/{job}/{path}")
            assert answer.status_code == 404
            why = f"job {job} is PENDING, and a log begins with its worker"
            assert answer.json()["detail"] == f"no worker '{job}.1.0': {why}"

    play(story)
