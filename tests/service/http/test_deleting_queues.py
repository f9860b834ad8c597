"""A queue that nothing is in can be deleted; one that something is in cannot, and a line says what it is."""

import time
from pathlib import Path

import pytest
from tests.service.http.rig import Rig, a_rig, play
from tests.service.scene import Scene

from stretto.service.eventlog import open_store
from stretto.service.state.events import QueueDeleted, QueueSet

pytestmark = pytest.mark.sqlite


async def put(rig: Rig, name: str, **bounds: object) -> None:
    async with rig.client("root") as root:
        assert (await root.put(f"/api/v1/queues/{name}", json=bounds)).is_success


async def delete(rig: Rig, name: str, person: str = "root") -> tuple[int, str]:
    """The status, and what is said beside it."""
    async with rig.client(person) as client:
        answer = await client.delete(f"/api/v1/queues/{name}")
        return answer.status_code, answer.json()["detail"] if answer.content else ""


def test_what_is_in_a_queue_keeps_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            await put(rig, "lab", quota_gpus=4)
            await put(rig, "vision", quota_gpus=2, parent="lab")
            assert await delete(rig, "lab") == (409, "queue lab cannot be deleted: vision is in it")
            job = await rig.submit("ada", text="run: sleep\nqueue: vision")
            assert await delete(rig, "vision") == (
                409,
                f"queue vision cannot be deleted: job {job} is in it and has not ended",
            )
            async with rig.client("ada") as ada:
                await ada.post(f"/api/v1/jobs/{job}/cancel")
            await rig.until(lambda: rig.service.state.jobs[job].has_ended)
            asks = {"end": time.time() + 600, "gpu_type": "a100", "gpus": 1, "queue": "vision"}
            async with rig.client("olga") as olga:
                answer = await olga.put("/api/v1/reservations/talk", json=asks)
                assert answer.is_success, answer.text
                said = "queue vision cannot be deleted: GPUs are reserved for it: talk"
                assert await delete(rig, "vision") == (409, said)
                assert (await olga.delete("/api/v1/reservations/talk")).is_success
            assert await delete(rig, "vision") == (204, "")
            assert await delete(rig, "lab") == (204, "")
            assert list(rig.service.state.queues) == ["default"]

    play(story)


def test_a_queue_that_there_is_not_and_one_that_others_may_delete(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            await put(rig, "lab", quota_gpus=4)
            assert await delete(rig, "nowhere") == (404, "no queue 'nowhere'")
            for person in ("ada", "olga"):
                assert (await delete(rig, "lab", person))[0] == 403
            assert "lab" in rig.service.state.queues

    play(story)


def test_the_default_queue_stays_as_long_as_there_are_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            await put(rig, "lab")
            assert await delete(rig, "default") == (
                409,
                "queue default cannot be deleted: it is there as long as others are: lab",
            )
            assert (await delete(rig, "lab"))[0] == 204
            assert (await delete(rig, "default"))[0] == 204
            job = await rig.submit("ada", text="run: sleep\nqueue: anything")
            assert rig.service.state.jobs[job].queue == "anything", "as before any queue was set"

    play(story)


def test_a_deleted_queue_may_not_be_named_and_is_gone_after_a_restart_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            await put(rig, "lab", quota_gpus=4)
            await put(rig, "other", quota_gpus=4)
            assert (await delete(rig, "lab"))[0] == 204
            async with rig.client("ada") as ada:
                answer = await ada.post("/api/v1/jobs", json={"text": "run: sleep\nqueue: lab"})
                expected = "queue: expected one of default, other, got 'lab'"
                assert (answer.status_code, answer.json()["detail"]) == (422, expected)
        with open_store(tmp_path / "log.db") as store:
            kinds = [recorded.kind for recorded in store.read()]
        assert kinds.count("QueueDeleted") == 1

    play(story)


def test_a_job_that_comes_while_its_queue_is_deleted_is_in_the_default_one() -> None:
    scene = Scene()
    scene.tell(QueueSet("lab", 4, weight=3.0), QueueSet("vision", 2, parent="lab"))
    scene.tell(QueueSet("default", is_default=True))
    job = scene.submit("1", queue="lab")
    assert (job.queue, job.job.weight) == ("lab", 3.0)
    scene.tell(QueueDeleted("lab"))
    assert (job.queue, job.job.weight) == ("default", 1.0)
    assert scene.state.queues["vision"].parent == ""
    scene.tell(QueueDeleted("lab"))
    assert scene.submit("2", queue="lab").queue == "default"
