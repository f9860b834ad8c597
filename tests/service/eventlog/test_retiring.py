"""When jobs leave: by their age, by their number, and not while somebody needs them."""

import asyncio
from math import inf
from pathlib import Path

import pytest
from tests.service.http.rig import SMALL, a_rig, play
from tests.service.scene import Scene

from stretto.jobfile import JobSpec
from stretto.model import InputError
from stretto.service.retention import job_retention
from stretto.service.retention.job_retention import RetentionPolicy, due, keep_of
from stretto.service.service import submission
from stretto.service.state import events as happened


def a_scene(*ends_s: float) -> Scene:
    """Jobs 1, 2, ... that ended at these times."""
    scene = Scene()
    for number, end_s in enumerate(ends_s, start=1):
        scene.submit(str(number))
        scene.now_s = end_s
        scene.tell(happened.Ended(str(number), "COMPLETED", 0))
    return scene


@pytest.mark.parametrize(
    ("keep", "now_s", "leave"),
    [
        pytest.param(RetentionPolicy(100.0), 205.0, ["1"], id="older than an age"),
        pytest.param(RetentionPolicy(100.0), 1e4, ["1", "2", "3"], id="all of them"),
        pytest.param(RetentionPolicy(100.0, most_ended=1), 205.0, ["1", "2"], id="more than a number"),
        pytest.param(
            RetentionPolicy(100.0, most_ended=1), 1e4, ["1", "2", "3"], id="older, and more than a number"
        ),
        pytest.param(RetentionPolicy(3600.0, logs_s=100.0), 205.0, ["1"], id="older than logs are kept"),
    ],
)
def test_jobs_leave_that_are(keep: RetentionPolicy, now_s: float, leave: list[str]) -> None:
    assert due(a_scene(100.0, 110.0, 120.0).state, keep, now_s) == leave


def test_jobs_stay_whose_end_somebody_has_still_to_look_at() -> None:
    scene = a_scene(100.0, 110.0)
    assert due(scene.state, RetentionPolicy(), 1e9, dirty={"1"}) == ["2"]


def test_jobs_stay_on_which_open_jobs_depend_and_arrays_until_all_tasks_have_ended() -> None:
    scene = a_scene(100.0, 110.0)
    spec = JobSpec.from_json({"run": "true", "depends_on": [{"job": "2", "when": "ended"}]})
    scene.tell(submission("3", spec, "ada", "", ("2",), {}))
    scene.tell(
        submission("4", JobSpec.from_json({"run": "true", "array": {"indices": [0, 1]}}), "ada", "", ())
    )
    scene.tell(happened.Ended("4_0", "COMPLETED", 0))
    assert due(scene.state, RetentionPolicy(), 1e9) == ["1"]
    scene.tell(happened.Ended("4_1", "COMPLETED", 0), happened.Ended("3", "CANCELLED", None))
    assert due(scene.state, RetentionPolicy(), 1e9) == ["1", "2", "4_0", "4_1", "3"]


def test_jobs_leave_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_retention, "AT_ONCE", 2)
    assert due(a_scene(1.0, 2.0, 3.0).state, RetentionPolicy(), 1e9) == ["1", "2"]


@pytest.mark.sqlite
def test_a_service_lets_them_leave_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_retention, "CHECK_S", 0.01)

    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            leaving = asyncio.create_task(
                job_retention.retire_periodically(
                    rig.service.log_writer, rig.service.clock, RetentionPolicy(most_ended=1)
                )
            )
            names = [await rig.submit("ada", **SMALL) for _ in range(3)]
            for name in names:
                await rig.until(lambda name=name: f"{name}.1.0" in {one.id for one in rig.backend.started})  # type: ignore[misc]
                await rig.backend.finish(f"{name}.1.0", 0)
            await rig.until(lambda: len(rig.service.state.jobs) == 1)
            for name in names:
                assert (await ada.get(f"/api/v1/jobs/{name}")).json()["state"] == "COMPLETED"
            leaving.cancel()

    play(story)


def test_times_to_keep_are_read_from_words() -> None:
    assert keep_of("2h", "14d") == RetentionPolicy(7200.0, logs_s=14 * 86_400.0)
    assert keep_of("2h", "forever").logs_s == inf
    assert keep_of("2h", "14d").checkpoints_s == inf
    assert keep_of("2h", "forever", "60d") == RetentionPolicy(7200.0, logs_s=inf, checkpoints_s=60 * 86_400.0)


@pytest.mark.parametrize(
    ("ended", "logs", "checkpoints", "said"),
    [
        ("long", "14d", "30d", r"--keep-ended long: expected a duration like 1h or 14d$"),
        ("1h", "7", "30d", r"--keep-logs 7: expected a duration like 1h or 14d or forever$"),
        ("1s", "14d", "30d", r"--keep-ended: expected at least 60 s, got 1$"),
        ("1h", "0s", "30d", r"--keep-logs: expected at least 60 s, got 0$"),
        ("1h", "14d", "7", r"--keep-checkpoints 7: expected a duration like 1h or 14d or forever$"),
        ("1h", "14d", "1s", r"--keep-checkpoints: expected at least 60 s, got 1$"),
    ],
)
def test_times_to_keep_that_mean_nothing_are_refused(
    ended: str, logs: str, checkpoints: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        keep_of(ended, logs, checkpoints)
