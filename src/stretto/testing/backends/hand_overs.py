"""Nodes that go to a lender and come back, over every backend whose cluster is told of it."""

import pytest

from stretto.backends.protocol import HandsOver, NotNow
from stretto.testing.backends.stage import Stage

LENDER = "inference"


class HandOvers:
    """Nodes that go to a lender, such as an inference service, and come back."""

    async def test_a_node_that_is_with_its_lender_takes_no_worker_until_it_is_back(
        self, stage: Stage
    ) -> None:
        """A node that is with its lender takes no worker until it is back; the others go on."""
        ours, lent = stage.world.nodes()[0], stage.world.nodes()[1]
        await self.hand_over(stage, lent, LENDER)
        try:
            await self.hand_over(stage, lent, LENDER)  # again, as after a crash
            await stage.reconnect()
            late = stage.worker("sleep", 0.1, node=lent)
            with pytest.raises(NotNow, match=LENDER):
                await stage.insist(lambda: stage.backend.start(late), unless=(NotNow,))
            assert (await stage.ended(await stage.start("sleep", 0.1, node=ours))).status == 0
        finally:
            await self.hand_over(stage, lent, "")
        await self.hand_over(stage, lent, "")
        await stage.begin(late)
        assert (await stage.ended(late)).status == 0

    async def test_a_node_whose_lender_is_deleted_takes_workers_from_then_on(self, stage: Stage) -> None:
        """A node takes workers once its lender is gone, wherever it was then, also over a new connection."""
        was_with_it, was_on_loan = stage.world.nodes()[:2]
        await self.hand_over(stage, was_on_loan, LENDER)
        await self.hand_over(stage, was_on_loan, "")
        await self.hand_over(stage, was_with_it, LENDER)
        for node in (was_with_it, was_on_loan, was_on_loan):  # again, as after a crash
            await self.hand_over(stage, node, None)
        await stage.reconnect()
        for node in (was_with_it, was_on_loan):
            assert (await stage.ended(await stage.start("sleep", 0.1, node=node))).status == 0

    async def hand_over(self, stage: Stage, node: str, to: str | None) -> None:
        """Have it done, as often as it takes; skips where no cluster is to be told."""
        backend = stage.backend
        if not isinstance(backend, HandsOver):
            pytest.skip(
                "its cluster is not told whose a node is: nodes change hands in the service's records"
            )
        await stage.insist(lambda: backend.hand_over([node], to))
