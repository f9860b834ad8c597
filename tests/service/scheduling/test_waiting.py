"""Times, holds and priorities: who may run when, and for how long."""

import asyncio
from math import inf
from pathlib import Path

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import a_rig, play
from tests.service.scene import Scene

from stretto.model import Snapshot
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.status import status_of


def snapshot(scene: Scene) -> Snapshot:
    return SnapshotBuilder(frozenset()).observe(scene.state, scene.now_s, frozenset())


def reason(scene: Scene, job: str) -> tuple[str, str]:
    shown = status_of(scene.state, scene.state.jobs[job], scene.now_s)
    return shown.reason, shown.evidence


def test_a_job_does_not_start_before_its_time() -> None:
    scene = Scene()
    scene.now_s = 5.0
    scene.submit("1", start_after={"after_s": 100.0})
    observer = SnapshotBuilder(frozenset())
    assert observer.next_change_s(scene.state, scene.now_s) == 105.0
    scene.now_s = 104.5
    assert snapshot(scene).jobs.ids == ()
    assert reason(scene, "1") == ("NOT_BEFORE", "0 s from now")
    scene.now_s = 105.0
    assert snapshot(scene).jobs.ids == ("1",)
    assert observer.next_change_s(scene.state, scene.now_s) == inf


def test_a_requeued_job_leaves_its_gpus_and_waits_for_its_time() -> None:
    scene = Scene()
    scene.submit("1")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.tell(happened.Requeued("1", 20.0, "requeued by hand"))
    scene.reconcile()
    assert (scene.asked_to_stop, scene.standing("1")) == ({"1.1.0"}, "PREEMPTING")
    scene.end("1.1.0", 0)
    scene.reconcile()
    assert (scene.standing("1"), snapshot(scene).jobs.ids) == ("PENDING", ())
    assert reason(scene, "1") == ("NOT_BEFORE", "requeued by hand; tried again 20 s from now")
    scene.now_s = 20.0
    assert snapshot(scene).jobs.ids == ("1",)
    assert scene.state.jobs["1"].failures == 0


def test_a_failed_job_is_not_shown_to_the_policy_before_its_pause_is_over() -> None:
    scene = Scene()
    job = scene.submit("1", restart={"max": 3})
    for pause_s in (10.0, 20.0, 40.0):
        scene.give(_1={"n0": 1})
        scene.reconcile()
        scene.end(f"1.{job.attempt}.0", 1)
        scene.reconcile()
        scene.now_s += pause_s - 0.5
        assert snapshot(scene).jobs.ids == ()
        scene.now_s += 0.5
        assert snapshot(scene).jobs.ids == ("1",)


def test_a_held_job_ends_its_processes_and_waits_until_it_is_released() -> None:
    scene = Scene()
    scene.submit("1")
    scene.submit("2")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.tell(happened.Held("1", True), happened.Held("2", True))
    scene.reconcile()
    assert scene.asked_to_stop == {"1.1.0"}
    scene.end("1.1.0", 143)
    scene.reconcile()
    assert (scene.standing("1"), scene.standing("2")) == ("SUSPENDED", "PENDING")
    assert (reason(scene, "1")[0], snapshot(scene).jobs.ids) == ("HELD", ())
    scene.tell(happened.Held("1", False))
    assert (scene.standing("1"), snapshot(scene).jobs.ids) == ("PENDING", ("1",))


def test_a_policy_sees_the_priority_that_a_job_was_given_last() -> None:
    scene = Scene()
    observer = SnapshotBuilder(frozenset())
    scene.submit("1", priority=3)
    scene.submit("2")
    assert observer.observe(scene.state, 0.0, frozenset()).jobs.priority.tolist() == [3, 0]
    scene.tell(happened.Prioritised("2", 7))
    assert observer.observe(scene.state, 0.0, frozenset()).jobs.priority.tolist() == [3, 7]


@pytest.mark.sqlite
def test_a_job_ends_once_it_has_run_for_as_long_as_it_may_restarts_included(tmp_path: Path) -> None:
    async def story() -> None:
        backend = FakeBackend(nodes_count=1, gpus=1)
        async with a_rig(tmp_path, backend=backend) as rig:
            service = rig.service
            watching = asyncio.create_task(service.watch_times())
            text = "run: 'true'\nmax_time: 1000s\nrestart: {max: 1}\n"
            job = service.state.jobs[await rig.submit(text=text)]
            await rig.until(lambda: f"{job.id}.1.0" in backend.shown)
            service.clock.origin_s += 600.0
            await backend.finish(f"{job.id}.1.0", 1)
            await rig.until(lambda: job.not_before_s > 0)
            service.clock.origin_s += 5000.0  # who waits to be tried again does not run
            await rig.until(lambda: f"{job.id}.2.0" in backend.shown)
            service.clock.origin_s += 500.0
            await rig.until(lambda: job.has_ended)
            assert (job.state, job.why, job.attempt) == ("TIMEOUT", "ran for 1000 s", 2)
            assert 1100.0 <= job.accounting.executed_s < 1200.0
            watching.cancel()

    play(story)
