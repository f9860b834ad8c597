"""Which worker has which GPUs, by what the processes themselves find, over every backend."""

import asyncio
from contextlib import suppress
from itertools import pairwise

from stretto.backends.protocol import NotNow
from stretto.testing.backends.stage import Stage


class Gpus:
    """Which worker has which GPUs, by what the processes themselves find."""

    async def test_workers_on_one_node_have_gpus_of_their_own(self, stage: Stage) -> None:
        """Workers on one node have gpus of their own."""
        workers = [await stage.start("sleep", 600.0, gpus=(gpu,)) for gpu in (0, 1)]
        other = await stage.start("sleep", 600.0, gpus=(0, 1), node=stage.world.nodes()[1])
        began = [await stage.began(worker) for worker in (*workers, other)]
        for worker in (*workers, other):
            await stage.in_phase(worker, "running")
        if stage.tells:
            assert [len(beginning["devices"]) for beginning in began] == [1, 1, 2]
            assert began[0]["devices"] != began[1]["devices"]

    async def test_a_child_that_outlives_its_parent_keeps_the_gpus_until_it_is_gone(
        self, stage: Stage
    ) -> None:
        """A child that outlives its parent keeps the gpus until it is gone."""
        parent = await stage.start("orphan", 600.0, gpus=(0, 1))
        await stage.began(parent)

        async def parent_is_gone() -> bool:
            listed = await stage.shown(parent)
            return listed is not None and listed.status is not None

        await stage.until(parent_is_gone, "the command has ended")
        listed = await stage.in_phase(parent, "running", "ended")
        assert (listed.phase, listed.status, listed.holds_gpus) == ("running", 0, True)
        after = stage.worker("sleep", 0.1, gpus=(0, 1))
        stage.started.append(after)
        with suppress(NotNow):
            await stage.backend.start(after)
        await asyncio.sleep(1.0)
        assert stage.beginnings(after) == [], "its GPUs are not free yet"
        await stage.backend.stop(parent.id, 0.5)
        assert (await stage.ended(parent)).status == 0
        await stage.insist(lambda: stage.backend.start(after))
        assert (await stage.ended(after)).status == 0

    async def test_two_workers_on_the_same_gpus_are_never_alive_at_once(self, stage: Stage) -> None:
        """Each is asked for while the one before it still saves."""
        chain = [await stage.run("polite", 0.3, gpus=(0, 1))]
        for _ in range(3):
            await stage.backend.stop(chain[-1].id, 10.0)
            chain.append(await stage.run("polite", 0.3, gpus=(0, 1)))
        await stage.backend.stop(chain[-1].id, 10.0)
        await stage.ended(chain[-1])
        ended_s = {note["worker"]: note["at_s"] for note in stage.notes("ended")}
        lives = [(stage.beginnings(worker)[0]["at_s"], ended_s[worker.id]) for worker in chain]
        assert all(before[1] <= after[0] for before, after in pairwise(lives)), lives
