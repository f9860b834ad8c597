"""What a change of size in place costs is measured, and policies are shown it."""

from math import isnan

import pytest
from tests.service.scene import Scene

from stretto.model import View
from stretto.service.scheduling.estimates import SWITCH_S
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured

MEASURED = Configured("stretto", resizes="measured")


def shown(scene: Scene) -> dict[str, float]:
    """What policies see, by job; NaN: a change of size is a stop and a start."""
    builder = SnapshotBuilder(frozenset({View.PROGRESS}))
    jobs = builder.observe(scene.state, scene.now_s, frozenset()).jobs
    return dict(zip(jobs.ids, jobs.progress.resize_s.tolist(), strict=True))


def wants(scene: Scene, job: str, mask: int) -> None:
    """The job is to hold these GPUs of its node, and all of its workers are there."""
    scene.give(**{f"_{job}": {f"n{int(job) - 1}": mask}})
    scene.reconcile()
    members = scene.state.jobs[job].members.workers
    scene.ready(*(name for name in scene.names(job) if name not in members))
    scene.reconcile()


def resized(scene: Scene, job: str, mask: int, lost_s: float) -> None:
    """A job that trains changes its size, and loses so much."""
    wants(scene, job, mask)
    members = scene.state.jobs[job].members
    for name in members.workers:
        scene.tell(happened.Joined(job, name, members.number, lost_s=lost_s))
    scene.join(job)


def two_that_train(configured: Configured) -> Scene:
    scene = Scene(3)
    scene.tell(configured)
    for job, model in (("1", "bert"), ("2", "other")):
        scene.submit(job, elastic=(1, 4), model=model)
        assert isnan(shown(scene)[job]), "nobody knows yet whether it can"
        wants(scene, job, 1)
        scene.join(job)
    return scene


def test_a_job_its_model_and_the_cluster_cost_what_was_seen() -> None:
    scene = two_that_train(MEASURED)
    assert shown(scene) == {"1": SWITCH_S, "2": SWITCH_S}
    resized(scene, "1", 3, 12.0)
    assert shown(scene) == {"1": 12.0, "2": 12.0}
    resized(scene, "1", 15, 18.0)
    resized(scene, "2", 3, 3.0)
    assert shown(scene) == pytest.approx({"1": 15.0, "2": 3.0})
    scene.submit("3", elastic=(1, 4), model="bert")
    assert isnan(shown(scene)["3"])
    wants(scene, "3", 1)
    scene.join("3")
    assert shown(scene)["3"] == pytest.approx(15.0)


def test_logs_that_do_not_say_so_were_decided_with_what_is_assumed() -> None:
    scene = two_that_train(Configured("stretto"))
    resized(scene, "1", 3, 12.0)
    assert shown(scene) == {"1": SWITCH_S, "2": SWITCH_S}
    scene.tell(MEASURED)
    assert shown(scene) == {"1": 12.0, "2": 12.0}
