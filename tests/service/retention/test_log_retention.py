"""What jobs have written is deleted a while after their end, and whoever asks for it is told so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.backends.test_local import end
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import NOWHERE, SMALL, Rig, a_rig, play

from stretto.backends.local.agent_client import OwnAgent
from stretto.backends.local.backend import LocalBackend
from stretto.backends.protocol import BackendUnreachable
from stretto.service.eventlog.clock import Clock
from stretto.service.retention import log_retention as deletings
from stretto.service.retention.job_retention import DAY_S, RetentionPolicy
from stretto.service.retention.log_retention import LogRetention, age_in_words
from stretto.service.state.events import ClockSet, Retired

KEEP = RetentionPolicy(logs_s=14 * DAY_S)
pytestmark = pytest.mark.sqlite


@dataclass
class Troubled(FakeBackend):
    """Some jobs are on nodes that do not answer."""

    silent: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    async def delete_logs(self, job: str) -> None:
        self.asked.append(job)
        if job in self.silent:
            raise BackendUnreachable("the node does not answer")
        await super().delete_logs(job)


async def ended(rig: Rig, count: int) -> list[str]:
    """Jobs that ran, wrote and ended, and have left the state."""
    names = [await rig.submit("ada", **SMALL) for _ in range(count)]
    for name in names:
        await rig.until(lambda name=name: f"{name}.1.0" in {one.id for one in rig.backend.started})  # type: ignore[misc]
        rig.backend.logs[f"{name}.1.0"] = b"hello"
        await rig.backend.finish(f"{name}.1.0", 0)
        await rig.until(lambda name=name: rig.service.state.jobs[name].has_ended)  # type: ignore[misc]
        await rig.until(lambda name=name: f"{name}.1.0" not in rig.backend.shown)  # type: ignore[misc]
    await rig.service.record(Retired(tuple(names)))
    return names


def after(rig: Rig, days: float, keep: RetentionPolicy = KEEP) -> LogRetention:
    """What deletes logs, so many days later."""
    clock = Clock(origin_s=rig.service.clock.now_s() + days * DAY_S)
    return LogRetention(rig.store.ended, rig.backend, clock, keep)


@contextlib.asynccontextmanager
async def a_scene(path: Path) -> AsyncIterator[Rig]:
    async with a_rig(path, backend=Troubled()) as rig:
        yield rig


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletings, "PAUSE_S", 0.0)


def test_logs_are_kept_for_so_long_and_whoever_asks_later_is_told_that_they_were_deleted(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with a_scene(tmp_path) as rig, rig.client("ada") as ada, rig.client("bob") as bob:
            (job,) = await ended(rig, 1)
            waiting = await rig.submit("ada", **NOWHERE)
            await after(rig, 13.9).look()
            assert (await ada.get(f"/api/v1/jobs/{job}/log")).json()["text"] == "hello"
            await after(rig, 14.1).look()
            assert rig.backend.asked == [job]
            for path in ("log", "log/follow"):
                answer = await ada.get(f"/api/v1/jobs/{job}/{path}")
                said = f"the log of job {job} was deleted 14 days after its end"
                assert (answer.status_code, answer.json()["detail"]) == (410, said)
                assert (await bob.get(f"/api/v1/jobs/{job}/{path}")).status_code == 404
            await after(rig, 99.0).look()
            assert rig.backend.asked == [job], "once"
            assert waiting in rig.service.state.jobs

    play(story)


def test_no_logs_are_deleted_while_it_is_not_sure_what_time_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_scene(tmp_path) as rig:
            (job,) = await ended(rig, 1)
            late, right = after(rig, 99.0), rig.service.state.unix_s
            late.calendar = rig.service.state.calendar
            await rig.service.record(ClockSet(1.0, right + 99 * DAY_S, right, "boot", jumped_s=99 * DAY_S))
            await late.look()
            assert rig.backend.asked == []
            await rig.service.record(ClockSet(1.0, right, right, "boot", jumped_s=-99 * DAY_S))
            await late.look()
            assert rig.backend.asked == [job]

    play(story)


def test_a_job_whose_node_is_silent_is_asked_again_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deletings, "MOST_TROUBLE", 2)
    monkeypatch.setattr(deletings, "AT_ONCE", 1)

    async def story() -> None:
        async with a_scene(tmp_path) as rig:
            names = await ended(rig, 5)
            rig.backend.silent |= set(names[:3])
            later = after(rig, 15)
            await later.look()
            assert rig.backend.asked == names[:2]
            await later.look()
            assert rig.backend.asked == names
            rig.backend.silent.clear()
            await later.look()
            assert rig.backend.asked[5:] == names[:3]
            assert not rig.store.ended.with_logs(1e12, deletings.BEGINNING, 9)

    play(story)


def test_after_a_restart_and_after_any_error_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletings, "CHECK_S", 0.01)

    async def story() -> None:
        async with a_scene(tmp_path) as rig:
            names = await ended(rig, 2)
            first = after(rig, 15)
            monkeypatch.setattr(rig.backend, "delete_logs", None)  # an error that nobody thought of
            running = asyncio.create_task(first.run())
            await asyncio.sleep(0.1)
            assert not running.done()
            running.cancel()
            monkeypatch.undo()
            monkeypatch.setattr(deletings, "CHECK_S", 0.01)
            running = asyncio.create_task(after(rig, 15).run())
            await rig.until(lambda: not rig.store.ended.with_logs(1e12, deletings.BEGINNING, 9))
            assert set(rig.backend.asked) == set(names)
            running.cancel()

    play(story)


def test_logs_that_are_kept_without_end_are_never_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_scene(tmp_path) as rig:
            await ended(rig, 1)
            await asyncio.wait_for(after(rig, 1e6, RetentionPolicy(logs_s=float("inf"))).run(), 60)
            assert rig.backend.asked == []

    play(story)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnAgent]:
    agent = OwnAgent("n1", tmp_path / "n1", gpus=2, gpu_type="t")
    yield agent
    end(agent)


@pytest.mark.processes
def test_over_a_real_agent_the_run_of_an_old_job_goes_and_that_of_a_living_one_stays(
    tmp_path: Path, own: OwnAgent
) -> None:
    def kept() -> set[str]:
        return {path.name for path in (tmp_path / "n1").rglob("*.1.0") if path.is_dir()}

    async def story() -> None:
        backend = await LocalBackend([own]).open()
        async with a_rig(tmp_path, backend=backend) as rig, rig.client("ada") as ada:
            try:
                old = await rig.submit("ada", text="run: echo hello")
                living = await rig.submit("ada", text="run: echo hi; sleep 600")
                await rig.until(lambda: rig.service.state.jobs[old].has_ended)
                await rig.until(lambda: f"{living}.1.0" in rig.service.state.jobs[living].workers)
                await rig.until(lambda: f"{old}.1.0" not in rig.service.reconciler.seen.workers)
                assert kept() == {f"{old}.1.0", f"{living}.1.0"}
                await rig.service.record(Retired((old,)))
                await after(rig, 13).look()
                assert (await ada.get(f"/api/v1/jobs/{old}/log")).json()["text"] == "hello\n"
                await after(rig, 15).look()
                assert kept() == {f"{living}.1.0"}
                assert (await ada.get(f"/api/v1/jobs/{old}/log")).status_code == 410
            finally:
                await backend.close()

    play(story)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (14.5 * DAY_S, "14 days"),
        (DAY_S, "1 day"),
        (7_300.0, "2 hours"),
        (90.0, "1 minute"),
        (5.0, "less than a minute"),
    ],
)
def test_ages_are_said_in_whole_days_or_less(seconds: float, words: str) -> None:
    assert age_in_words(seconds) == words
