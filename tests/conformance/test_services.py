"""Services that are killed, clusters that are away or slow while jobs run, over every backend."""

import asyncio
import signal

import pytest
from tests.conformance.hall import Hall
from tests.service.crash.verdict import check_log

pytestmark = [pytest.mark.processes, pytest.mark.alone]

MANY = 100_000
SILENCE_S = 2.0  # and no node is lost


def test_a_service_that_is_killed_finds_its_jobs_again_and_starts_none_twice(hall: Hall) -> None:
    goes_on = hall.submit("train", MANY, elastic={"min": 1, "max": 1})
    ends = hall.submit("sleep", 600.0 if hall.tells else 5.0)
    before = [hall.until_works(job) for job in (goes_on, ends)]
    assert hall.running.kill() == -signal.SIGKILL
    hall.finish(ends)
    hall.until(lambda: not hall.tells or ends in who_ended(hall), "it ends while no service runs")
    hall.running.begin()
    assert hall.until_state(ends, "COMPLETED")["attempt"] == 1
    shown = hall.until_works(goes_on)
    assert (shown["attempt"], shown["nodes"]) == (1, before[0]["nodes"])
    later = hall.submit("sleep", 0.2)
    assert hall.until_state(later, "COMPLETED")["failures"] == 0
    if hall.tells:
        assert [len(hall.began(job)) for job in (goes_on, ends)] == [1, 1]


def who_ended(hall: Hall) -> set[str]:
    """Jobs of which a worker says that it has ended."""
    return {one["worker"].split(".")[0] for one in hall.notes("ended")}


def test_a_service_that_is_killed_just_when_jobs_start_starts_each_once(hall: Hall) -> None:
    jobs = [hall.submit("sleep", 1.0) for _ in range(4)]
    hall.until(lambda: any(hall.shown(job)["state"] != "PENDING" for job in jobs), "the first is to start")
    assert hall.running.kill() == -signal.SIGKILL
    hall.running.begin()
    for job in jobs:
        assert hall.until_state(job, "COMPLETED")["failures"] == 0
    assert not hall.tells or [len(hall.began(job)) for job in jobs] == [1] * len(jobs)


def test_a_cluster_that_is_away_for_a_while_loses_nothing(hall: Hall) -> None:
    job = hall.submit("beat", MANY)
    hall.until_works(job)
    before = hall.count(job)

    async def away() -> str:
        async with hall.world.unreachable():
            waits = await asyncio.to_thread(hall.submit, "sleep", 0.2)
            await asyncio.sleep(SILENCE_S)
            assert (await asyncio.to_thread(hall.shown, job))["state"] not in ("FAILED", "COMPLETED")
            return waits

    waits = asyncio.run(away())
    hall.finish(job)
    for one in (waits, job):
        shown = hall.until_state(one, "COMPLETED")
        assert (shown["attempt"], shown["failures"]) == (1, 0)
    assert hall.count(job) > before


def test_jobs_of_a_slow_cluster_that_loses_answers_run_once_each(hall: Hall) -> None:
    async def slowly() -> list[str]:
        async with hall.world.slow():
            jobs = [await asyncio.to_thread(hall.submit, "sleep", 0.3) for _ in range(4)]
            for job in jobs:
                await asyncio.to_thread(hall.until_state, job, "COMPLETED")
            return jobs

    for job in asyncio.run(slowly()):
        assert hall.shown(job)["attempt"] == 1
        assert len(hall.began(job)) == 1


def test_what_was_written_down_gives_no_gpu_twice_and_is_decided_the_same_again(hall: Hall) -> None:
    """Over all that the tests before have done to this service."""
    assert hall.until_state(hall.submit("sleep", 0.1), "COMPLETED")["attempt"] == 1
    check_log(list(hall.running.log_of_all()))
    decisions, differences = hall.running.differences()
    assert decisions > 0
    assert differences == 0
