"""Of a job behind all that were looked at, `explain` says before when it does not start."""

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import pytest
from tests.service.scene import Scene

from stretto.service.forecast.all_jobs import Spans, all_jobs
from stretto.service.forecast.corrections import Interval
from stretto.service.forecast.explain import explained_at_once
from stretto.service.forecast.fork import fork_of
from stretto.service.state.status import status_of

HOUR = 3600.0


def a_line() -> Scene:
    """Of four jobs on four GPUs the first runs for an hour; the last one is urgent."""
    scene = Scene(nodes=1, gpus=4)
    for number, priority in enumerate((0, 0, 0, 0, 5)):
        scene.submit(f"j{number}", 4, priority=priority, expected_time_s=HOUR)
    scene.give(_j0={"n0": 15})
    scene.reconcile()
    return scene


def told(scene: Scene, job: str, spans: Spans, reached_s: float = 1e6) -> Mapping[str, Any]:
    """The answer about a job where these were looked at, up to a time."""
    record = scene.state.jobs[job]
    status = status_of(scene.state, record, scene.now_s, None, None)
    return explained_at_once(scene.state, record, status, scene.now_s, spans, scene.now_s, reached_s, 9, ())


def seen(scene: Scene, most_waiting: int) -> Spans:
    """Starts and ends of what runs, and of so many that wait."""
    return all_jobs(fork_of(scene.state, scene.now_s, most_waiting=most_waiting)).spans


def test_a_job_behind_the_foreseen_does_not_start_before_the_last_of_them() -> None:
    scene = a_line()
    spans = seen(scene, most_waiting=2)  # j4 and j1
    first, behind = told(scene, "j1", spans), told(scene, "j2", spans)
    assert behind["start"] is None
    assert behind["foreseen"] == first["start"]["middle"]
    assert behind["foreseen"] > scene.state.unix_s + scene.now_s + HOUR
    assert behind["assumed"][-1] == "jobs before it in line start before it, which was not looked at itself"
    assert not any("looked at itself" in line for line in first["assumed"])


def test_no_further_than_was_looked_where_the_last_is_not_reached() -> None:
    scene, never = a_line(), Interval(inf, inf, inf)
    spans = {**seen(scene, most_waiting=1), "j1": (never, never)}
    behind = told(scene, "j3", spans, reached_s=scene.now_s + 600.0)
    assert behind["foreseen"] == pytest.approx(scene.state.unix_s + scene.now_s + 600.0)


@pytest.mark.parametrize("most_waiting", [0, 1])
def test_nothing_is_said_of_a_job_that_is_not_behind_all_of_them(most_waiting: int) -> None:
    scene = a_line()
    spans = seen(scene, most_waiting)
    scene.submit("urgent", 4, priority=9, expected_time_s=HOUR)  # has come since
    answer = told(scene, "urgent", spans)
    assert (answer["foreseen"], answer["draws"], answer["assumed"]) == (None, 0, [])


def test_nothing_is_said_before_the_first_look() -> None:
    answer = told(a_line(), "j3", {}, reached_s=nan)
    assert (answer["foreseen"], answer["draws"], answer["assumed"]) == (None, 0, [])
