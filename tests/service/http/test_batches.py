"""Many submissions in one request: each is taken or refused by itself."""

from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import SMALL, a_rig, play

from stretto.service.http.rate_limits import Limits
from stretto.service.http.schemas import MOST_SUBMISSIONS
from stretto.service.service import OpenJobs

pytestmark = pytest.mark.sqlite

BATCH = "/api/v1/jobs/batch"
HELD = {"text": "run: x\nhold: true"}


def of(outcomes: Any, key: str) -> list[Any]:
    return [outcome[key] for outcome in outcomes.json()["jobs"]]


def test_each_is_taken_or_refused_by_itself_in_their_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            bad, urgent = {"text": "run: x\nresources: 3"}, {"text": "run: x\npriority: 7"}
            array = {"text": "run: x\nhold: true\narray: 0-2"}
            answer = await ada.post(
                BATCH, json={"jobs": [HELD, bad, array, urgent, {**HELD, "job_name": "b"}]}
            )
            assert answer.status_code == 200
            assert of(answer, "status") == [201, 422, 201, 403, 201]
            assert of(answer, "id") == ["1", "", "2_0", "", "3"]
            assert of(answer, "array") == ["", "", "2", "", ""]
            assert of(answer, "ids")[2] == ["2_0", "2_1", "2_2"]
            assert "resources must be keys and values" in of(answer, "detail")[1]
            assert of(answer, "detail")[3] == "priority 7: above 0 needs the role operator"
            assert list(rig.service.state.jobs) == ["1", "2_0", "2_1", "2_2", "3"]
            assert rig.service.state.jobs["3"].spec.name == "b"

    play(story)


def test_a_key_submits_once_also_within_a_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            batch = {"jobs": [{**HELD, "key": "k"}, HELD, {**HELD, "key": "k"}]}
            first, again = [await ada.post(BATCH, json=batch) for _ in range(2)]
            assert (of(first, "status"), of(first, "id")) == ([201, 201, 200], ["1", "2", "1"])
            assert (of(again, "status"), of(again, "id")) == ([200, 201, 200], ["1", "3", "1"])
            other = {"jobs": [{"text": "run: y", "key": "k"}]}
            assert of(await ada.post(BATCH, json=other), "status") == [422]
            assert len(rig.service.state.jobs) == 3

    play(story)


def test_a_job_may_come_after_another_of_its_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            first = {"text": "run: x\nname: prepare\nhold: true"}
            after = {"text": "run: x\ndepends_on: [{job: prepare, when: ended}]"}
            assert of(await ada.post(BATCH, json={"jobs": [after, first, after]}), "status") == [
                422,
                201,
                201,
            ]
            assert rig.service.state.jobs["2"].after == ("1",)

    play(story)


def test_bounds_hold_for_each_and_count_those_before_it(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(tasks_per_s=0.001, task_burst=5, submits_per_s=0.001, submit_burst=2)
        async with a_rig(tmp_path, limits=limits) as rig, rig.client("ada") as ada:
            rig.service.most_open = OpenJobs(each=3, total=9)
            answer = await ada.post(BATCH, json={"jobs": [HELD] * 6})
            assert of(answer, "status") == [201, 201, 201, 409, 409, 429]
            assert len(rig.service.state.jobs) == 3
            assert (await ada.post(BATCH, json={"jobs": [HELD]})).status_code == 200
            assert (await ada.post(BATCH, json={"jobs": [HELD]})).status_code == 429

    play(story)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"jobs": []}, id="no job"),
        pytest.param({"jobs": [SMALL] * (MOST_SUBMISSIONS + 1)}, id="more than may be"),
        pytest.param({"jobs": [SMALL, {"text": 3}]}, id="one that is no submission"),
        pytest.param([SMALL], id="a list alone"),
    ],
)
def test_a_batch_that_is_none_submits_nothing(tmp_path: Path, body: Any) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            assert (await ada.post(BATCH, json=body)).status_code == 422
            assert not rig.service.state.jobs

    play(story)
