"""Queues and reservations bind everybody, and only operators put jobs before those of others."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.rig import Rig, a_rig, play

pytestmark = pytest.mark.sqlite

SBATCH = "#!/bin/bash\n#SBATCH --job-name=own\n#SBATCH --partition={queue}\n#SBATCH --gpus=1\nsleep 60\n"
TRAINJOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: own, labels: {{kueue.x-k8s.io/queue-name: {queue}}}}}
spec:
  trainer: {{numNodes: 1, command: [sleep, '60'], resourcesPerNode: {{limits: {{nvidia.com/gpu: 1}}}}}}
"""
UNKNOWN = "queue: expected one of default, open, got 'invented'"
OTHERS = "queue vip is for bob, not for ada"
RAISED = "priority {}: above 0 needs the role operator"

REFUSED = [
    pytest.param("run: x\nqueue: invented", 422, UNKNOWN, id="a queue that nobody has made"),
    pytest.param("run: x\nqueue: invented\narray: 0-3", 422, UNKNOWN, id="in an array"),
    pytest.param(SBATCH.format(queue="invented"), 422, UNKNOWN, id="as a partition of a batch script"),
    pytest.param(TRAINJOB.format(queue="invented"), 422, UNKNOWN, id="as a label of a manifest"),
    pytest.param("run: x\nqueue: vip", 403, OTHERS, id="a queue of others"),
    pytest.param("run: x\nqueue: vip\narray: 0-3", 403, OTHERS, id="of others, in an array"),
    pytest.param(SBATCH.format(queue="vip"), 403, OTHERS, id="of others, in a batch script"),
    pytest.param(TRAINJOB.format(queue="vip"), 403, OTHERS, id="of others, in a manifest"),
    pytest.param("run: x\npriority: 1", 403, RAISED.format(1), id="a priority above 0"),
    pytest.param("run: x\npriority: 1000000\narray: 0-3", 403, RAISED.format(1_000_000), id="of an array"),
]


async def with_queues(rig: Rig) -> None:
    async with rig.client("root") as root:
        for name, bounds in (("open", {"quota_gpus": 4}), ("vip", {"quota_gpus": 4, "users": ["bob"]})):
            answer = await root.put(f"/api/v1/queues/{name}", json=bounds)
            assert answer.is_success, answer.text


def told(tmp_path: Path, story: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with a_rig(tmp_path) as rig:
            await with_queues(rig)
            await story(rig)

    play(whole)


@pytest.mark.parametrize(("text", "status", "said"), REFUSED)
def test_a_user_may_not_submit(tmp_path: Path, text: str, status: int, said: str) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("ada") as ada:
            for path, body in (
                ("jobs", {"text": text}),
                ("jobs/dry-run", {"text": text}),
                ("whatif", {"job": text}),
            ):
                answer = await ada.post(f"/api/v1/{path}", json=body)
                assert (answer.status_code, answer.json()["detail"]) == (status, said), path
            assert not rig.service.state.jobs

    told(tmp_path, story)


def test_a_user_may_lower_what_comes_first_and_never_raise_it(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        job = await rig.submit("ada", text="run: sleep")
        array = await rig.submit("ada", text="run: sleep\narray: 0-1")

        async def change(person: str, name: str, priority: int) -> int:
            async with rig.client(person) as client:
                return (
                    await client.post(f"/api/v1/jobs/{name}/priority", json={"priority": priority})
                ).status_code

        assert [await change("ada", job, to) for to in (1, 1_000_000, -5, -1, 0)] == [403, 403, 200, 200, 200]
        assert await change("olga", job, 50) == 200
        assert [await change("ada", job, to) for to in (51, 50, 40, 41, 0, 1)] == [
            403,
            200,
            200,
            403,
            200,
            403,
        ]
        assert [await change("ada", array.split("_")[0], to) for to in (1, -1)] == [403, 200]
        refused = [one.body for one in rig.store.read(kinds={"Audited"}) if one.body["refused"]]
        assert {one["what"] for one in refused} == {"raise a priority"}

    told(tmp_path, story)


def test_who_may_use_a_queue_does_and_who_names_none_is_in_the_default_one(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        bobs = await rig.submit("bob", text="run: sleep\nqueue: vip")
        plain = await rig.submit("ada", text="run: sleep")
        jobs = rig.service.state.jobs
        assert [jobs[name].job.queue for name in (bobs, plain)] == ["vip", "default"]
        async with rig.client("root") as root:
            shown = {one["name"]: one for one in (await root.get("/api/v1/queues")).json()["queues"]}
        assert {name: one["users"] for name, one in shown.items()} == {
            "default": None,
            "open": None,
            "vip": ["bob"],
        }

    told(tmp_path, story)


def test_operators_keep_to_the_users_of_a_queue_and_may_raise_priorities(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("olga") as olga:
            answer = await olga.post("/api/v1/jobs", json={"text": "run: x\nqueue: vip"})
            assert answer.status_code == 403
            answer = await olga.post("/api/v1/jobs", json={"text": "run: x\npriority: 7"})
            assert (answer.status_code, answer.json()["priority"]) == (201, 7)

    told(tmp_path, story)


def test_a_key_that_was_used_gives_its_job_whatever_is_ruled_since(tmp_path: Path) -> None:
    async def whole() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:

            async def submit(text: str) -> httpx.Response:
                return await ada.post(
                    "/api/v1/jobs", json={"text": text}, headers={"idempotency-key": f"key-{len(text)}"}
                )

            first, second = await submit("run: sleep\nqueue: vip"), await submit("run: sleep 60")
            await with_queues(rig)
            again = [await submit("run: sleep\nqueue: vip"), await submit("run: sleep 60")]
            assert [one.status_code for one in again] == [200, 200], [one.text for one in again]
            assert [one.json()["id"] for one in again] == [first.json()["id"], second.json()["id"]]

    play(whole)


def test_jobs_that_were_there_before_a_queue_had_users_leave_it_for_the_default_one(tmp_path: Path) -> None:
    async def whole() -> None:
        async with a_rig(tmp_path) as rig:
            adas = await rig.submit("ada", text="run: sleep\nqueue: vip")
            bobs = await rig.submit("bob", text="run: sleep\nqueue: vip")
            plain = await rig.submit("ada", text="run: sleep")
            await with_queues(rig)
            jobs = rig.service.state.jobs
            assert [jobs[name].job.queue for name in (adas, bobs, plain)] == ["default", "vip", "default"]

    play(whole)


def test_what_is_not_said_of_a_queue_stays_as_it_is(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("root") as root:
            shown = (await root.put("/api/v1/queues/vip", json={"borrow_gpus": 2})).json()
            assert (shown["quota_gpus"], shown["borrow_gpus"], shown["users"]) == (4, 2, ["bob"])
            shown = (await root.put("/api/v1/queues/vip", json={"users": None, "quota_gpus": None})).json()
            assert (shown["quota_gpus"], shown["borrow_gpus"], shown["users"]) == (None, 2, None)

    told(tmp_path, story)


def test_gpus_are_reserved_for_queues_that_there_are(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        asks: dict[str, Any] = {"end": 4e9, "gpu_type": "a100", "gpus": 8}
        async with rig.client("olga") as olga:
            answer = await olga.put("/api/v1/reservations/talk", json={**asks, "queue": "nowhere"})
            assert (answer.status_code, answer.json()["detail"]) == (
                422,
                "queue: expected one of default, open, vip, got 'nowhere'",
            )
            assert (await olga.put("/api/v1/reservations/talk", json={**asks, "queue": "vip"})).is_success
        waits = await rig.submit("ada", text="run: sleep")
        runs = await rig.submit("bob", text="run: sleep\nqueue: vip")
        await rig.until(lambda: rig.backend.started)
        state = rig.service.state
        assert state.wanted(runs) is not None
        assert state.wanted(waits) is None

    told(tmp_path, story)


def test_queues_are_parts_of_others_whose_quota_is_enough_for_all(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("root") as root:

            async def put(name: str, **bounds: object) -> tuple[int, str]:
                answer = await root.put(f"/api/v1/queues/{name}", json=bounds)
                return answer.status_code, answer.json().get("detail", answer.json().get("parent"))

            assert await put("lab", quota_gpus=6, users=["ada"]) == (200, "")
            assert await put("vision", quota_gpus=4, parent="lab") == (200, "lab")
            assert (await put("speech", quota_gpus=3, parent="lab"))[0] == 422
            assert await put("speech", quota_gpus=2, parent="lab") == (200, "lab")
            assert (await put("lab", quota_gpus=5))[0] == 422
            assert (await put("lab", parent="speech"))[0] == 422
            status, said = await put("speech", parent="nowhere")
            assert (status, said) == (
                422,
                "parent of queue speech: expected one of lab, open, vip, vision, got 'nowhere'",
            )
        async with rig.client("bob") as bob:
            answer = await bob.post("/api/v1/jobs", json={"text": "run: x\nqueue: vision"})
            assert (answer.status_code, answer.json()["detail"]) == (
                403,
                "queue vision is for ada, not for bob",
            )
        job = await rig.submit("ada", text="run: sleep\nqueue: vision")
        await rig.until(lambda: rig.service.state.wanted(job))
        async with rig.client("ada") as ada:
            rows = (await ada.get("/api/v1/shares")).json()["shares"]
        held = {"/".join((*one["queues"], one["name"])): one["held_gpus"] for one in rows}
        assert {name: gpus for name, gpus in held.items() if gpus} == {
            "lab": 1,
            "lab/vision": 1,
            "lab/vision/ada": 1,
        }

    told(tmp_path, story)


def test_jobs_without_a_queue_give_back_what_a_queue_is_guaranteed(tmp_path: Path) -> None:
    """Eight GPUs on each of two nodes: ada takes all of them without a queue, and bob has a quota of four."""

    async def whole() -> None:
        async with a_rig(tmp_path) as rig:
            await with_queues(rig)
            total = sum(node.gpus for node in rig.service.state.nodes)
            plain = [await rig.submit("ada", text="run: sleep\npreemptible: true") for _ in range(total)]
            await rig.until(lambda: all(rig.service.state.wanted(job) for job in plain))
            entitled = await rig.submit("bob", text="run: sleep\nqueue: vip")
            await rig.until(lambda: rig.service.state.wanted(entitled))
            assert sum(rig.service.state.wanted(job) is None for job in plain) == 1

    play(whole)
