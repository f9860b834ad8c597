import pytest
from tests.service.scene import Scene

from stretto.service.state import events as happened
from stretto.service.state.status import status_of


def test_workers_start_on_the_gpus_that_were_decided() -> None:
    scene = Scene()
    scene.submit("1", gpus=3)
    scene.give(_1={"n0": 0b0110, "n1": 0b1000})
    scene.reconcile()
    assert [(one.node, one.mask) for one in scene.running.values()] == [(0, 0b0010), (0, 0b0100), (1, 0b1000)]
    assert scene.standing("1") == "RUNNING"


def test_a_job_is_done_once_all_its_workers_have_ended_well() -> None:
    scene = Scene()
    scene.submit("1", gpus=2)
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.end("1.1.0", 0)
    scene.reconcile()
    assert scene.asked_to_stop == set()
    scene.end("1.1.1", 0)
    scene.reconcile()
    assert scene.standing("1") == "COMPLETED"
    assert scene.state.wanted("1") is None


def test_when_one_worker_fails_its_peers_are_stopped_and_the_job_has_failed() -> None:
    scene = Scene()
    scene.submit("1", gpus=2)
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.end("1.1.1", 7)
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.0"}
    assert scene.standing("1") == "PREEMPTING"
    scene.end("1.1.0", 143)
    scene.reconcile()
    assert (scene.standing("1"), scene.state.jobs["1"].status) == ("FAILED", 7)


def test_a_failed_job_is_tried_again_after_a_growing_pause_as_often_as_it_may() -> None:
    scene = Scene()
    job = scene.submit("1", restart={"max": 2})
    for attempt, pause_s in ((1, 10.0), (2, 20.0)):
        scene.give(_1={"n0": 1})
        scene.reconcile()
        scene.end(f"1.{attempt}.0", 1)
        scene.reconcile()
        assert job.not_before_s == scene.now_s + pause_s
        assert scene.state.wanted("1") is None
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.end("1.3.0", 1)
    scene.reconcile()
    assert scene.standing("1") == "FAILED"


def test_exit_status_zero_after_our_signal_is_not_done() -> None:
    scene = Scene()
    scene.submit("1")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.give(_1=None)
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.0"}
    scene.end("1.1.0", 0)
    scene.reconcile()
    assert scene.standing("1") == "PENDING"


def test_exit_status_zero_after_our_signal_is_done_where_the_training_said_that_it_was_finished() -> None:
    scene = Scene()
    scene.submit("1")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.give(_1=None)
    scene.reconcile()
    scene.tell(happened.Reported("1", {"finished": True}))
    scene.end("1.1.0", 0)
    scene.reconcile()
    assert scene.standing("1") == "COMPLETED"


def test_a_training_that_finished_is_done_whatever_becomes_of_newcomers_that_were_on_their_way() -> None:
    scene = Scene()
    scene.submit("1", elastic=(1, 4))
    scene.give(_1={"n0": 0b1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.tell(happened.Reported("1", {"finished": True}))
    scene.end("1.1.0", 0)
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.1"}
    scene.end("1.1.1", 137)
    scene.reconcile()
    assert scene.standing("1") == "COMPLETED"


@pytest.mark.parametrize("told", [True, False])
def test_a_training_that_finished_is_done_though_its_next_generation_was_published(told: bool) -> None:
    scene = Scene()
    scene.submit("1", elastic=(1, 4))
    scene.give(_1={"n0": 0b1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.ready("1.1.1")
    scene.reconcile()
    assert scene.state.jobs["1"].members.workers == ("1.1.0", "1.1.1")
    if told:
        scene.tell(happened.Reported("1", {"finished": True}))
    scene.end("1.1.0", 0)
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.1"}
    scene.end("1.1.1", 143)
    scene.reconcile()
    assert scene.standing("1") == "COMPLETED"


@pytest.mark.parametrize("status", [143, 137])
def test_a_job_whose_worker_others_ended_waits_again_and_nothing_is_counted_against_it(status: int) -> None:
    scene = Scene()
    job = scene.submit("1")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.end("1.1.0", status)
    scene.reconcile()
    assert scene.standing("1") == "PENDING"
    assert (job.failures, job.losses) == (0, 1)


def test_a_gpu_goes_to_another_job_only_once_the_old_process_is_gone() -> None:
    scene = Scene(nodes=1, gpus=1)
    scene.submit("1")
    scene.submit("2")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.give(_1=None, _2={"n0": 1})
    scene.reconcile()
    assert scene.names("2") == []
    assert (scene.standing("1"), scene.standing("2")) == ("PREEMPTING", "STARTING")
    scene.end("1.1.0", 143)
    scene.reconcile()
    assert scene.names("2") == ["2.1.0"]


def elastic_job(scene: Scene) -> None:
    """One worker that trains in generation 1."""
    scene.submit("1", elastic=(1, 4))
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")


def test_a_job_grows_in_place_once_its_newcomers_are_ready() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.give(_1={"n0": 0b111})
    scene.reconcile()
    job = scene.state.jobs["1"]
    assert (scene.names("1"), job.members.number) == (["1.1.0", "1.1.1", "1.1.2"], 1)
    scene.ready("1.1.1")
    scene.reconcile()
    assert job.members.number == 1
    scene.ready("1.1.2")
    scene.reconcile()
    assert (job.members.workers, job.members.source) == (("1.1.0", "1.1.1", "1.1.2"), "1.1.0")
    assert scene.standing("1") == "RESIZING"
    scene.join("1")
    assert scene.standing("1") == "RUNNING"


def test_a_job_whose_workers_evaluate_says_what_its_resize_waits_for() -> None:
    def shown() -> dict[str, str]:
        found = status_of(scene.state, scene.state.jobs["1"], scene.now_s)
        return {key: getattr(found, key) for key in ("state", "reason", "evidence")}

    scene = Scene()
    elastic_job(scene)
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.ready("1.1.1")
    scene.reconcile()
    scene.tell(happened.Joined("1", "1.1.1", 2))
    scene.now_s += 4.0
    assert shown() == {"state": "RESIZING", "reason": "", "evidence": ""}
    scene.now_s += 41.0
    late = "1 of 2 workers have not for 45 s"
    assert shown() == {"state": "RESIZING", "reason": "SWITCHING", "evidence": late}
    scene.join("1")
    assert shown() == {"state": "RUNNING", "reason": "", "evidence": ""}


def test_a_job_shrinks_in_place_and_those_who_leave_end_by_themselves() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.give(_1={"n0": 0b111})
    scene.reconcile()
    scene.ready("1.1.1", "1.1.2")
    scene.reconcile()
    scene.join("1")
    scene.give(_1={"n0": 0b100})
    scene.reconcile()
    job = scene.state.jobs["1"]
    assert (job.members.number, job.members.workers, job.members.source) == (3, ("1.1.2",), "1.1.2")
    assert scene.asked_to_stop == set()
    scene.join("1")
    scene.reconcile()
    assert scene.names("1") == ["1.1.2"]
    assert scene.standing("1") == "RUNNING"


def test_who_does_not_leave_within_the_grace_period_is_stopped() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.ready("1.1.1")
    scene.reconcile()
    scene.join("1")
    scene.give(_1={"n0": 0b01})
    scene.reconcile()
    scene.tell(happened.Joined("1", "1.1.0", 3))
    scene.reconcile()
    assert scene.asked_to_stop == set()
    scene.now_s += 31
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.1"}


def test_a_job_moves_to_other_gpus_by_way_of_a_generation_of_all() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.give(_1={"n1": 0b11})
    scene.reconcile()
    scene.ready("1.1.1", "1.1.2")
    scene.reconcile()
    job = scene.state.jobs["1"]
    assert (job.members.workers, job.members.source) == (("1.1.0", "1.1.1", "1.1.2"), "1.1.0")
    scene.join("1")
    scene.reconcile()
    assert (job.members.workers, job.members.source) == (("1.1.1", "1.1.2"), "1.1.1")
    scene.join("1")
    scene.reconcile()
    assert scene.names("1") == ["1.1.1", "1.1.2"]
    assert job.attempt == 1


def trains_on(scene: Scene, name: str, **masks: int) -> None:
    """A job of several workers trains there."""
    scene.submit(name, gpus=2, elastic=(1, 4))
    scene.give(**{f"_{name}": masks})
    scene.reconcile()
    scene.ready(*scene.names(name))
    scene.reconcile()
    scene.join(name)
    scene.reconcile()


def moves_in_place(scene: Scene, name: str) -> None:
    """The newcomers of a job take over."""
    scene.ready(*(one for one in scene.names(name) if not scene.state.jobs[name].workers[one].joined))
    for _ in range(2):  # all together, then the newcomers alone
        scene.reconcile()
        scene.join(name)
    scene.reconcile()


@pytest.mark.parametrize("jobs", [("1", "2"), ("1", "2", "3")])
def test_of_jobs_that_wait_for_each_others_gpus_the_last_one_stops_and_starts_again(
    jobs: tuple[str, ...],
) -> None:
    scene = Scene(nodes=len(jobs))
    for node, name in enumerate(jobs):
        trains_on(scene, name, **{f"n{node}": 0b11})
    *others, last = jobs
    around = {f"_{name}": {f"n{(node + 1) % len(jobs)}": 0b11} for node, name in enumerate(jobs)}
    scene.give(**around)
    scene.reconcile()
    assert scene.asked_to_stop == {f"{last}.1.0", f"{last}.1.1"}
    for name in scene.names(last):
        scene.end(name, 143)
    scene.reconcile()
    for name in reversed(others):
        moves_in_place(scene, name)
        assert {scene.running[one].node for one in scene.names(name)} == {jobs.index(name) + 1}
    assert {scene.running[one].node for one in scene.names(last)} == {0}
    assert [scene.state.jobs[name].attempt for name in jobs] == [*(1 for _ in others), 2]
    assert scene.asked_to_stop == {f"{last}.1.0", f"{last}.1.1"}


def test_a_job_that_waits_for_one_which_waits_for_nobody_goes_on_until_it_can_move() -> None:
    scene = Scene(nodes=3)
    trains_on(scene, "1", n0=0b11)
    trains_on(scene, "2", n1=0b11)
    scene.give(_1={"n1": 0b11}, _2={"n2": 0b11})
    scene.reconcile()
    assert scene.asked_to_stop == set()
    moves_in_place(scene, "2")
    moves_in_place(scene, "1")
    assert [scene.state.jobs[name].attempt for name in ("1", "2")] == [1, 1]


def test_a_newcomer_that_is_not_wanted_any_more_ends_before_it_took_part() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.give(_1={"n0": 0b01})
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.1"}
    scene.end("1.1.1", 143)
    scene.reconcile()
    job = scene.state.jobs["1"]
    assert (job.members.number, job.attempt, scene.standing("1")) == (1, 1, "RUNNING")


@pytest.mark.parametrize("was_ready", [False, True])
def test_a_newcomer_that_was_to_end_is_asked_again_until_it_has(was_ready: bool) -> None:
    scene = Scene()
    scene.submit("1", elastic=(1, 4))
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.give(_1={"n0": 1})
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.1"}
    scene.asked_to_stop.clear()  # it was recorded; who was to carry it out has died
    if was_ready:
        scene.ready("1.1.1")
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.1"}
    scene.end("1.1.1", 143)
    scene.asked_to_stop.clear()
    scene.reconcile()
    assert (scene.asked_to_stop, scene.names("1")) == (set(), ["1.1.0"])


def test_newcomers_that_fail_again_and_again_end_the_attempt() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.give(_1={"n0": 0b11})
    for index in (1, 2, 3):
        scene.reconcile()
        scene.end(f"1.1.{index}", 1)
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.0"}


def test_a_job_that_does_not_speak_changes_its_size_by_a_new_attempt() -> None:
    scene = Scene()
    scene.submit("1", elastic=(1, 4))
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.now_s = 100.0  # it has had time to say ready
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.0"}
    scene.end("1.1.0", 143)
    scene.reconcile()
    assert scene.names("1") == ["1.2.0", "1.2.1"]


def test_a_preempted_job_is_told_over_the_channel_and_by_signal() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.give(_1=None)
    scene.reconcile()
    assert scene.state.jobs["1"].members.leaves
    assert scene.asked_to_stop == {"1.1.0"}


def test_a_cancelled_job_ends_once_its_processes_have() -> None:
    scene = Scene()
    elastic_job(scene)
    scene.tell(happened.Cancelled("1", "enough"))
    scene.reconcile()
    assert scene.standing("1") == "PREEMPTING"
    scene.end("1.1.0", 137)
    scene.reconcile()
    assert scene.standing("1") == "CANCELLED"


def test_a_job_that_waits_and_is_cancelled_ends_at_once() -> None:
    scene = Scene()
    scene.submit("1")
    scene.tell(happened.Cancelled("1"))
    scene.reconcile()
    assert scene.standing("1") == "CANCELLED"


def test_jobs_of_a_lost_node_wait_again_but_not_before_their_processes_are_known_to_be_gone() -> None:
    scene = Scene()
    scene.submit("1")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.tell(happened.NodeLost("n0", "silent"))
    scene.give(_1={"n1": 1})
    scene.reconcile()
    assert scene.names("1") == ["1.1.0"]
    scene.end("1.1.0", 137)
    scene.reconcile()
    assert scene.names("1") == ["1.2.0"]
