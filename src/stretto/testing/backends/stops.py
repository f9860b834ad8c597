"""Workers that are asked to end, or made to, over every backend."""

import os
import signal
import time

import pytest

from stretto.testing.backends.stage import Stage
from stretto.testing.backends.world import pid_of

LONG_S = 600.0  # longer than any test waits


class Stops:
    """Workers that are asked to end, or made to."""

    async def test_a_stop_with_grace_lets_a_worker_save(self, stage: Stage) -> None:
        """A stop with grace lets a worker save."""
        worker = await stage.run("polite", 0.5)
        began_s = time.monotonic()
        await stage.backend.stop(worker.id, 30.0)
        ended = await stage.ended(worker)
        assert ended.stopped
        assert time.monotonic() - began_s >= 0.5
        if stage.tells:
            assert ended.status == 0, "as it left by itself"
            assert (await stage.log(worker)).splitlines() == ["polite begins", "asked to end", "saved"]
        else:
            assert ended.status == 143

    async def test_who_ignores_the_stop_is_killed_after_the_grace(self, stage: Stage) -> None:
        """A worker that ignores the stop is killed after the grace."""
        worker = await stage.run("stubborn")
        began_s = time.monotonic()
        await stage.backend.stop(worker.id, 1.0)
        ended = await stage.ended(worker)
        assert (ended.status, ended.stopped) == (137, True)
        assert time.monotonic() - began_s >= 0.9

    async def test_a_second_stop_shortens_the_grace_and_never_lengthens_it(self, stage: Stage) -> None:
        """A second stop shortens the grace and never lengthens it."""
        hurried, not_spared = await stage.run("stubborn"), await stage.run("stubborn", gpus=(1,))
        await stage.backend.stop(hurried.id, LONG_S)
        await stage.backend.stop(hurried.id, 0.2)
        await stage.backend.stop(not_spared.id, 0.5)
        await stage.backend.stop(not_spared.id, LONG_S)
        assert (await stage.ended(hurried)).status == 137
        assert (await stage.ended(not_spared)).status == 137

    async def test_who_is_stopped_before_it_has_begun_ends_like_any_other(self, stage: Stage) -> None:
        """A worker that is stopped before it has begun ends like any other."""
        workers = [stage.worker("sleep", 600.0, gpus=(gpu,)) for gpu in (0, 1)]
        for worker in workers:
            await stage.begin(worker)
            await stage.backend.stop(worker.id, 2.0)
        for worker in workers:
            ended = await stage.ended(worker)
            assert (ended.status in (137, 143), ended.stopped) == (True, True), ended

    async def test_a_stop_of_who_has_ended_changes_nothing(self, stage: Stage) -> None:
        """A stop of a worker that has ended changes nothing."""
        worker = await stage.start("sleep", 0.1)
        before = await stage.ended(worker)
        await stage.backend.stop(worker.id, 0.0)
        assert await stage.shown(worker) == before

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    async def test_a_signal_reaches_the_worker_and_is_no_stop(self, stage: Stage, number: int) -> None:
        """A signal reaches the worker and is no stop."""
        worker = await stage.run("sleep", 600.0)
        await stage.backend.signal(worker.id, number)
        ended = await stage.ended(worker)
        assert (ended.status, ended.stopped) == (128 + number, False)

    async def test_a_worker_that_is_killed_from_outside_shows_as_killed(self, stage: Stage) -> None:
        """A worker that is killed from outside shows as killed."""
        worker = await stage.start("sleep", 600.0)
        began = await stage.began(worker)
        os.kill(pid_of(stage.world, began), signal.SIGKILL)
        ended = await stage.ended(worker)
        assert (ended.status, ended.signal, ended.stopped) == (137, 9, False)
