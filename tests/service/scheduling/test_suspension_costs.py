"""What a stop and a later start cost is measured, and policies are shown it."""

import asyncio
from math import isnan

import pytest
from tests.service.emulated.stage import Stage
from tests.service.scene import Scene

from stretto.model import View
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured
from stretto.sim.settings import SimSettings

MEASURED = Configured("unisched", suspensions="measured")
STOP_S, START_S = 7.0, 13.0


def shown(scene: Scene) -> dict[str, float]:
    """What policies see, by job; NaN: nothing was measured."""
    builder = SnapshotBuilder(frozenset({View.PROGRESS}))
    jobs = builder.observe(scene.state, scene.now_s, frozenset()).jobs
    return dict(zip(jobs.ids, jobs.progress.suspension_s.tolist(), strict=True))


def stop_and_start(scene: Scene, job: str, stop_s: float, start_s: float) -> None:
    """A job that trains on a GPU of its own is stopped for a while."""
    scene.give(**{f"_{job}": None})
    scene.reconcile()
    scene.now_s += stop_s
    for name in scene.names(job):
        scene.end(name, 143)
    scene.reconcile()
    scene.now_s += 500.0  # other jobs run: no cost of the switch
    begin(scene, job, start_s)


def begin(scene: Scene, job: str, start_s: float) -> None:
    scene.give(**{f"_{job}": {"n0": 1 << int(job)}})
    scene.reconcile()
    if scene.state.jobs[job].spec.elastic is None:
        scene.now_s += start_s
        scene.ready(*scene.names(job))
        return
    scene.ready(*scene.names(job))
    scene.reconcile()
    scene.now_s += start_s
    scene.join(job)


def test_a_job_its_model_and_the_cluster_cost_what_was_seen() -> None:
    scene = Scene(1)
    scene.tell(MEASURED)
    scene.submit("1", elastic=(1, 1), model="bert")
    assert isnan(shown(scene)["1"])
    begin(scene, "1", 40.0)
    assert isnan(shown(scene)["1"]), "a first start is no resumption"
    stop_and_start(scene, "1", STOP_S, START_S)
    scene.submit("2", model="bert")
    scene.submit("3", model="other")
    assert shown(scene) == pytest.approx({"1": 20.0, "2": 20.0, "3": 20.0})
    stop_and_start(scene, "1", STOP_S, START_S + 10.0)
    assert shown(scene)["1"] == pytest.approx(25.0)
    # A job of another model adds to what is known of the cluster, not to the first model's.
    scene.tell(happened.Ended("1", "COMPLETED", 0))
    begin(scene, "3", 1.0)
    stop_and_start(scene, "3", 50.0, 5.0)
    scene.submit("4", model="third")
    assert shown(scene) == pytest.approx({"2": 25.0, "3": 55.0, "4": 35.0})


def test_an_attempt_that_failed_by_itself_is_no_suspension() -> None:
    scene = Scene(1)
    scene.tell(MEASURED)
    scene.submit("1", elastic=(1, 1), restart={"max": 3})
    begin(scene, "1", 5.0)
    scene.end(scene.names("1")[0], 1)
    scene.reconcile()
    scene.now_s += 100.0
    begin(scene, "1", 5.0)
    assert isnan(shown(scene)["1"])


def test_logs_that_do_not_say_so_were_decided_with_what_is_assumed() -> None:
    scene = Scene(1)
    scene.submit("1", elastic=(1, 1))
    begin(scene, "1", 1.0)
    stop_and_start(scene, "1", STOP_S, START_S)
    assert isnan(shown(scene)["1"])
    scene.tell(MEASURED)
    assert shown(scene)["1"] == pytest.approx(20.0)


def test_an_emulated_job_is_measured_to_cost_what_its_world_charges() -> None:
    async def play() -> None:
        stage = Stage(SimSettings(restart_s=20.0, restart_per_gpu_s=1.0))
        stage.submit("1", "run: x\nresources: {accelerators: 2}\nexpected_time: 1h\n")
        two = ((0, 1), (0, 2))
        for attempt in (1, 2):
            names = await stage.start("1", attempt, two, seen=False)
            while (await stage.shown(names[0])).phase != "running":
                stage.go_to(stage.backend.due_s)
            stage.log_writer.record(happened.WorkersRan("1", tuple(names)))
            stage.go_to(stage.now_s + 600.0)
            stage.log_writer.record(happened.WorkersStopped("1", tuple(names)))
            for name in names:
                await stage.backend.stop(name, 30.0)
            stage.log_writer.record(happened.AttemptClosed("1", attempt, "left"))
        assert stage.log_writer.state.suspension_s("") == pytest.approx(21.0)

    asyncio.run(play())
