"""How many jobs a user may submit and have: the tasks of an array count one by one."""

from pathlib import Path

import pytest
from tests.service.http.rig import SMALL, a_rig, play

from stretto.service.http.rate_limits import Limits
from stretto.service.service import OpenJobs

pytestmark = pytest.mark.sqlite

TEN = {"text": "run: x\nhold: true\narray: 0-9"}


def test_the_rate_counts_tasks_and_holds_for_each_user(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(tasks_per_s=0.001, task_burst=25)
        async with a_rig(tmp_path, limits=limits) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            answers = [await ada.post("/api/v1/jobs", json=TEN) for _ in range(3)]
            assert [one.status_code for one in answers] == [201, 201, 429]
            assert answers[2].json()["detail"] == "at most 0.001 jobs a second of one user, and 25 at once"
            assert int(answers[2].headers["retry-after"]) > 0
            assert (await ada.post("/api/v1/jobs", json=SMALL)).status_code == 201
            assert (await bob.post("/api/v1/jobs", json=TEN)).status_code == 201
            assert len(rig.service.state.jobs) == 31

    play(story)


def test_open_jobs_are_bounded_for_each_user_and_in_all_and_ended_ones_make_room(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            rig.service.most_open = OpenJobs(each=15, total=22)
            key = {"idempotency-key": "once"}
            first = (await ada.post("/api/v1/jobs", json=TEN, headers=key)).json()["array"]
            refused = await ada.post("/api/v1/jobs", json=TEN)
            assert refused.status_code == 409
            said = "a user may have 15 jobs that have not ended, you have 10 and ask for 10 more"
            assert refused.json()["detail"] == said
            assert (await ada.post("/api/v1/jobs", json=TEN, headers=key)).status_code == 200
            assert (await bob.post("/api/v1/jobs", json=TEN)).status_code == 201
            full = await bob.post("/api/v1/jobs", json={"text": "run: x\nhold: true\narray: 0-2"})
            assert full.status_code == 409
            assert full.json()["detail"] == "the service takes 22 jobs that have not ended, and has 20"
            assert (await ada.post(f"/api/v1/jobs/{first}/cancel")).status_code == 200
            await rig.until(lambda: len(rig.service.state.open) == 10)
            assert rig.service.state.open_of == {"bob": 10}
            assert (await ada.post("/api/v1/jobs", json=TEN)).status_code == 201

    play(story)
