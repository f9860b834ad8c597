"""Who is killed again and again without getting anywhere has failed; whoever is stopped by others has not."""

import pytest
from tests.service.scene import Scene

from stretto.backends.protocol import WorkerState
from stretto.service.reconcile.diff import about_workers
from stretto.service.reconcile.reconciler import FIRST_PAUSE_S, MAX_CRASH_LOOPS
from stretto.service.state import events as happened
from stretto.service.state.events import Event

KILLED = 137


def killed(scene: Scene, *first: Event, status: int = KILLED) -> None:
    """The next attempt of job 1 begins, does this, and its worker is killed by somebody else."""
    job = scene.state.jobs["1"]
    scene.now_s = max(scene.now_s, job.not_before_s)
    scene.give(_1={"n1": 1})
    scene.reconcile()
    scene.tell(*first)
    scene.end(f"1.{job.attempt}.0", status)
    scene.reconcile()


def test_a_job_that_is_killed_again_and_again_without_progress_has_failed() -> None:
    scene = Scene()
    job = scene.submit("1")
    for _ in range(MAX_CRASH_LOOPS - 1):
        killed(scene)
        assert (scene.standing("1"), job.failures) == ("PENDING", 0)
    killed(scene)
    assert (scene.standing("1"), job.status, job.failures) == ("FAILED", KILLED, 1)
    assert f"killed {MAX_CRASH_LOOPS} times in a row" in job.why


def test_it_is_tried_again_as_its_restart_rules_allow_with_the_pause_of_failures() -> None:
    scene = Scene()
    job = scene.submit("1", restart={"max": 2})
    for _ in range(MAX_CRASH_LOOPS):
        killed(scene)
    for failures in (1, 2):
        assert (scene.standing("1"), job.failures) == ("PENDING", failures)
        assert job.not_before_s == scene.now_s + FIRST_PAUSE_S * 2 ** (failures - 1)
        assert "times in a row" in job.why
        killed(scene)
    assert scene.standing("1") == "FAILED"


def test_restart_rules_that_leave_out_a_kill_end_the_job() -> None:
    scene = Scene()
    scene.submit("1", restart={"max": 9, "on_exit": [1]})
    for _ in range(MAX_CRASH_LOOPS):
        killed(scene)
    assert scene.standing("1") == "FAILED"


@pytest.mark.parametrize(
    "progress",
    [
        pytest.param(lambda turn: happened.Checkpointed("1", turn, "there"), id="a checkpoint"),
        pytest.param(lambda turn: happened.Reported("1", {"step": turn}), id="further steps"),
        pytest.param(lambda turn: happened.Reported("1", {"epoch": turn}), id="further epochs"),
    ],
)
def test_losses_with_progress_between_them_do_not_count(progress: object) -> None:
    scene = Scene()
    job = scene.submit("1")
    for turn in range(1, 3 * MAX_CRASH_LOOPS):
        killed(scene, progress(turn))  # type: ignore[operator]
        assert (scene.standing("1"), job.failures) == ("PENDING", 0)


def test_the_same_steps_again_and_again_are_no_progress() -> None:
    scene = Scene()
    scene.submit("1")
    killed(scene, happened.Reported("1", {"step": 10}))
    for _ in range(MAX_CRASH_LOOPS):
        assert scene.standing("1") == "PENDING"
        killed(scene, happened.Reported("1", {"step": 10}))
    assert scene.standing("1") == "FAILED"


def test_being_stopped_by_others_with_sigterm_never_counts() -> None:
    scene = Scene()
    scene.submit("1")
    for _ in range(3 * MAX_CRASH_LOOPS):
        killed(scene, status=143)
    assert scene.standing("1") == "PENDING"


def test_being_killed_by_our_own_stop_never_counts() -> None:
    scene = Scene()
    job = scene.submit("1")
    for attempt in range(1, 3 * MAX_CRASH_LOOPS):
        scene.give(_1={"n0": 1})
        scene.reconcile()
        scene.give(_1=None)
        scene.reconcile()
        scene.end(f"1.{attempt}.0", KILLED)
        scene.reconcile()
    assert (scene.standing("1"), job.crash_loops) == ("PENDING", 0)


@pytest.mark.parametrize("status", [1, KILLED])
def test_a_node_that_dies_never_counts_not_even_by_what_its_peers_do(status: int) -> None:
    scene = Scene()
    job = scene.submit("1", gpus=2)
    for attempt in range(1, 3 * MAX_CRASH_LOOPS):
        scene.now_s = max(scene.now_s, job.not_before_s)
        scene.give(_1={"n0": 1, "n1": 1})
        scene.reconcile()
        scene.end(f"1.{attempt}.1", status)  # its collective broke
        scene.reconcile()
        scene.tell(happened.NodeLost("n0", "silent"))
        scene.reconcile()
        scene.tell(happened.NodeSeen("n0", "a100", 4))
        scene.end(f"1.{attempt}.0", KILLED)
        scene.reconcile()
    assert (scene.standing("1"), job.failures, job.crash_loops) == ("PENDING", 0, 0)
    assert "node n0" in job.why


def test_a_worker_that_its_node_has_lost_by_its_own_words_never_counts() -> None:
    scene = Scene()
    job = scene.submit("1")
    why = "Kubernetes says OutOfnvidia.com/gpu"
    for attempt in range(1, 3 * MAX_CRASH_LOOPS):
        scene.now_s = max(scene.now_s, job.not_before_s)
        scene.give(_1={"n0": 1})
        scene.reconcile()
        scene.running.pop(name := f"1.{attempt}.0")
        lost = WorkerState(name, "n0", (0,), "ended", KILLED, 9, job="1", why=why, is_nodes_fault=True)
        scene.tell(*about_workers(scene.state, [lost])[0])
        scene.reconcile()
    assert (scene.standing("1"), job.failures, job.crash_loops) == ("PENDING", 0, 0)
    assert job.why == f"node n0 was lost: {why}"


def test_what_cannot_even_be_started_has_failed_and_says_why() -> None:
    scene = Scene()
    job = scene.submit("1", restart={"max": 1})
    for attempt in (1, 2):
        scene.now_s = max(scene.now_s, job.not_before_s)
        scene.give(_1={"n0": 1})
        scene.reconcile()
        name = f"1.{attempt}.0"
        del scene.running[name]
        why = "cannot start: no such directory"
        scene.tell(happened.WorkersEnded("1", ({"id": name, "status": 126, "why": why},)))
        scene.reconcile()
    assert (scene.standing("1"), job.status, job.attempt) == ("FAILED", 126, 2)
    assert job.why == "worker 1.2.0 ended with status 126: cannot start: no such directory"
