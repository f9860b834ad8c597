"""One list of what is shown of a job: answers, the OpenAPI document and the command line all have it."""

import ast
from dataclasses import fields
from inspect import getsource
from pathlib import Path

import pytest
from tests.service.http.rig import PATIENCE_S, a_rig, play

from stretto.cli import jobs as command_line
from stretto.cli.jobs import worker_sizes_in_words
from stretto.cli.service import promise_in_words
from stretto.service.http.schemas import Accepted, Changed, Described
from stretto.service.state.events import NodeSeen
from stretto.service.state.status import STATUS_KEYS

A_JOB = {"text": "run: sleep 60\nname: a"}


@pytest.mark.sqlite
def test_what_is_answered_of_a_job_is_what_the_document_says(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            document = (await ada.get("/api/v1/openapi.json")).json()
            job = (await ada.post("/api/v1/jobs", json=A_JOB)).json()["id"]
            answered = (await ada.get(f"/api/v1/jobs/{job}")).json()
        schema = document["components"]["schemas"]["Described"]
        shown_here = (
            *("gpus_per_worker", "speeds", "serving", "outlook", "standing", "budgets"),
            *("submitted_unix_s", "ended_unix_s", "attempts"),
        )
        assert tuple(answered) == tuple(schema["properties"]) == (*STATUS_KEYS, *shown_here)
        assert {*schema["required"]} == {*answered}

    play(story)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("per_worker", "by_type", "words"),
    [
        ("{a100: 2, rtx: 4}", {"a100": 2, "rtx": 4}, "2 on a100, 4 on rtx"),
        ("{a100: 2}", {"a100": 2}, "2"),
        ("2", {"a100": 2, "rtx": 2}, "2"),
        ("1", {"a100": 1, "rtx": 1}, ""),
    ],
)
def test_a_job_says_how_many_gpus_one_of_its_workers_has_on_each_type(
    tmp_path: Path, per_worker: str, by_type: dict[str, int], words: str
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            await rig.service.record(NodeSeen("another", "rtx", 8))
            file = f"run: x\nresources: {{gpus_per_worker: {per_worker}}}\nelastic: {{min: 4, max: 8}}"
            job = (await ada.post("/api/v1/jobs", json={"text": file})).json()["id"]
            sizes = (await ada.get(f"/api/v1/jobs/{job}")).json()["gpus_per_worker"]
        assert sizes == by_type
        assert worker_sizes_in_words(sizes) == words

    play(story)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("policy", "takes", "promise"),
    [("unisched", "30m", "yes"), ("unisched", "3h", "no"), ("fifo", "30m", None)],
)
def test_a_submission_says_at_once_whether_its_deadline_can_be_kept(
    tmp_path: Path, policy: str, takes: str, promise: str | None
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, policy=policy) as rig, rig.client("ada") as ada:
            text = f"run: sleep 60\nname: a\ndeadline: 1h\nexpected_time: {takes}"
            accepted = (await ada.post("/api/v1/jobs", json={"text": text})).json()
            described = (await ada.get(f"/api/v1/jobs/{accepted['id']}")).json()
            without = (await ada.post("/api/v1/jobs", json=A_JOB)).json()
        assert without["outlook"] is None
        if promise is None:
            assert accepted["outlook"] is described["outlook"] is None
            return
        for outlook in (accepted["outlook"], described["outlook"]):
            assert outlook["promise"] == promise
            assert outlook["deadline_in_s"] == pytest.approx(3_600.0, abs=PATIENCE_S)
            assert outlook["suspension"] == "assumed"
            assert f": {promise}, " in promise_in_words(outlook, 0.0)

    play(story)


def test_the_command_line_shows_keys_that_there_are() -> None:
    tree = ast.parse(getsource(command_line))
    read = {
        node.slice.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "job"
        and isinstance(node.slice, ast.Constant)
    }
    assert {"share_done", "left_s", "state"} <= read
    assert read <= {each.name for shown in (Accepted, Changed, Described) for each in fields(shown)}
