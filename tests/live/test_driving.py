"""What the backend shows, or does not show any more, is written down; what it refuses is tried again."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.live.api.rig import Rig, a_rig, play
from tests.live.fake_backend import FakeBackend

from stretto.live import driving
from stretto.live.backends.protocol import BackendUnreachable, WorkerStart, WorkerState
from stretto.live.driving import Driver


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "AGAIN_S", 0.01)


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
            later = Driver(service.ledger, backend, service.clock, service.secrets)
            await backend.set_up(name, False)
            await later.look()
            assert record.alive
            await backend.set_up(name, True)
            await later.look()
            assert not record.alive
            assert record.why == "its node does not know it"

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
            for task in rig.service.driver._tasks:
                task.cancel()

    play(story)
