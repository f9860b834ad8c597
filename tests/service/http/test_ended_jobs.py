"""Jobs that have left the state: whatever is asked of them is answered as if they had stayed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import NOWHERE, Rig, a_rig, play

from stretto.service.retention.job_retention import make_anew, mend
from stretto.service.state.events import Retired

pytestmark = pytest.mark.sqlite

ARRAY = {"text": "run: 'true'\nname: sweep\narray: '0-2'\nresources: {accelerators: '8'}"}


async def ended(rig: Rig, client: httpx.AsyncClient, key: str = "", **body: str) -> list[str]:
    """Jobs that were submitted and cancelled."""
    answer = await client.post("/api/v1/jobs", json=body or NOWHERE, headers={"idempotency-key": key})
    assert answer.status_code == 201, answer.text
    names: list[str] = answer.json()["ids"]
    for name in names:
        assert (await client.post(f"/api/v1/jobs/{name}/cancel")).status_code == 200
    await rig.until(lambda: all(rig.service.state.jobs[name].has_ended for name in names))
    return names


async def leave(rig: Rig, *names: str) -> None:
    await rig.service.record(Retired(names))
    assert not set(names) & set(rig.service.state.jobs)


async def told(client: httpx.AsyncClient, *paths: str) -> list[Any]:
    """What is answered to each."""
    answers = [await client.get(f"/api/v1/{path}", headers={"x-request-id": "same"}) for path in paths]
    return [(one.status_code, one.text) for one in answers]


@pytest.mark.processes
def test_who_has_left_is_shown_as_before_and_to_the_same_people(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            (first,), tasks = await ended(rig, ada), await ended(rig, ada, **ARRAY)
            (bobs,) = await ended(rig, bob)
            paths = [
                *(f"jobs/{name}" for name in [first, *tasks, bobs]),
                f"jobs/{first}/wait?wait_s=5",
                f"jobs/{first}/log",
                "usage?by=user",
                "usage?by=queue",
                f"jobs/{first}/events",
                f"jobs/{bobs}/events",
                "events?kind=Submitted&kind=Ended",
                "jobs?ended=true",
                "jobs?ended=true&newest=true",
                "jobs?state=CANCELLED&limit=2",
                "jobs?queue=other&ended=true",
                f"jobs?ended=true&after={first}&limit=2",
            ]
            before = [await told(client, *paths) for client in (ada, bob)]
            explained = (await ada.get(f"/api/v1/jobs/{first}/explain")).json()
            moment = {"now": 0.0, "took_ms": 0.0}
            await leave(rig, first, *tasks, bobs)
            assert not rig.service.state.relations.arrays
            for client, answers in zip((ada, bob), before, strict=True):
                for path, after, answer in zip(paths, await told(client, *paths), answers, strict=True):
                    assert after == answer, path
            again = (await ada.get(f"/api/v1/jobs/{first}/explain")).json()
            assert again | moment == explained | moment
            for verb in ("cancel", "hold", "requeue"):
                answer = await ada.post(f"/api/v1/jobs/{first}/{verb}")
                assert (answer.status_code, answer.json()["detail"]) == (
                    409,
                    f"job {first} has ended: CANCELLED",
                )
            answer = await ada.post("/api/v1/jobs/sweep/cancel")
            assert (answer.status_code, answer.json()["detail"]) == (409, "array sweep has ended")
            assert (await bob.post(f"/api/v1/jobs/{first}/cancel")).status_code == 404

    play(story)


def test_pages_of_jobs_go_on_across_those_who_have_left_in_either_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            names = [(await ended(rig, ada))[0] for _ in range(4)]
            names += [await rig.submit("ada", **NOWHERE) for _ in range(2)]
            names += await ended(rig, ada)
            await leave(rig, names[0], names[2], names[6])

            async def pages(newest: bool) -> list[str]:
                found: list[str] = []
                after: str | None = ""
                while after is not None:
                    asked: dict[str, Any] = {"ended": True, "newest": newest, "after": after, "limit": 2}
                    page = (await ada.get("/api/v1/jobs", params=asked)).json()
                    found += [job["id"] for job in page["jobs"]]
                    after = page["next"]
                return found

            assert await pages(False) == names
            assert await pages(True) == names[::-1]

    play(story)


def test_a_key_of_a_job_that_has_left_still_gives_that_job(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            names = await ended(rig, ada, "once", **ARRAY)
            await leave(rig, *names)
            key = {"idempotency-key": "once"}
            again = await ada.post("/api/v1/jobs", json=ARRAY, headers=key)
            assert (again.status_code, again.json()["ids"]) == (200, names)
            other = await ada.post("/api/v1/jobs", json=NOWHERE, headers=key)
            assert (other.status_code, other.json()["detail"][:40]) == (
                422,
                "idempotency key 'once' was used before, "[:40],
            )
            assert other.json()["job"] in names
            assert (await bob.post("/api/v1/jobs", json=ARRAY, headers=key)).status_code == 201

    play(story)


@pytest.mark.slow
@pytest.mark.processes
def test_who_depends_on_a_job_that_has_left_begins_or_never_will_as_if_it_had_stayed(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            names = await ended(rig, ada, text=f"{NOWHERE['text']}1")
            await leave(rig, *names)
            for word in (names[0], "waits1"):
                text = f"{NOWHERE['text']}\ndepends_on: [{{job: {word}, when: %s}}]"
                for when in ("succeeded", "failed", "ended", "started"):
                    foreseen = await ada.post("/api/v1/jobs/dry-run", json={"text": text % when})
                    assert foreseen.status_code == 200
                    job = (await ada.post("/api/v1/jobs", json={"text": text % when})).json()["id"]
                    record = rig.service.state.jobs[job]
                    assert record.after == tuple(names)
                    shown: Callable[[], Any] = partial(rig.service.status_of, record)
                    if when == "succeeded":
                        await rig.until(lambda shown=shown: shown().state == "CANCELLED")  # type: ignore[misc]
                    assert (shown().reason == "DEPENDENCY_FAILED") == (when == "succeeded")
                    assert shown().reason != "DEPENDENCY"
                refused = await bob.post("/api/v1/jobs", json={"text": text % "ended"})
                assert refused.status_code == 422

    play(story)


def test_jobs_leave_once_they_are_old_and_their_ids_are_never_used_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            names = await ended(rig, ada)
            rig.service.state.largest_id = 41  # numbers are taken also by what was never recorded
            names += await ended(rig, ada)
            assert names == ["1", "42"]
            await leave(rig, *names)
            assert await ended(rig, ada) == ["43"]

    play(story)


def test_the_table_is_made_anew_where_it_was_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            names = [*await ended(rig, ada, "k"), *await ended(rig, ada, **ARRAY), *await ended(rig, ada)]
            await leave(rig, *names[:-1])
            table, state = rig.store.ended, rig.service.state
            whole = table.of(names)
            assert len(whole) == len(names) - 1
            table.drop(names[:2])
            mend(rig.store, state)
            assert table.of(names) == whole
            table.add([replace(whole[0], number=99, job=names[-1])])
            mend(rig.store, state)  # a row of a job that is still here
            assert table.of(names) == whole
            make_anew(rig.store, state.seq)
            assert table.of(names) == whole

    play(story)
