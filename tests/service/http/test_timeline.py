"""The timeline: what jobs have held, to whom it is shown, and what is foreseen."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest
from tests.service.http.rig import Rig, a_rig, play

from stretto.service.http.routes.timeline import Row, Sums
from stretto.service.state.events import Decided, QueueSet, Retired
from stretto.service.state.size_changes import Size

pytestmark = pytest.mark.sqlite
TWO = "run: 'true'\nname: two\nresources: {accelerators: '2'}\nexpected_time: 1h"


def told(path: Path, story: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with a_rig(path) as rig:
            await story(rig)

    play(whole)


async def running(rig: Rig, person: str = "ada") -> str:
    """The id of a job that holds two GPUs."""
    name = await rig.submit(person, text=TWO)
    await rig.until(lambda: rig.service.state.jobs[name].accounting.held_gpus == 2)
    return name


def test_means_are_exact_wherever_steps_fall() -> None:
    sums = Sums()
    sums.add(
        Row("a", "", "", [Size(-5.0, 4, "", ""), Size(10.0, 2, "", ""), Size(25.0, 0, "", "")], None, 30.0)
    )
    sums.add(Row("b", "", "", [Size(15.0, 1, "", "")], None, 40.0))
    assert sums.means(np.array([0.0, 10.0, 20.0, 30.0, 40.0])) == [4.0, 2.5, 2.0, 1.0]
    assert Sums().means(np.array([0.0, 1.0])) == [0.0]


def test_a_job_is_shown_with_its_sizes_and_their_reason(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        name = await running(rig)
        async with rig.client("ada") as ada:
            shown = (await ada.get("/api/v1/timeline?hours=1")).json()
            (job,) = shown["jobs"]
            assert (job["id"], job["name"], job["ended_s"], job["is_mean"]) == (name, "two", None, False)
            ((at_s, gpus, _, reason),) = job["steps"]
            assert (gpus, reason) == (2, "fifo decided so: a job was submitted or released")
            assert 0 <= at_s <= shown["now_s"]
            assert len(shown["held"]) == len(shown["areas"][0]["held"]) == 240
            assert shown["held"][-1] == 2
            await ada.post(f"/api/v1/jobs/{name}/cancel")
            await rig.until(lambda: rig.service.state.jobs[name].has_ended)
            (job,) = (await ada.get("/api/v1/timeline")).json()["jobs"]
            assert job["steps"][-1][1:] == [0, "", "the job ended: cancelled"]
            assert job["state"] == "CANCELLED"

    told(tmp_path, story)


def test_users_see_their_own_jobs_and_the_sum_of_all(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        name = await running(rig, "ada")
        async with rig.client("bob") as bob, rig.client("olga") as olga:
            shown = (await bob.get("/api/v1/timeline")).json()
            assert (shown["jobs"], shown["areas"], shown["total"]) == ([], [], 0)
            assert shown["held"][-1] == 2
            shown = (await olga.get("/api/v1/timeline")).json()
            assert [job["id"] for job in shown["jobs"]] == [name]
            foreseen = (await bob.get(f"/api/v1/timeline/forecast?job={name}")).json()
            assert foreseen["jobs"] == {}
            assert foreseen["held"]["middle"][0] == 2

    told(tmp_path, story)


def test_jobs_are_found_and_paged(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.service.log_writer.record(QueueSet("research"))
        first = await running(rig)
        for number in range(5):
            text = f"run: 'true'\nname: job-{number}\nhold: true\nqueue: {'research' if number == 3 else ''}"
            await rig.submit("ada", text=text)
        async with rig.client("ada") as ada:

            async def names(query: str) -> list[str]:
                answer = (await ada.get(f"/api/v1/timeline?{query}")).json()
                return [job["name"] for job in answer["jobs"]]

            shown = (await ada.get("/api/v1/timeline?limit=0")).json()
            assert (shown["total"], shown["waiting"], shown["jobs"]) == (6, 5, [])
            assert await names("limit=2&offset=3") == ["job-2", "job-3"]
            assert await names("find=JOB-4") == ["job-4"]
            assert await names(f"job={first}") == ["two"]
            assert await names("queue=research") == ["job-3"]
            assert await names("queue=nobody") == []

    told(tmp_path, story)


def test_who_has_left_memory_is_shown_by_its_usage_to_the_same_people(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        name = await running(rig)
        async with rig.client("ada") as ada, rig.client("bob") as bob:
            await ada.post(f"/api/v1/jobs/{name}/cancel")
            await rig.until(lambda: rig.service.state.jobs[name].has_ended)
            (before,) = (await ada.get("/api/v1/timeline")).json()["jobs"]
            await rig.service.record(Retired((name,)))
            assert name not in rig.service.state.jobs
            (after,) = (await ada.get("/api/v1/timeline")).json()["jobs"]
            assert (after["id"], after["is_mean"]) == (name, True)
            assert [step[1] for step in after["steps"]] == [2, 0]
            for step, was in zip(after["steps"], before["steps"], strict=True):
                assert step[0] == pytest.approx(was[0], abs=0.01)
            assert (await bob.get("/api/v1/timeline")).json()["jobs"] == []

    told(tmp_path, story)


@pytest.mark.parametrize("query", ["hours=0", "hours=169", "hours=nan", "limit=201", "offset=-1", "hours=x"])
def test_wrong_questions_are_refused(tmp_path: Path, query: str) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("ada") as ada:
            answer = await ada.get(f"/api/v1/timeline?{query}")
            assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
            assert query.partition("=")[0] in answer.json()["detail"]

    told(tmp_path, story)


@pytest.mark.slow
def test_a_forecast_has_the_end_of_a_job_and_the_start_of_the_next(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        first = await running(rig)
        capacity = sum(node.gpus for node in rig.service.state.nodes)
        waits = await rig.submit(
            "ada",
            text=f"run: 'true'\nname: waits\nresources: {{accelerators: '{capacity}'}}\nexpected_time: 1h",
        )
        async with rig.client("ada") as ada:
            answer = await ada.get(f"/api/v1/timeline/forecast?hours=3&job={first}&job={waits}&draws=3")
            assert answer.status_code == HTTPStatus.OK, answer.text
            shown = answer.json()
            assert shown["draws"] == 3
            assert len(shown["held"]["middle"]) == 61
            now, later = shown["jobs"][first]["held"], shown["jobs"][waits]["held"]
            assert now["middle"][0] == 2
            assert now["high"][-1] == 0
            assert later["high"][0] == 0
            assert capacity in later["middle"]
            for fan in (now, later, shown["held"]):
                for low, middle, high in zip(fan["low"], fan["middle"], fan["high"], strict=True):
                    assert low is None or low <= middle <= high <= capacity

    told(tmp_path, story)


@pytest.mark.slow
def test_a_what_if_may_be_without_some_of_ones_own_jobs(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        first = await running(rig)
        next_one = await rig.submit("bob", text=f"{TWO}\ndepends_on: []")
        async with rig.client("ada") as ada, rig.client("bob") as bob:
            answer = await ada.post("/api/v1/whatif", json={"without": [first], "draws": 1})
            assert answer.status_code == HTTPStatus.OK, answer.text
            sides = answer.json()
            assert [job["id"] for job in sides["present"]["jobs"]] == [first]
            assert sides["changed"]["jobs"] == []
            refused = await bob.post("/api/v1/whatif", json={"without": [first]})
            assert refused.status_code == HTTPStatus.NOT_FOUND
            await bob.post(f"/api/v1/jobs/{next_one}/cancel")
            await rig.until(lambda: rig.service.state.jobs[next_one].has_ended)
            refused = await bob.post("/api/v1/whatif", json={"without": [next_one]})
            assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
            assert next_one in refused.json()["detail"]

    told(tmp_path, story)


def test_policies_that_a_what_if_may_name_are_listed(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("ada") as ada:
            shown = (await ada.get("/api/v1/policies")).json()
            assert shown["current"] == "fifo"
            assert {"fifo", "sia", "tiresias"} <= set(shown["policies"])

    told(tmp_path, story)


def test_what_was_held_is_known_after_a_restart(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        from stretto.service.eventlog.writer import fold
        from stretto.service.state.state import State

        name = await running(rig)
        again = State()
        for recorded in rig.store.read():
            fold(again, recorded)
        assert again.jobs[name].size_changes == rig.service.state.jobs[name].size_changes != []
        assert any(recorded.kind == Decided.__name__ for recorded in rig.store.read())

    told(tmp_path, story)


def test_a_forecast_begins_when_its_turn_has_come(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("ada") as ada:
            async with rig.service.long_work.turns.turn("ada"):
                asking = asyncio.create_task(ada.get("/api/v1/timeline/forecast?hours=1"))
                await running(rig)
                earliest_s = rig.service.clock.now_s()
            answer = await asking
        assert answer.status_code == HTTPStatus.OK
        assert answer.json()["now_s"] >= earliest_s

    told(tmp_path, story)
