"""A command says what a lender needs, whatever else it does."""

import asyncio
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stretto.service.lending.command_feed import CommandFeed

pytestmark = pytest.mark.processes

SOON_S = 20.0  # for what takes a moment on a quiet machine, and for ever where something is wrong


def need_of(feed: CommandFeed) -> float | None:
    async def ask() -> tuple[float | None, float]:
        async with asyncio.timeout(SOON_S):
            return await feed.need_at(0.0, 4)

    need, for_s = asyncio.run(ask())
    assert for_s == feed.every_s
    return need


def is_running(number: int) -> bool:
    """Whether a process is there and has not ended; one that nobody waited for has."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + SOON_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("command", "need"),
    [
        ("echo 2", 2.0),
        ("echo ' 1.5 '", 1.5),
        ("echo many", None),
        ("echo 1; exit 3", None),
        ("echo -1", None),
        ("echo 4", 4.0),
        ("echo 4.5", None),
        ("echo 1e300", None),
        ("head -c 1000 /dev/zero | tr '\\0' 1", None),
        ("printf %900s; echo 3", 3.0),
    ],
)
def test_a_command_says_the_need_or_it_is_not_known(command: str, need: float | None) -> None:
    assert need_of(CommandFeed(command, 7.0)) == need


def test_a_command_that_hangs_ends_with_all_that_it_began(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The shell waits for both; each keeps the pipe open after its end.
    feed = CommandFeed(f"sleep 600 & echo $! >{tmp_path}/its; sleep 600 | cat; true", most_s=0.5)
    assert need_of(feed) is None
    assert "took longer than 0.5 s" in caplog.text
    wait_until(lambda: not is_running(int((tmp_path / "its").read_text())))


def test_what_a_command_leaves_behind_ends_and_what_it_said_counts(tmp_path: Path) -> None:
    assert need_of(CommandFeed(f"sleep 600 & echo $! >{tmp_path}/its; echo 1")) == 1
    wait_until(lambda: not is_running(int((tmp_path / "its").read_text())))


def test_what_has_left_the_group_of_a_command_keeps_nobody_waiting(tmp_path: Path) -> None:
    feed = CommandFeed(f"setsid sleep 600 & echo $! >{tmp_path}/its; sleep 0.2; echo 1")
    try:
        assert need_of(feed) == 1
    finally:
        os.kill(int((tmp_path / "its").read_text()), 9)


def test_whoever_stops_a_feed_does_not_wait_for_its_command(tmp_path: Path) -> None:
    async def stop() -> None:
        asked = asyncio.create_task(CommandFeed(f"echo $$ >{tmp_path}/its; sleep 600 | cat").need_at(0.0, 4))
        async with asyncio.timeout(SOON_S):
            while not (tmp_path / "its").exists():
                await asyncio.sleep(0.02)
            asked.cancel()
            with suppress(asyncio.CancelledError):
                await asked

    asyncio.run(stop())


@pytest.mark.parametrize("command", ["yes", "head -c 1001 /dev/zero; sleep 600"])
def test_a_command_that_prints_too_much_is_ended_at_once(
    command: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert need_of(CommandFeed(command, most_s=SOON_S)) is None
    assert "printed more than 1000 bytes" in caplog.text


def test_a_command_that_is_too_long_to_be_run_says_no_need(caplog: pytest.LogCaptureFixture) -> None:
    feed = CommandFeed("true " + "x" * 2_000_000)
    assert [need_of(feed), need_of(feed)] == [None, None]
    assert caplog.text.count("cannot be run: Argument list too long") == 1
    assert len(caplog.text) < 1_000


def test_a_feed_goes_on_after_a_time_of_too_many_open_files(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> list[float | None]:
        feed = CommandFeed("echo 1")
        answers = [(await feed.need_at(0.0, 4))[0]]  # whatever the first one opens is open by now
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            answers.append((await feed.need_at(0.0, 4))[0])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return [*answers, (await feed.need_at(0.0, 4))[0]]

    assert asyncio.run(ask()) == [1, None, 1]
    assert "cannot be run: Too many open files" in caplog.text


def test_a_need_above_the_nodes_of_the_lender_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    assert need_of(CommandFeed("echo 5")) is None
    assert "'echo 5' says 5, and the lender has 4" in caplog.text


def test_the_same_trouble_is_said_once_until_the_need_is_known_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = CommandFeed(f"cat {tmp_path}/need")
    for content in ("many", "many", "1", "many"):
        (tmp_path / "need").write_text(content)
        need_of(feed)
    assert caplog.text.count("expected a number of nodes of") == 2
