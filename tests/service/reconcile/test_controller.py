"""What the backend shows, or does not show any more, is written down; what it refuses is tried again."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import Rig, a_rig, play

from stretto.backends.protocol import BackendUnreachable, WorkerStart, WorkerState
from stretto.model import Allocation, JobId, actions_between
from stretto.service import control_loop
from stretto.service.reconcile import controller
from stretto.service.reconcile.controller import Reconciler
from stretto.service.state.events import Decided, Joined, WorkerReady
from stretto.service.state.reducer import actions_json

pytestmark = pytest.mark.sqlite


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "AGAIN_S", 0.01)


async def running(rig: Rig, job: str, attempt: int = 1) -> None:
    record = rig.service.state.jobs[job]
    await rig.until(lambda: record.attempt == attempt and any(one.began_s >= 0 for one in record.alive))


def test_a_worker_that_its_node_does_not_know_any_more_is_lost_and_its_job_begins_anew(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            job = await rig.submit()
            await running(rig, job)
            del rig.backend.shown[f"{job}.1.0"]
            await rig.backend.tell()
            await running(rig, job, 2)
            assert rig.service.state.jobs[job].losses == 1

    play(story)


def test_a_service_that_begins_finds_that_a_worker_is_gone_but_not_while_its_node_is_silent(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            service, backend = rig.service, rig.backend
            job = await rig.submit()
            await running(rig, job)
            for loop in rig.loops[1:]:
                loop.cancel()
            record = service.state.jobs[job]
            name = backend.shown.pop(f"{job}.1.0").node
            later = Reconciler(service.log_writer, backend, service.clock, service.context)
            await backend.set_up(name, False)
            await control_loop.observe_once(later)
            assert record.alive
            await backend.set_up(name, True)
            await control_loop.observe_once(later)
            assert not record.alive
            assert record.why == "its node does not know it"

    play(story)


def test_whoever_waits_for_gpus_of_a_stray_begins_once_that_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        backend = FakeBackend(nodes_count=1, gpus=1)
        backend.shown["99.1.0"] = WorkerState("99.1.0", "n0", (0,), "running", job="99")
        backend.stubborn.add("99.1.0")
        async with a_rig(tmp_path, backend=backend) as rig:
            job = await rig.submit()
            await rig.until(lambda: rig.service.state.wanted(job) is not None)
            await asyncio.sleep(0.05)
            assert set(backend.shown) == {"99.1.0"}
            await backend.finish("99.1.0", 137)
            await running(rig, job)

    play(story)


async def give(rig: Rig, **wanted: int) -> None:
    """Decide: each job (its name after an underscore) is to hold these GPUs of n0."""
    state = rig.service.state
    assert state.placement is not None
    assert state.cluster is not None
    changes = {
        JobId(name[1:]): Allocation(0, (0,), (mask,)) if mask else None for name, mask in wanted.items()
    }
    actions = actions_between(state.placement, state.placement.changed(changes))
    said = tuple(actions_json(actions, state.cluster))
    await rig.service.record(Decided(state.seq, rig.service.clock.now_s(), (), said))


def test_whoever_is_to_grow_grows_once_the_gpus_are_free(tmp_path: Path) -> None:
    async def story() -> None:
        backend = FakeBackend(nodes_count=1, gpus=2)
        async with a_rig(tmp_path, backend=backend, decides=False) as rig:
            grows = await rig.submit(text="run: x\nelastic: {min: 1, max: 2}")
            leaves = await rig.submit()
            await give(rig, **{f"_{grows}": 0b1, f"_{leaves}": 0b10})
            await running(rig, grows)
            await running(rig, leaves)
            first = f"{grows}.1.0"
            await rig.service.record(WorkerReady(grows, first))
            await rig.until(lambda: rig.service.state.jobs[grows].members.number)
            await rig.service.record(Joined(grows, first, 1))
            backend.stubborn.add(f"{leaves}.1.0")
            await give(rig, **{f"_{grows}": 0b11, f"_{leaves}": 0})
            await rig.until(lambda: f"{leaves}.1.0" in backend.stopped)
            await asyncio.sleep(0.05)
            assert set(backend.shown) == {first, f"{leaves}.1.0"}
            await backend.finish(f"{leaves}.1.0", 143)
            await rig.until(lambda: f"{grows}.1.1" in backend.shown)

    play(story)


def test_whoever_is_asked_over_and_over_is_noted_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=False) as rig:
            grows = await rig.submit(text="run: x\nelastic: {min: 1, max: 2}")
            await give(rig, **{f"_{grows}": 0b1})
            await running(rig, grows)
            await give(rig, **{f"_{grows}": 0b11})  # and may yet say that it is ready
            for _ in range(10):
                await rig.submit()
                await asyncio.sleep(0.01)
                assert len(rig.service.reconciler.later) <= 1
            await rig.until(lambda: [job for _, job in rig.service.reconciler.later] == [grows])

    play(story)


@dataclass
class Surprising(FakeBackend):
    """Start and stop fail once each in a way that nobody has thought of."""

    surprises: set[str] = field(default_factory=lambda: {"start", "stop"})

    def _surprise(self, what: str) -> None:
        if what in self.surprises:
            self.surprises.remove(what)
            raise ZeroDivisionError(what)

    async def start(self, worker: WorkerStart) -> WorkerState:
        self._surprise("start")
        return await super().start(worker)

    async def stop(self, worker_id: str, grace_s: float) -> None:
        self._surprise("stop")
        await super().stop(worker_id, grace_s)


def test_a_command_that_fails_in_an_unknown_way_is_told_and_given_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, backend=Surprising()) as rig:
            job = await rig.submit()
            await running(rig, job)
            async with rig.client("ada") as client:
                assert (await client.post(f"/api/v1/jobs/{job}/cancel", json={})).status_code == 200
            await rig.until(lambda: rig.service.state.jobs[job].has_ended)

    play(story)
    assert [one.levelname for one in caplog.records if "is tried again" in one.getMessage()] == ["ERROR"] * 2


@dataclass
class Late(FakeBackend):
    """No start is answered in time."""

    under_way: list[WorkerStart] = field(default_factory=list)

    async def start(self, worker: WorkerStart) -> WorkerState:
        self.under_way.append(worker)
        raise BackendUnreachable("did not answer within 30 s")

    async def carry_out(self) -> WorkerState:
        """The first of them is carried out, long after."""
        return await super().start(self.under_way[0])


def test_a_worker_that_comes_up_after_its_job_was_cancelled_is_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        backend = Late()
        async with a_rig(tmp_path, backend=backend) as rig:
            job = await rig.submit()
            await rig.until(lambda: bool(backend.under_way))
            async with rig.client("ada") as client:
                assert (await client.post(f"/api/v1/jobs/{job}/cancel", json={})).status_code == 200
            await rig.until(lambda: rig.service.state.jobs[job].has_ended)
            assert (await backend.carry_out()).phase == "running"
            await rig.until(lambda: backend.stopped == [f"{job}.1.0"] and not backend.shown)

    play(story)


@dataclass
class Slow(FakeBackend):
    """Some nodes take very long to forget anything, and then have not."""

    slow: set[str] = field(default_factory=set)

    async def forget(self, worker_id: str) -> None:
        if self.shown[worker_id].node in self.slow:
            await asyncio.sleep(1000.0)
            raise BackendUnreachable("timed out")
        await super().forget(worker_id)


def test_nobody_waits_for_a_node_that_takes_long_to_forget(tmp_path: Path) -> None:
    async def story() -> None:
        backend = Slow(nodes_count=2, gpus=1)
        async with a_rig(tmp_path, backend=backend) as rig:
            jobs = [await rig.submit(), await rig.submit()]
            for job in jobs:
                await running(rig, job)
            backend.slow.add(backend.shown[f"{jobs[0]}.1.0"].node)
            await backend.finish(f"{jobs[0]}.1.0")
            await rig.until(lambda: rig.service.state.jobs[jobs[0]].has_ended)
            await asyncio.sleep(0.05)
            await backend.finish(f"{jobs[1]}.1.0")
            await rig.until(lambda: rig.service.state.jobs[jobs[1]].has_ended)
            await rig.until(lambda: set(backend.shown) == {f"{jobs[0]}.1.0"})
            for task in rig.service.reconciler.dispatcher.tasks:
                task.cancel()

    play(story)


@dataclass
class Stuck(FakeBackend):
    """One worker cannot be forgotten, as where rights were taken away."""

    stuck: str = ""

    async def forget(self, worker_id: str) -> None:
        if worker_id == self.stuck:
            raise BackendUnreachable("the API server refuses")
        await super().forget(worker_id)


@pytest.mark.slow
def test_a_worker_that_cannot_be_forgotten_holds_up_no_other_of_its_node(tmp_path: Path) -> None:
    async def story() -> None:
        backend = Stuck(nodes_count=1, gpus=2)
        async with a_rig(tmp_path, backend=backend) as rig:
            jobs = [await rig.submit(), await rig.submit()]
            for job in jobs:
                await running(rig, job)
            backend.stuck = f"{jobs[0]}.1.0"
            for job in jobs:
                await backend.finish(f"{job}.1.0")
            await rig.until(lambda: all(rig.service.state.jobs[job].has_ended for job in jobs))
            await rig.until(lambda: set(backend.shown) == {backend.stuck})

    play(story)


def test_a_node_that_its_cluster_lists_no_more_is_down_until_it_is_listed_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            known = rig.service.state.nodes[-1]
            await rig.until(lambda: known.up)
            listed = rig.backend.known.pop(known.name)
            await rig.backend.tell()
            await rig.until(lambda: not known.up)
            assert known.why == "its cluster does not list it"
            rig.backend.known[known.name] = listed
            await rig.backend.tell()
            await rig.until(lambda: known.up)

    play(story)
