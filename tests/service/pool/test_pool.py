"""Work of users in processes of its own: within limits of time and memory, and stopped when nobody waits."""

import asyncio
import json
import math
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.jobfile import read_submission
from stretto.model import InputError
from stretto.service.pool import Closed, OutOfMemory, OutOfTime, Pool, Turns
from stretto.service.pool.pool import Work
from stretto.service.structured_logs import Lines

pytestmark = pytest.mark.processes

ENDLESS = math.factorial, 50_000_000  # in C, where nothing of Python can interrupt it


def preparing(function: Callable[..., Any], *arguments: Any) -> Callable[[], Awaitable[Work]]:
    async def prepare() -> Work:
        return function, arguments

    return prepare


def play(story: Callable[[Pool], Awaitable[None]], **limits: Any) -> None:
    async def told() -> None:
        pool = Pool(**{"turns": Turns(2, 4), "most_s": 60.0, "most_bytes": 1 << 30, **limits})
        try:
            await story(pool)
        finally:
            await pool.close()

    asyncio.run(told())


async def until_gone(process: int) -> None:
    async with asyncio.timeout(60):
        while Path(f"/proc/{process}").exists():
            await asyncio.sleep(0.01)


def test_a_process_is_used_again_and_is_not_ours() -> None:
    async def story(pool: Pool) -> None:
        first, second = [await pool.call("ada", preparing(os.getpid)) for _ in range(2)]
        assert first == second != os.getpid()

    play(story)


def test_what_is_wrong_with_the_input_is_told_as_if_it_had_been_read_here() -> None:
    async def story(pool: Pool) -> None:
        with pytest.raises(InputError, match="job file: expected"):
            await pool.call("ada", preparing(read_submission, "x"))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            await pool.call("ada", preparing(divmod, 1, 0))

    play(story)


def test_where_a_call_failed_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story(pool: Pool) -> None:
        with pytest.raises(RuntimeError, match="loads failed: JSONDecodeError"):
            await pool.call("ada", preparing(json.loads, "{"))

    play(story)
    (record,) = caplog.records
    line = json.loads(Lines().format(record))
    assert (line["level"], line["call"]) == ("error", "loads")
    assert line["trace"].startswith("Traceback (most recent call last)")
    assert "json/decoder.py" in line["trace"]
    assert line["failed"] in line["trace"]


def test_a_call_without_end_is_ended_and_the_next_one_answered() -> None:
    async def story(pool: Pool) -> None:
        with pytest.raises(OutOfTime):
            await pool.call("ada", preparing(*ENDLESS))
        pool.most_s = 60.0
        assert await pool.call("ada", preparing(math.isqrt, 16)) == 4

    play(story, most_s=0.5)


def test_a_call_that_takes_all_memory_is_refused_it() -> None:
    async def story(pool: Pool) -> None:
        with pytest.raises(OutOfMemory):
            await pool.call("ada", preparing(bytearray, 200 << 20))
        assert len(await pool.call("ada", preparing(bytearray, 1 << 20))) == 1 << 20

    play(story, most_bytes=100 << 20)


def test_a_process_that_dies_fails_its_call_only() -> None:
    async def story(pool: Pool) -> None:
        with pytest.raises(RuntimeError, match="status 3"):
            await pool.call("ada", preparing(os._exit, 3))
        assert await pool.call("ada", preparing(math.isqrt, 16)) == 4

    play(story)


def test_work_whose_caller_has_gone_is_stopped() -> None:
    async def story(pool: Pool) -> None:
        process = await pool.call("ada", preparing(os.getpid))
        asking = asyncio.create_task(pool.call("ada", preparing(*ENDLESS)))
        while pool.idle:
            await asyncio.sleep(0.01)
        asking.cancel()
        await until_gone(process)
        assert await pool.call("ada", preparing(math.isqrt, 16)) == 4

    play(story)


def test_closing_waits_for_no_work() -> None:
    async def story(pool: Pool) -> None:
        process = await pool.call("ada", preparing(os.getpid))
        asking = [asyncio.create_task(pool.call(user, preparing(*ENDLESS))) for user in ("ada", "ada", "bob")]
        while pool.idle:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await pool.close()
        assert time.monotonic() - began < 300.0  # the work would take hours
        for one in asking:
            with pytest.raises(Closed):
                await one
        await until_gone(process)
        with pytest.raises(Closed):
            await pool.call("ada", preparing(os.getpid))

    play(story)
