"""After the log has lost something, ids of jobs go on behind it, and those of workers carry another name."""

import pytest
from tests.service.scene import Scene

from stretto.backends.protocol import WorkerState
from stretto.service.eventlog import Reached
from stretto.service.eventlog.archive import record_of, row_of
from stretto.service.log_loss import UNSEEN_IDS, incarnated
from stretto.service.reconcile.diff import LOST_GRACE_S, about_workers
from stretto.service.state import events as happened


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


def trains() -> Scene:
    """Job 1 trains on two workers in a generation."""
    scene = Scene()
    scene.submit("1", 2, elastic=(1, 4))
    scene.give(_1={"n0": 3})
    scene.reconcile()
    scene.ready("1.1.0", "1.1.1")
    scene.reconcile()
    scene.join("1")
    return scene


def test_who_trains_in_a_generation_saves_and_begins_anew_since_later_ones_may_be_lost() -> None:
    scene = trains()
    job = scene.state.jobs["1"]
    scene.tell(happened.Incarnated("abc", 50, ends_elastic=True))
    scene.reconcile()
    assert job.members.leaves
    assert job.members.number > 100, "whatever generation it is in, this one is later"
    assert scene.asked_to_stop == {"1.1.0", "1.1.1"}
    scene.end("1.1.0", 0)  # as whoever has left a generation ends
    scene.end("1.1.1", 143)
    scene.reconcile()
    assert (scene.standing("1"), job.losses, job.failures) == ("RUNNING", 0, 0)
    assert scene.names("1") == ["1.2-abc.0", "1.2-abc.1"]


def test_in_logs_of_before_who_trains_goes_on() -> None:
    scene = trains()
    scene.tell(happened.Incarnated("abc", 50))
    scene.reconcile()
    assert scene.asked_to_stop == set()


def shown(scene: Scene, *workers: WorkerState) -> list[tuple[WorkerState, float]]:
    """What is to be stopped once the backend shows these; the rest is in the log then."""
    events, stop = about_workers(scene.state, workers)
    scene.tell(*events)
    scene.reconcile()
    return stop


def test_who_was_stopped_in_a_time_that_the_log_has_lost_has_not_come_to_its_end() -> None:
    scene = a_scene()
    del scene.running["1.1.0"]
    assert shown(scene, WorkerState("1.1.0", "n0", (0,), "ended", 0, stopped=True)) == []
    assert (scene.standing("1"), scene.state.jobs["1"].attempt) == ("RUNNING", 2)


def test_whose_attempt_has_grown_in_a_time_that_the_log_has_lost_begins_anew() -> None:
    scene = Scene()
    scene.submit("1", 1, elastic=(1, 2), grace_period_s=70.0)
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.tell(happened.Incarnated("abc", 50, ends_elastic=True))
    newcomer = WorkerState("1.1.1", "n0", (1,), "running")
    assert shown(scene, newcomer) == [(newcomer, 70.0)]  # its peer may need it in order to save
    assert scene.asked_to_stop == {"1.1.0"}
    scene.end("1.1.0", 1)  # whatever becomes of it without its peer
    scene.reconcile()
    assert (scene.standing("1"), scene.state.jobs["1"].failures) == ("RUNNING", 0)
    assert scene.names("1") == ["1.2-abc.0"]


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
    one = WorkerState(worker, "n1", (0,), "running")
    assert about_workers(a_scene().state, [one])[1] == [(one, grace_s)]


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
