"""Checkpoints of jobs that are through go if somebody says so, and nothing that people have named."""

import asyncio
from pathlib import Path

import pytest
from tests.service.http.rig import NOWHERE, Rig, a_rig, play

from stretto.service.eventlog.clock import Clock
from stretto.service.retention import checkpoint_gc as clearings
from stretto.service.retention.checkpoint_gc import CheckpointGC
from stretto.service.retention.job_retention import DAY_S, RetentionPolicy
from stretto.service.state.events import Checkpointed, ClockSet, Retired

KEEP = RetentionPolicy(checkpoints_s=30 * DAY_S)
pytestmark = pytest.mark.sqlite
PLAIN = {"text": "run: 'true'"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearings, "PAUSE_S", 0.0)


async def ended(rig: Rig, status: int = 0, **said: str) -> str:
    """A job that ran, saved and ended, and has left the state."""
    job = await rig.submit("ada", **{**PLAIN, **said})
    await rig.until(lambda: f"{job}.1.0" in {one.id for one in rig.backend.started})
    started = next(one for one in rig.backend.started if one.id == f"{job}.1.0")
    saved(Path(started.env["STRETTO_CHECKPOINT_DIR"]), job)
    await rig.backend.finish(f"{job}.1.0", status)
    await rig.until(lambda: rig.service.state.jobs[job].has_ended)
    await rig.until(lambda: f"{job}.1.0" not in rig.backend.shown)
    await rig.service.record(Retired((job,)))
    return job


def saved(folder: Path, job: str) -> None:
    """What a worker leaves there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f".token-{job}").write_text("secret")
    (folder / f"of-{job}.pt").write_bytes(b"weights")


def after(rig: Rig, days: float, keep: RetentionPolicy = KEEP) -> CheckpointGC:
    """What deletes checkpoints, so many days later."""
    clock = Clock(origin_s=rig.service.clock.now_s() + days * DAY_S)
    return CheckpointGC(rig.service.state, rig.store.ended, rig.service.context, clock, keep)


def kept(rig: Rig) -> set[str]:
    return {path.name for path in rig.service.context.checkpoints.iterdir()}


def test_checkpoints_of_completed_jobs_go_when_they_are_old_and_those_of_failed_ones_stay(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            done, failed = await ended(rig), await ended(rig, 3)
            living = await rig.submit("ada", **NOWHERE)
            saved(rig.service.context.checkpoints / living, living)
            saved(rig.service.context.checkpoints / "not-a-job", "9999")
            await after(rig, 29).look()
            assert kept(rig) == {done, failed, living, "not-a-job"}
            await after(rig, 31).look()
            assert kept(rig) == {failed, living, "not-a-job"}

    play(story)


def test_no_checkpoints_are_deleted_while_it_is_not_sure_what_time_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            done, right = await ended(rig), rig.service.state.unix_s
            await rig.service.record(ClockSet(1.0, right + 99 * DAY_S, right, "boot", jumped_s=99 * DAY_S))
            await after(rig, 99).look()
            assert kept(rig) == {done}
            await rig.service.record(ClockSet(1.0, right, right, "boot", jumped_s=-99 * DAY_S))
            await after(rig, 99).look()
            assert kept(rig) == set()

    play(story)


def test_a_checkpoint_that_is_gone_is_not_shown_any_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            root = rig.service.context.checkpoints
            job = await rig.submit("ada", **PLAIN)
            await rig.until(lambda: f"{job}.1.0" in {one.id for one in rig.backend.started})
            saved(root / job, job)
            path = root / job / f"of-{job}.pt"
            await rig.service.record(Checkpointed(job, 7, str(path)))
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: rig.service.state.jobs[job].has_ended)
            assert await shown_checkpoint(rig, job) == str(path)
            await rig.until(lambda: f"{job}.1.0" not in rig.backend.shown)
            await rig.service.record(Retired((job,)))
            await after(rig, 31).look()
            assert kept(rig) == set()
            assert await shown_checkpoint(rig, job) == ""

    play(story)


async def shown_checkpoint(rig: Rig, job: str) -> str:
    record = await rig.service.archive.job(job)
    assert record is not None
    return str(rig.service.status_of(record).checkpoint)


def test_what_people_have_named_stays_whoever_named_it_and_wherever_it_lies(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            root, elsewhere = rig.service.context.checkpoints, tmp_path / "mine"
            first, second, third = [await ended(rig) for _ in range(3)]
            inside = await ended(rig, text="run: 'true'\ncheckpoint: {dir: inside}")
            again = await ended(rig, text=f"run: 'true'\ncheckpoint: {{dir: '{first}'}}")
            assert (root / first / f".token-{again}").exists()
            waits = f"run: 'true'\nstart_after: 1d\ncheckpoint: {{dir: '{root / second / 'deeper'}'}}"
            await rig.submit("ada", text=waits)
            (root / third).rename(elsewhere)
            (root / third).symlink_to(elsewhere)
            saved(root / inside, inside)  # by a script of its own that joins the two
            await after(rig, 99).look()
            assert kept(rig) == {first, second, third, "inside", inside}
            assert (elsewhere / f"of-{third}.pt").exists()

    play(story)


def test_unless_somebody_says_so_all_are_kept_without_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            job = await ended(rig)
            await asyncio.wait_for(after(rig, 1e6, RetentionPolicy()).run(), 60)
            assert kept(rig) == {job}

    play(story)


def test_a_directory_that_cannot_be_deleted_is_tried_again_and_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            first, _ = await ended(rig), await ended(rig)
            delete = clearings.delete

            def fails(place: Path, job: str) -> bool:
                if job == first:
                    raise PermissionError(13, "Permission denied", str(place))
                return delete(place, job)

            monkeypatch.setattr(clearings, "delete", fails)
            monkeypatch.setattr(clearings, "CHECK_S", 0.01)
            running = asyncio.create_task(after(rig, 31).run())
            await rig.until(lambda: kept(rig) == {first})
            monkeypatch.setattr(clearings, "delete", delete)
            await rig.until(lambda: kept(rig) == set())
            running.cancel()

    play(story)
