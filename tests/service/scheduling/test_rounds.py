"""When a policy of rounds is asked that is not to be asked in between."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.jobfile.submission import read_submission
from stretto.service import control_loop
from stretto.service.eventlog import open_store
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state.events import Began, Configured, Decided, Ended, Event, NodeSeen, Submitted
from stretto.service.state.state import State

pytestmark = pytest.mark.sqlite

ROUND_S, PACE = 60.0, 200.0  # a round is 0.3 s of real time
CONFIGURED = Configured("sia", settings={"policy.round_s": str(ROUND_S)})


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.002)


def test_who_comes_after_an_idle_time_is_seen_at_the_next_round_and_at_those_that_follow(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        with open_store(tmp_path / "log.db") as store:
            log_writer = LogWriter(store, State(), Clock(pace=PACE))
            scheduling = SchedulingLoop(log_writer, scheduler_of(CONFIGURED), log_writer.clock, eager=False)
            told: list[Event] = []
            log_writer.listeners.append(lambda events: told.extend(event for _, event in events))
            tasks = [asyncio.create_task(log_writer.run())]
            await log_writer.record(Began(1e9), CONFIGURED, NodeSeen("n0", "a100", 4))
            tasks.append(asyncio.create_task(control_loop.schedule(scheduling)))

            def decided() -> list[Decided]:
                return [event for event in told if isinstance(event, Decided)]

            await until(decided)
            idle_s = 3 * ROUND_S
            await until(lambda: log_writer.clock.now_s() > idle_s)
            assert len(decided()) == 1
            spec, _ = read_submission(json.dumps({"run": "x"}))
            came_s = log_writer.clock.now_s()
            await log_writer.record(Submitted("1", spec.to_json(), "ada"))
            await until(lambda: len(decided()) >= 3)
            assert all(one.due == ("round",) for one in decided()[1:3])
            first_s = decided()[1].at_s
            assert came_s // ROUND_S * ROUND_S + ROUND_S <= first_s
            await log_writer.record(Ended("1", "COMPLETED", 0))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())
