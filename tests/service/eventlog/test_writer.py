"""What is given is durable and folded once that is said, whatever the store does meanwhile."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.service.http.rig import play

from stretto.model import InputError
from stretto.service.eventlog import EndedJob, LogMoved, Store, StoreError, Unrecorded, open_store
from stretto.service.eventlog import writer as ledgers
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.state.events import Began, QueueSet, Reported, Unreserved
from stretto.service.state.state import State

pytestmark = pytest.mark.sqlite


@dataclass(frozen=True)
class Doubtful(Store):
    """Fails once; before that, somebody has written: whoever asked, or somebody else."""

    others: tuple[Unrecorded, ...] = ()

    def append(
        self, events: Sequence[Unrecorded], after: int, ended: Sequence[EndedJob] = ()
    ) -> tuple[int, ...]:
        super().append(self.others or events, after, ended)
        raise StoreError("the connection was lost")


def doubtful(path: Path, *others: Unrecorded) -> Doubtful:
    with open_store(path / "log.db") as store:
        return Doubtful(store.engine, store.patience_s, others=others)


def test_what_reached_the_log_although_nobody_said_so_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "AGAIN_S", 0.01)

    async def story() -> None:
        log_writer = LogWriter(doubtful(tmp_path), State(), Clock())
        said = log_writer.record(Began(1.7e9), QueueSet("a", 4))
        await log_writer.write_waiting()
        assert await said == log_writer.state.seq == log_writer.store.last() == 2
        assert log_writer.healthy

    play(story)


def test_what_another_service_wrote_meanwhile_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "AGAIN_S", 0.01)

    async def story() -> None:
        foreign = Unrecorded(0.0, "Unreserved", "x", {"name": "x"})
        log_writer = LogWriter(doubtful(tmp_path, foreign), State(), Clock())
        said = asyncio.ensure_future(log_writer.record(Began(1.7e9)))
        with pytest.raises(LogMoved):
            await log_writer.write_waiting()
        assert not said.done()
        assert log_writer.state.seq == 0

    play(story)


def test_an_event_that_cannot_be_stored_is_refused_and_keeps_nobody_else_from_writing(tmp_path: Path) -> None:
    async def story() -> None:
        with open_store(tmp_path / "log.db") as store:
            log_writer = LogWriter(store, State(), Clock())
            writing = asyncio.create_task(log_writer.run())
            given = [
                log_writer.record(Began(1.7e9)),
                log_writer.record(QueueSet("a", 1), Reported("1", {"loss": float("nan")})),
                log_writer.record(Unreserved("x\n")),
                log_writer.record(QueueSet("b", 1)),
            ]
            found = await asyncio.gather(*given, return_exceptions=True)
            assert [type(one) for one in found] == [int, InputError, InputError, int]
            assert list(log_writer.state.queues) == ["b"]
            assert store.last() == log_writer.state.seq == 2
            writing.cancel()

    play(story)


@dataclass(frozen=True)
class Slow(Store):
    """Writes once it is let."""

    asked: threading.Event = field(default_factory=threading.Event)
    let: threading.Event = field(default_factory=threading.Event)

    def append(
        self, events: Sequence[Unrecorded], after: int, ended: Sequence[EndedJob] = ()
    ) -> tuple[int, ...]:
        self.asked.set()
        assert self.let.wait(60)
        return super().append(events, after, ended)


def test_a_write_that_takes_long_is_late_until_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "LATE_S", 0.05)

    async def story() -> None:
        with open_store(tmp_path / "log.db") as store:
            slow = Slow(store.engine)
            log_writer = LogWriter(slow, State(), Clock())
            assert log_writer.keeps_up
            log_writer.record(Began(1.7e9))
            writing = asyncio.create_task(log_writer.write_waiting())
            await asyncio.to_thread(slow.asked.wait, 60)
            async with asyncio.timeout(60):
                while log_writer.keeps_up:
                    await asyncio.sleep(0.01)
            slow.let.set()
            await writing
            assert log_writer.keeps_up

    play(story)


def test_whoever_is_stopped_while_writing_stops_once_it_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        with open_store(tmp_path / "log.db") as store:
            slow = Slow(store.engine)
            log_writer = LogWriter(slow, State(), Clock())
            log_writer.record(Began(1.7e9))
            writing = asyncio.create_task(log_writer.run())
            await asyncio.to_thread(slow.asked.wait, 60)
            writing.cancel()
            await asyncio.wait({writing}, timeout=0.1)
            assert not writing.done()
            slow.let.set()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert store.last() == 1

    play(story)
