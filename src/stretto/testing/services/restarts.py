"""Services that are killed, clusters that are away or slow while jobs run, over every backend."""

import asyncio
import signal

from stretto.testing.services.fixture import ServiceFixture

MANY = 100_000
SILENCE_S = 2.0  # and no node is lost


class Restarts:
    """Services that are killed, clusters that are away or slow, while jobs run."""

    def test_a_service_that_is_killed_finds_its_jobs_again_and_starts_none_twice(
        self, service: ServiceFixture
    ) -> None:
        """A service that is killed finds its jobs again and starts none twice."""
        gpu_type = service.nodes()[service.world.nodes()[0]]["gpu_type"]  # of several, a policy may try each
        goes_on = service.submit("train", MANY, gpu_type=gpu_type, elastic={"min": 1, "max": 1})
        ends = service.submit("sleep", 600.0 if service.tells else 5.0)
        before = [service.until_works(job) for job in (goes_on, ends)]
        assert service.running.kill() == -signal.SIGKILL
        service.finish(ends)
        service.until(
            lambda: not service.tells or ends in who_ended(service), "it ends while no service runs"
        )
        service.running.begin()
        assert service.until_state(ends, "COMPLETED")["attempt"] == 1
        shown = service.until_works(goes_on)
        assert (shown["attempt"], shown["nodes"]) == (1, before[0]["nodes"])
        later = service.submit("sleep", 0.2)
        assert service.until_state(later, "COMPLETED")["failures"] == 0
        if service.tells:
            assert [len(service.began(job)) for job in (goes_on, ends)] == [1, 1]

    def test_a_service_that_is_killed_just_when_jobs_start_starts_each_once(
        self, service: ServiceFixture
    ) -> None:
        """A service that is killed just when jobs start starts each once."""
        jobs = [service.submit("sleep", 1.0) for _ in range(4)]
        service.until(
            lambda: any(service.shown(job)["state"] != "PENDING" for job in jobs), "the first is to start"
        )
        assert service.running.kill() == -signal.SIGKILL
        service.running.begin()
        for job in jobs:
            assert service.until_state(job, "COMPLETED")["failures"] == 0
        assert not service.tells or [len(service.began(job)) for job in jobs] == [1] * len(jobs)

    def test_a_cluster_that_is_away_for_a_while_loses_nothing(self, service: ServiceFixture) -> None:
        """A cluster that is away for a while loses nothing."""
        job = service.submit("beat", MANY)
        service.until_works(job)
        before = service.count(job)

        async def away() -> str:
            async with service.world.unreachable():
                waits = await asyncio.to_thread(service.submit, "sleep", 0.2)
                await asyncio.sleep(SILENCE_S)
                assert (await asyncio.to_thread(service.shown, job))["state"] not in ("FAILED", "COMPLETED")
                return waits

        waits = asyncio.run(away())
        service.finish(job)
        for each in (waits, job):
            shown = service.until_state(each, "COMPLETED")
            assert (shown["attempt"], shown["failures"]) == (1, 0)
        assert service.count(job) > before

    def test_jobs_of_a_slow_cluster_that_loses_answers_run_once_each(self, service: ServiceFixture) -> None:
        """Jobs of a slow cluster that loses answers run once each."""

        async def slowly() -> list[str]:
            async with service.world.slow():
                jobs = [await asyncio.to_thread(service.submit, "sleep", 0.3) for _ in range(4)]
                for job in jobs:
                    await asyncio.to_thread(service.until_state, job, "COMPLETED")
                return jobs

        for job in asyncio.run(slowly()):
            assert service.shown(job)["attempt"] == 1
            assert len(service.began(job)) == 1


def who_ended(service: ServiceFixture) -> set[str]:
    """Jobs of which a worker says that it has ended."""
    return {note["worker"].split(".")[0] for note in service.notes("ended")}
