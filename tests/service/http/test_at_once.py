"""Of two changes that were asked for at once and do not go together, one is refused."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from tests.service.http.rig import a_rig, play

from stretto.model.queue import check_queue_tree

pytestmark = pytest.mark.sqlite


def statuses(answers: Iterable[httpx.Response]) -> list[int]:
    return sorted(answer.status_code for answer in answers)


def test_two_queues_are_not_put_into_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as client:
            for name in ("a", "b"):
                assert (await client.put(f"/api/v1/queues/{name}", json={})).status_code == 200
            answers = await asyncio.gather(
                client.put("/api/v1/queues/a", json={"parent": "b"}),
                client.put("/api/v1/queues/b", json={"parent": "a"}),
            )
            check_queue_tree(rig.service.state.queues)
            assert statuses(answers) == [200, 422]

    play(story)


def test_what_is_asked_of_one_queue_at_once_is_all_done(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as client:
            answers = await asyncio.gather(
                client.put("/api/v1/queues/a", json={"quota_gpus": 4}),
                client.put("/api/v1/queues/a", json={"shares": 3.0}),
            )
            queue = rig.service.state.queues["a"]
            assert statuses(answers) == [200, 200]
            assert (queue.quota_gpus, queue.shares) == (4, 3.0)

    play(story)


def test_the_same_gpus_are_not_reserved_twice(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as client:
            await rig.until(lambda: rig.service.state.cluster is not None)
            asked = {"end": time.time() + 3600, "nodes": ["n0"]}
            answers = await asyncio.gather(
                client.put("/api/v1/reservations/a", json={**asked, "user": "ada"}),
                client.put("/api/v1/reservations/b", json={**asked, "user": "bob"}),
            )
            assert statuses(answers) == [200, 422]
            assert len(rig.service.state.reservations) == 1

    play(story)
