"""A node that is silent for too long is given up; what returns with it is stopped before anybody follows."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import Rig, a_rig, play
from tests.service.scene import Scene

from stretto.agent import open_files
from stretto.service import control_loop
from stretto.service.reconcile.controller import Reconciler
from stretto.service.state import events as happened


def silent_scene() -> Scene:
    scene = Scene()
    scene.submit("1", gpus=2)
    scene.give(_1={"n0": 1, "n1": 1})
    scene.reconcile()
    scene.silence(0)
    scene.reconcile()
    return scene


def test_a_job_waits_for_its_workers_on_a_silent_node_until_the_node_is_given_up() -> None:
    scene = silent_scene()
    assert scene.asked_to_stop == {"1.1.1"}
    scene.end("1.1.1", 143)
    scene.give(_1={"n1": 0b11})
    scene.reconcile()
    assert scene.names("1") == ["1.1.0"]
    scene.bury(0)
    scene.reconcile()
    assert scene.names("1") == ["1.1.0", "1.2.0", "1.2.1"]
    assert (scene.standing("1"), scene.state.jobs["1"].failures) == ("RUNNING", 0)


def test_gpus_of_a_node_that_returns_are_free_once_what_was_given_up_is_gone() -> None:
    scene = silent_scene()
    scene.end("1.1.1", 143)
    scene.bury(0)
    scene.reconcile()
    scene.answer(0)
    assert "1.1.0" in scene.asked_to_stop
    scene.submit("2", gpus=4)
    scene.give(_2={"n0": 0b1111})
    scene.reconcile()
    assert scene.names("2") == []
    scene.end("1.1.0", 137)
    scene.reconcile()
    assert len(scene.names("2")) == 4


def test_a_node_that_answers_in_time_is_not_given_up_by_what_comes_too_late() -> None:
    scene = silent_scene()
    scene.answer(0)
    scene.bury(0)
    assert scene.strays() == set()
    assert not scene.state.nodes[0].dead


async def running(rig: Rig, job: str, attempt: int) -> None:
    record = rig.service.state.jobs[job]
    await rig.until(lambda: record.attempt == attempt and f"{job}.{attempt}.0" in rig.backend.shown)


@pytest.mark.sqlite
def test_the_service_gives_a_silent_node_up_and_stops_what_returns_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        backend = FakeBackend(gpus=1)
        async with a_rig(tmp_path, backend=backend) as rig:
            rig.service.reconciler.dead_after_s = 0.2
            burying = asyncio.create_task(control_loop.expire_silent_nodes(rig.service.reconciler))
            job = await rig.submit()
            await running(rig, job, 1)
            node = backend.shown[f"{job}.1.0"].node
            backend.stubborn.add(f"{job}.1.0")
            backend.silent.add(node)
            await backend.set_up(node, False)
            await running(rig, job, 2)
            assert backend.shown[f"{job}.2.0"].node != node
            second = await rig.submit()
            await rig.until(lambda: rig.service.scheduling.latest_snapshot is not None)
            backend.silent.clear()
            await backend.set_up(node, True)
            await rig.until(lambda: f"{job}.1.0" in backend.stopped)
            await rig.until(lambda: rig.service.state.wanted(second) is not None)
            await asyncio.sleep(0.1)  # long enough for a start that must not come
            assert f"{second}.1.0" not in backend.shown
            await backend.finish(f"{job}.1.0", 137)
            await running(rig, second, 1)
            assert rig.service.state.jobs[job].attempt == 2
            burying.cancel()

    play(story)


@pytest.mark.sqlite
def test_a_service_that_begins_waits_its_full_time_for_a_node_that_was_silent_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            service = rig.service
            await rig.backend.set_up("n0", False)
            await rig.until(lambda: not service.state.nodes[0].up)
            service.clock.origin_s += 1000.0
            later = Reconciler(
                service.log_writer, rig.backend, service.clock, service.context, dead_after_s=500.0
            )
            burying = asyncio.create_task(control_loop.expire_silent_nodes(later))
            await asyncio.sleep(0.05)
            assert not service.state.nodes[0].dead
            service.clock.origin_s += 501.0
            burying.cancel()
            burying = asyncio.create_task(control_loop.expire_silent_nodes(later))
            await rig.until(lambda: service.state.nodes[0].dead)
            burying.cancel()

    play(story)


@pytest.mark.sqlite
@pytest.mark.parametrize("gpu_type", ["a100", "h100"])
def test_a_node_that_comes_back_as_another_one_is_noted_once_and_not_used(
    tmp_path: Path, gpu_type: str
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, backend=FakeBackend(nodes_count=1)) as rig:
            seen: list[happened.NodeSeen] = []
            rig.service.log_writer.listeners.append(
                lambda told: seen.extend(one for _, one in told if isinstance(one, happened.NodeSeen))
            )
            job = await rig.submit()
            await running(rig, job, 1)
            rig.backend.known["n0"] = replace(rig.backend.known["n0"], gpu_type=gpu_type, gpus=2)
            for _ in range(5):
                await rig.backend.tell()
                await asyncio.sleep(0.02)
            node = rig.service.state.nodes[0]
            await rig.until(lambda: not node.up)
            await rig.backend.tell()
            await asyncio.sleep(0.1)
            assert (len(seen), node.up) == (1, False)
            assert node.why == f"came back with 2 x {gpu_type}, had 4 x a100"
            await rig.until(lambda: f"{job}.1.0" in rig.backend.stopped)
            assert rig.service.state.wanted(job) is None
            rig.backend.known["n0"] = replace(rig.backend.known["n0"], gpu_type="a100", gpus=8)
            await rig.backend.tell()
            await running(rig, job, 2)
            assert node.up
            assert node.gpus == 4, "those that are new are not used"

    play(story)


def test_what_is_never_given_up_is_waited_for() -> None:
    scene = silent_scene()
    scene.end("1.1.1", 143)
    scene.now_s += 1e6
    scene.reconcile()
    assert scene.standing("1") == "PREEMPTING"
    scene.tell(happened.Cancelled("1"))
    scene.reconcile()
    assert scene.standing("1") == "PREEMPTING"


@pytest.mark.sqlite
def test_a_start_that_is_still_being_tried_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        backend = FakeBackend(nodes_count=1)
        backend.silent.add("n0")
        async with a_rig(tmp_path, backend=backend) as rig:
            job = rig.service.state.jobs[await rig.submit()]
            await rig.until(lambda: rig.service.reconciler.dispatcher.start_errors)
            shown = rig.service.status_of(job)
            assert (shown.state, shown.evidence) == ("STARTING", "node n0 does not answer")
            backend.silent.clear()
            await rig.until(lambda: rig.backend.shown)
            await rig.until(lambda: rig.service.status_of(job).state == "RUNNING")
            assert rig.service.status_of(job).evidence == ""

    play(story)


def test_a_training_that_was_told_to_leave_a_silent_node_is_not_joined_by_newcomers_elsewhere() -> None:
    scene = Scene()
    job = scene.submit("1", elastic=(1, 4))
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.silence(0)
    scene.reconcile()
    assert job.members.leaves
    scene.give(_1={"n1": 1})
    scene.reconcile()
    assert scene.names("1") == ["1.1.0"], "nobody starts beside who may still train"
    scene.bury(0)
    scene.reconcile()
    scene.give(_1={"n1": 1})
    scene.reconcile()
    assert [name for name in scene.names("1") if name.startswith("1.2.")] == ["1.2.0"]


@pytest.mark.sqlite
def test_a_service_that_can_open_no_files_gives_no_silent_node_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        backend = FakeBackend(gpus=1)
        async with a_rig(tmp_path, backend=backend) as rig:
            looks = 0

            def can_open() -> bool:
                nonlocal looks
                looks += 1
                return looks > 10

            monkeypatch.setattr(open_files, "can_open", can_open)
            reconciler = rig.service.reconciler
            reconciler.dead_after_s = 0.2
            backend.silent.add("n0")
            await backend.set_up("n0", False)
            await rig.until(lambda: not rig.service.state.nodes[0].up)
            lost_s = rig.service.state.nodes[0].silent_s
            burying = asyncio.create_task(control_loop.expire_silent_nodes(reconciler))
            await rig.until(lambda: rig.service.state.nodes[0].dead)
            assert looks > 10
            assert rig.service.state.at_s - lost_s > 10 * 0.2 / 4
            burying.cancel()

    play(story)
