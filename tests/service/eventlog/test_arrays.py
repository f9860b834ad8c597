"""A job file of an array is kept once, in the log, in memory and in the table of ended jobs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.http.rig import a_rig, play
from tests.service.scene import Scene

from stretto.jobfile import JobSpec, read_submission
from stretto.service.eventlog import Recorded, Unrecorded
from stretto.service.eventlog.archive import rows_of
from stretto.service.eventlog.writer import fold
from stretto.service.service import ranges_of, submission
from stretto.service.state.events import Ended, Event, Retired, Submitted, body_of, subject_of
from stretto.service.state.status import status_of

TASKS = 10_000
LONG = "true # " + "x" * 100_000


def spec_of(text: str) -> JobSpec:
    return read_submission(text)[0]


def text_of(event: Event) -> str:
    """As the log keeps it."""
    return Unrecorded(0.0, type(event).__name__, subject_of(event), body_of(event)).text


def test_the_log_and_the_state_have_one_job_file_for_ten_thousand_tasks() -> None:
    scene, spec = Scene(), spec_of(f"run: {LONG}\narray: 0-{TASKS - 1}\nhold: true")
    event = submission("7", spec, "ada", "a key", ())
    assert len(text_of(event)) < len(LONG) + 2_000
    scene.tell(event)
    records = list(scene.state.jobs.values())
    assert len(records) == TASKS
    assert {id(record.spec) for record in records} == {id(records[0].spec)}
    assert {id(record.job.labels) for record in records} == {id(records[0].job.labels)}


def test_so_does_the_table_of_ended_jobs() -> None:
    scene, spec = Scene(), spec_of(f"run: {LONG}\narray: 0-99\nhold: true")
    scene.tell(submission("7", spec, "ada", "", ()))
    names = tuple(scene.state.jobs)
    scene.tell(*(Ended(name, "CANCELLED") for name in names))
    rows = rows_of(scene.state, Retired(names))
    assert len(rows) == 100
    assert sum(len(row.body) for row in rows) < 100 * 1_000


@pytest.mark.parametrize(
    ("indices", "ranges"),
    [
        pytest.param((0, 1, 2), ((0, 2),), id="a run"),
        pytest.param((5,), ((5, 5),), id="one"),
        pytest.param((0, 2, 4, 5), ((0, 0), (2, 2), (4, 5)), id="with gaps"),
    ],
)
def test_indices_are_kept_as_ranges(indices: tuple[int, ...], ranges: tuple[tuple[int, int], ...]) -> None:
    assert ranges_of(indices) == ranges
    event = submission("7", replace(JobSpec("true"), array=spec_of("run: x\narray: 0-1").array), "", "", ())
    tasks = list(replace(event, ranges=ranges).tasks())  # type: ignore[union-attr,arg-type]
    assert tuple(task.index for task in tasks) == indices


def test_a_log_of_before_with_an_event_for_each_task_folds_into_the_same_jobs() -> None:
    spec = spec_of("name: sweep\nrun: x\narray: 3-6%2\nlabels: {a: b}")
    event = submission("7", spec, "ada", "a key", (), {})
    old, new = Scene(), Scene()
    new.tell(event)
    said = replace(spec, array=None).to_json()
    for index in range(3, 7):
        key = "a key" if index == 3 else ""
        old.tell(Submitted(f"7_{index}", said, "ada", key, array="7", index=index, at_once=2))
    assert [status_of(old.state, record, 5.0) for record in old.state.open_jobs()] == [
        status_of(new.state, record, 5.0) for record in new.state.open_jobs()
    ]
    assert old.state.by_key == new.state.by_key
    assert old.state.relations.jobs_of("7") == new.state.relations.jobs_of("7")
    again = Scene()  # from the log, where tuples have become lists
    fold(again.state, Recorded(again.state.seq + 1, 0.0, "ArraySubmitted", "7", json.loads(text_of(event))))
    assert list(again.state.jobs.items()) == list(new.state.jobs.items())
    assert len(old.state.jobs) == 4


@pytest.mark.sqlite
def test_tasks_that_have_left_are_what_they_were_and_only_their_owner_sees_them(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with (
            a_rig(tmp_path, decides=False) as rig,
            rig.client("ada") as ada,
            rig.client("bob") as bob,
        ):
            key = {"idempotency-key": "once"}
            body = {"text": "name: sweep\nrun: echo\narray: 0-2\nmax_time: 5m"}
            names = (await ada.post("/api/v1/jobs", json=body, headers=key)).json()["ids"]
            specs = [rig.service.state.jobs[name].spec for name in names]
            for client, sees in ((ada, True), (bob, False)):
                told = (await client.get("/api/v1/events")).text
                assert ("ArraySubmitted" in told) == sees
            assert "ArraySubmitted" in (await ada.get(f"/api/v1/jobs/{names[1]}/events")).text
            assert (await ada.post("/api/v1/jobs/sweep/cancel")).status_code == 200
            await rig.service.record(*(Ended(name, "CANCELLED") for name in names))
            await rig.service.record(Retired(tuple(names)))
            assert not rig.service.state.jobs
            records = await rig.service.archive.jobs(names)
            assert [record.spec for record in records] == specs
            assert (await ada.post("/api/v1/jobs", json=body, headers=key)).status_code == 200
            other = {"text": "name: sweep\nrun: other\narray: 0-2\nmax_time: 5m"}
            assert (await ada.post("/api/v1/jobs", json=other, headers=key)).status_code == 422

    play(story)
