"""Nodes that die and return, clusters that do not answer, answers that get lost, over every backend."""

import asyncio

from stretto.backends.protocol import BackendUnreachable
from stretto.testing.backends.stage import Stage


class Trouble:
    """Nodes that die and return, clusters that do not answer, answers that get lost."""

    async def test_of_a_node_that_dies_nothing_runs_on_and_the_others_go_on(self, stage: Stage) -> None:
        """Of a node that dies nothing runs on and the others go on."""
        dies, stays = stage.world.nodes()[-1], stage.world.nodes()[0]
        lost, other = await stage.run("sleep", 600.0, node=dies), await stage.run("sleep", 600.0, node=stays)
        await stage.world.kill_node(dies)
        try:

            async def is_down() -> bool:
                nodes = [node for node in await stage.backend.nodes() if node.name == dies]
                return not nodes or not nodes[0].up

            await stage.until(is_down, "the node is seen to be down")
            listed = await stage.shown(lost)
            assert listed is None or listed.phase in ("unknown", "ended"), listed
            going_on = await stage.shown(other)
            assert going_on is not None
            assert going_on.phase == "running"
        finally:
            await stage.world.return_node(dies)

        async def is_back() -> bool:
            return any(
                node.name == dies and node.up and not node.shut for node in await stage.backend.nodes()
            )

        async def is_gone() -> bool:
            listed = await stage.shown(lost)
            return listed is None or (listed.phase == "ended" and listed.status == 137)

        await stage.until(is_back, "the node is back")
        await stage.until(is_gone, "what ran there is known to be lost")
        again = await stage.start("sleep", 0.1, node=dies)
        assert (await stage.ended(again)).status == 0
        assert len(stage.beginnings(lost)) == 1
        assert len(stage.beginnings(other)) == 1

    async def test_while_nobody_answers_orders_are_refused_and_nothing_is_concluded(
        self, stage: Stage
    ) -> None:
        """While the cluster does not answer, orders are refused and nothing is concluded."""
        goes_on, ends = await stage.run("sleep", 600.0), await stage.run("sleep", 2.0, 7, gpus=(1,))
        late = stage.worker("sleep", 600.0, node=stage.world.nodes()[1])
        stage.started.append(late)
        async with stage.world.unreachable():
            orders = [stage.backend.start(late), stage.backend.stop(goes_on.id, 5.0)]
            answers = await asyncio.gather(*orders, return_exceptions=True)
            assert [type(answer) for answer in answers if not isinstance(answer, BackendUnreachable)] == []
            for worker in (goes_on, ends):
                listed = await stage.shown(worker)
                assert listed is not None
                assert listed.phase != "ended" or listed.status == 7, "nothing is concluded from silence"
        await stage.insist(lambda: stage.backend.start(late))
        assert (await stage.ended(ends)).status == 7
        await stage.began(late)
        await stage.insist(lambda: stage.backend.stop(goes_on.id, 5.0))
        assert (await stage.ended(goes_on)).stopped
        assert [len(stage.beginnings(worker)) for worker in (goes_on, ends, late)] == [1, 1, 1]

    async def test_late_and_lost_replies_change_nothing(self, stage: Stage) -> None:
        """Late and lost replies change nothing."""
        nodes = stage.world.nodes()
        async with stage.world.slow():
            short = [await stage.start("sleep", 0.2, index, node=nodes[index]) for index in range(2)]
            long = [await stage.start("sleep", 600.0, node=nodes[index], gpus=(1,)) for index in range(2)]
            for worker in long:
                await stage.began(worker)
                await stage.insist(lambda name=worker.id: stage.backend.stop(name, 5.0))  # type: ignore[misc]
            ended = [await stage.ended(worker) for worker in (*short, *long)]
        assert [state.status for state in ended] == [0, 1, 143, 143]
        assert [state.stopped for state in ended] == [False, False, True, True]
        assert [len(stage.beginnings(worker)) for worker in (*short, *long)] == [1] * 4

    async def test_a_wait_for_changes_ends_with_the_next_one(self, stage: Stage) -> None:
        """A wait for changes ends with the next one."""
        number = await stage.backend.changes(0, wait_s=1.0)
        worker = await stage.start("sleep", 0.5)
        phases: set[str] = set()
        while "ended" not in phases:
            async with asyncio.timeout(stage.world.patience_s):
                number = await stage.backend.changes(number, wait_s=5.0)
            listed = await stage.shown(worker)
            assert listed is not None
            phases.add(listed.phase)

        async def nothing_changes() -> bool:
            nonlocal number  # what we saw may be newer than the number that we have of it
            try:
                async with asyncio.timeout(0.3):
                    number = await stage.backend.changes(number, wait_s=30.0)
            except TimeoutError:
                return True
            return False

        await stage.until(nothing_changes, "whoever waits is left alone while nothing happens")
