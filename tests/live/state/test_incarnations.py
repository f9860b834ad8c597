"""After the log has lost something, ids of jobs go on behind it, and those of workers carry another name."""

import pytest
from tests.live.scene import Scene

from stretto.live.act.news import LOST_GRACE_S, about_workers
from stretto.live.backends.protocol import WorkerState
from stretto.live.history.retired import record_of, row_of
from stretto.live.loss import UNSEEN_IDS, incarnated
from stretto.live.state import events as happened
from stretto.live.store import Reached


def a_scene() -> Scene:
    """Job 1 runs in its first attempt, job 2 waits; then the log goes on behind id 50."""
    scene = Scene()
    for name in ("1", "2"):
        scene.submit(name, 1)
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.tell(happened.Incarnated("abc", 50))
    return scene


def test_workers_of_later_attempts_carry_the_name_and_ids_of_jobs_go_on_behind() -> None:
    scene = a_scene()
    scene.end("1.1.0", 137)
    scene.reconcile()
    scene.give(_1={"n0": 1}, _2={"n0": 2})
    scene.reconcile()
    assert sorted(scene.running) == ["1.2-abc.0", "2.1-abc.0"]
    one = scene.state.jobs["1"]
    assert [one.worker_id(attempt, 0) for attempt in (1, 2, 3)] == ["1.1.0", "1.2-abc.0", "1.3-abc.0"]
    scene.tell(happened.Ended("1", "COMPLETED", 0))
    assert record_of(row_of(one)).worker_id(2, 3) == "1.2-abc.3"
    assert scene.state.largest_id == 50


def test_newcomers_of_an_attempt_are_called_as_those_who_began_it() -> None:
    scene = Scene()
    scene.submit("1", 1, elastic=(1, 2))
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.tell(happened.Incarnated("abc", 50))
    scene.give(_1={"n0": 3})
    scene.reconcile()
    assert sorted(scene.running) == ["1.1.0", "1.1.1"]


@pytest.mark.parametrize(
    ("worker", "grace_s"),
    [
        pytest.param("7.1.0", LOST_GRACE_S, id="of a job that the log has lost"),
        pytest.param("7_3.1.0", LOST_GRACE_S, id="of a task of such an array"),
        pytest.param("77.1.0", LOST_GRACE_S, id="of a job that was never given"),
        pytest.param("1.9.0", 0.0, id="of an attempt that the log has lost"),
    ],
)
def test_who_is_not_known_is_stopped_and_a_lost_job_has_time(worker: str, grace_s: float) -> None:
    shown = WorkerState(worker, "n1", (0,), "running")
    assert about_workers(a_scene().state, [shown])[1] == [(shown, grace_s)]


@pytest.mark.parametrize(
    ("reached", "workers", "why", "last_id"),
    [
        pytest.param(Reached(9, "", 2), ["1.1.0", "2", "x"], "", None, id="all is known"),
        pytest.param(Reached(9, "", 8), [], "", 8, id="the mark knows later jobs"),
        pytest.param(None, ["6_1.1.0"], "", 6, id="a node knows later jobs"),
        pytest.param(None, ["1.2.0"], "", 2, id="a node knows later attempts"),
        pytest.param(None, [], "copied", 2 + UNSEEN_IDS, id="nothing tells"),
        pytest.param(Reached(9, "", 2), [], "begun anew", 2, id="somebody says so"),
    ],
)
def test_what_may_have_been_given_is_not_given_again(
    reached: Reached | None, workers: list[str], why: str, last_id: int | None
) -> None:
    scene = Scene()
    for name in ("1", "2"):
        scene.submit(name, 1)
    scene.give(_1={"n0": 1})
    scene.reconcile()
    found = incarnated(scene.state, reached, workers, why)
    assert (None if found is None else max(found.last_id, scene.state.largest_id)) == last_id
