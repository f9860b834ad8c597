"""What is particular to Ray: actors of others, actors that are killed, raylets that end, nodes that drain."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.backends.ray.cluster import RayCluster

from stretto.agent import supervisor
from stretto.agent.log_bounds import NOTICE
from stretto.backends.protocol import (
    Backend,
    BackendUnreachable,
    NodeState,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    WorkerStart,
    WorkerState,
)
from stretto.backends.ray.backend import Call, RayBackend

pytestmark = [pytest.mark.ray, pytest.mark.large]

PATIENCE_S = 120.0
FOLLOWS_S = 600.0
NAMESPACE = "stretto-tests"


@asynccontextmanager
async def opened(
    cluster: RayCluster, folder: Path, address: str = "", **more: Any
) -> AsyncIterator[RayBackend]:
    """A connection; all workers are gone and forgotten afterwards."""
    call = Call(address or cluster.address, "tests", folder / "gateway.log", 30.0, 75.0, **more)
    backend = await RayBackend(call).open()
    try:
        yield backend
        for each in await backend.workers():
            with suppress(NoSuchWorker):  # another connection has forgotten it, which this one hears of later
                await backend.stop(each.id, 0.0)
                await in_phase(backend, each.id, "ended")
                await backend.forget(each.id)
                await backend.delete_logs(each.job)
    finally:
        await backend.close()


async def until(backend: Backend, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for changes until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        number = 0
        while not await is_so():
            number = await backend.changes(number, wait_s=0.5)


async def in_phase(backend: Backend, name: str, phase: str) -> WorkerState:
    """A worker, once it is in a phase."""

    async def is_so() -> bool:
        return any(each.id == name and each.phase == phase for each in await backend.workers())

    await until(backend, is_so)
    return next(each for each in await backend.workers() if each.id == name)


async def node_of(backend: Backend, name: str) -> NodeState:
    return next(each for each in await backend.nodes() if each.name == name)


def a_start(name: str, node: str, gpus: tuple[int, ...] = (0,), command: str = "sleep 600") -> WorkerStart:
    return WorkerStart(name, name.split(".", maxsplit=1)[0], node, gpus, command, {}, grace_s=5.0)


async def nothing_left(cluster: RayCluster) -> None:
    """Once Ray holds nothing for us any more."""
    async with asyncio.timeout(PATIENCE_S):
        while [*cluster.workers_left(), *cluster.ask("left")]:
            await asyncio.sleep(0.1)


def test_a_worker_has_the_devices_that_ray_gave_and_others_are_counted(
    cluster: RayCluster, tmp_path: Path
) -> None:
    node = cluster.nodes[0]

    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            theirs = await asyncio.to_thread(cluster.ask, "hold", name="theirs", node=node, gpus=2)

            async def counted() -> bool:
                return (await node_of(backend, node)).others == 2

            await until(backend, counted)
            await backend.start(a_start("a.1.0", node, (2, 3), "echo $CUDA_VISIBLE_DEVICES; sleep 600"))
            await in_phase(backend, "a.1.0", "running")
            devices = (await backend.log("a.1.0", wait_s=60)).data.decode().strip().split(",")
            assert sorted([*theirs, *map(int, devices)]) == [0, 1, 2, 3]
            assert (await node_of(backend, node)).others == 2, "our own are not those of others"
            with pytest.raises(NotNow, match="1 GPU"):
                await backend.start(a_start("b.1.0", node, (0,)))
            await asyncio.to_thread(cluster.ask, "let_go", name="theirs")
            await until(backend, lambda: _none_of_others(backend, node))
            await backend.start(a_start("b.1.0", node, (0,)))
            await in_phase(backend, "b.1.0", "running")
        await nothing_left(cluster)

    asyncio.run(story())


async def is_dead(backend: Backend, name: str) -> bool:
    shown = await node_of(backend, name)
    return shown.dead and not shown.up


async def _none_of_others(backend: Backend, node: str) -> bool:
    return (await node_of(backend, node)).others == 0


@pytest.mark.long  # a load, not a behaviour of its own
def test_two_hundred_who_follow_a_log_stop_nothing_and_all_are_told(
    cluster: RayCluster, tmp_path: Path
) -> None:
    many, mark = 200, tmp_path / "go"
    waits = f"until [ -e {mark} ]; do sleep 0.05; done; echo said; sleep 600"

    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            await backend.start(a_start("a.1.0", cluster.nodes[0], command=waits))
            await in_phase(backend, "a.1.0", "running")
            none = await backend.log("a.1.0", wait_s=0.5)
            assert (none.data, none.complete) == (b"", False), "who waited long enough is told that, too"
            followers = [asyncio.create_task(backend.log("a.1.0", wait_s=FOLLOWS_S)) for _ in range(many)]
            await asyncio.sleep(2.0)
            async with asyncio.timeout(PATIENCE_S):  # far less than they follow
                await backend.start(a_start("b.1.0", cluster.nodes[0], (1,)))
                await in_phase(backend, "b.1.0", "running")
                await backend.stop("b.1.0", 0.0)
                await in_phase(backend, "b.1.0", "ended")
            assert not any(each.done() for each in followers)
            mark.touch()
            async with asyncio.timeout(PATIENCE_S):
                assert {(await each).data for each in followers} == {b"said\n"}
            last = asyncio.create_task(backend.log("a.1.0", offset=5, wait_s=FOLLOWS_S))
            await backend.stop("a.1.0", 0.0)
            async with asyncio.timeout(PATIENCE_S):
                assert (await last).complete
        await nothing_left(cluster)

    asyncio.run(story())


def test_who_kills_the_actor_ends_the_worker(cluster: RayCluster, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            await backend.start(a_start("a.1.0", cluster.nodes[0]))
            await in_phase(backend, "a.1.0", "running")
            await asyncio.to_thread(cluster.ask, "kill", name="a.1.0", namespace=NAMESPACE)
            ended = await in_phase(backend, "a.1.0", "ended")
            assert (ended.status, ended.stopped) == (137, False)
            assert "what kept its GPUs" in ended.why
        await nothing_left(cluster)

    asyncio.run(story())


def test_commands_of_a_leader_that_was_followed_by_another_are_refused(
    cluster: RayCluster, tmp_path: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, tmp_path) as first, opened(cluster, tmp_path) as second:
            first.epoch, second.epoch = 1, 2
            await second.start(a_start("1.1.0", cluster.nodes[0]))
            await in_phase(second, "1.1.0", "running")
            await in_phase(first, "1.1.0", "running")
            for command in (
                first.stop("1.1.0", 0.0),
                first.signal("1.1.0", signal.SIGKILL),
                first.forget("1.1.0"),
                first.start(a_start("2.1.0", cluster.nodes[0], (1,))),
            ):
                with pytest.raises(StaleLeader, match="leader 1 has been followed by leader 2") as refused:
                    await command
                assert refused.value.epoch == 2
            assert [each.phase for each in await second.workers()] == ["running"]
            first.epoch = 2  # so that it may end what is left of the test

    asyncio.run(story())


def test_what_a_job_writes_takes_so_much_and_no_more(cluster: RayCluster, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(cluster, tmp_path, max_log_bytes=1 << 20) as backend:
            node = (await backend.nodes())[0].name
            await backend.start(a_start("1.1.0", node, command="seq -f %0999g 0 1999; exec sleep 600"))

            async def is_cut() -> bool:
                return (await backend.log("1.1.0")).offset > 0

            await until(backend, is_cut)
            assert (await backend.log("1.1.0")).data.startswith(NOTICE)

    asyncio.run(story())


def test_a_node_agent_that_is_killed_is_replaced_and_its_workers_go_on(
    cluster: RayCluster, tmp_path: Path
) -> None:
    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            await backend.start(a_start("a.1.0", cluster.nodes[1]))
            before = await in_phase(backend, "a.1.0", "running")
            for name in await asyncio.to_thread(cluster.ask, "node_agents", namespace=NAMESPACE):
                await asyncio.to_thread(cluster.ask, "kill", name=name, namespace=NAMESPACE)
            await asyncio.sleep(2.0)
            async with asyncio.timeout(PATIENCE_S):
                while not await obeyed(backend.stop("a.1.0", 5.0)):
                    await asyncio.sleep(0.2)
            ended = await in_phase(backend, "a.1.0", "ended")
            assert (ended.status, ended.stopped, ended.pid) == (143, True, before.pid)
        await nothing_left(cluster)

    asyncio.run(story())


async def obeyed(order: Awaitable[object]) -> bool:
    """Whether an order was taken; it may be given again."""
    try:
        await order
    except BackendUnreachable:
        return False
    return True


def test_a_gateway_that_is_killed_is_replaced_and_its_workers_go_on(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down: list[str] = []

    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            await backend.start(a_start("a.1.0", cluster.nodes[1]))
            before = await in_phase(backend, "a.1.0", "running")
            tell = backend.poll.notify

            def noted() -> None:
                down.extend(f"{node.name}: {node.why}" for node in backend.known_nodes if not node.up)
                tell()

            monkeypatch.setattr(backend.poll, "notify", noted)
            gateway = backend.gateway.process
            assert gateway is not None
            gateway.kill()
            await gateway.wait()
            assert [each.phase for each in await backend.workers()] == ["running"], "as last seen"
            async with asyncio.timeout(PATIENCE_S):
                while not await obeyed(backend.stop("a.1.0", 5.0)):
                    await asyncio.sleep(0.2)
            assert (await in_phase(backend, "a.1.0", "ended")).pid == before.pid
            assert down == [], "a node that a new gateway has not looked at yet is not lost"
        await nothing_left(cluster)

    asyncio.run(story())


@pytest.mark.long  # takes a minute
def test_a_node_that_drains_is_shut_and_when_its_raylet_ends_its_workers_are_killed(
    cluster: RayCluster, tmp_path: Path
) -> None:
    node = cluster.nodes[2]

    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            await backend.start(a_start("a.1.0", node, (0,), "trap '' TERM; sleep 600 & wait; wait"))
            running = await in_phase(backend, "a.1.0", "running")
            assert running.pid is not None
            assert await asyncio.to_thread(cluster.ask, "drain", node=node)

            async def is_shut() -> bool:
                return bool((await node_of(backend, node)).shut)

            await until(backend, is_shut)
            supervisor.send_to(cluster.raylet(node), signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while supervisor.process_at(running.pid) is not None:
                    await asyncio.sleep(0.02)
            ended = await in_phase(backend, "a.1.0", "ended")
            assert (ended.status, ended.stopped) == (137, False)
            await until(backend, lambda: is_dead(backend, node))
            await asyncio.to_thread(cluster.kill_node, node)
            cluster.start_node(node)
            await asyncio.to_thread(cluster.joined, node)

            async def is_back() -> bool:
                shown = await node_of(backend, node)
                return shown.up and not shown.shut

            await until(backend, is_back)
            await backend.start(a_start("b.1.0", node, (0, 1, 2, 3), "exit 5"))
            assert (await in_phase(backend, "b.1.0", "ended")).status == 5
        await nothing_left(cluster)

    asyncio.run(story())


@pytest.mark.long  # takes a minute
def test_without_its_head_what_runs_is_still_stopped_and_nothing_new_begins(
    cluster: RayCluster, tmp_path: Path
) -> None:
    node = cluster.nodes[0]

    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            await backend.start(a_start("a.1.0", node))
            await in_phase(backend, "a.1.0", "running")
            cluster.suspend_head()
            try:
                await backend.stop("a.1.0", 5.0)
                assert (await in_phase(backend, "a.1.0", "ended")).status == 143
                await asyncio.sleep(6.0)
                with pytest.raises(BackendUnreachable, match="head has not answered"):
                    await backend.start(a_start("b.1.0", node))
                assert (await node_of(backend, node)).up
            finally:
                cluster.suspend_head(signal.SIGCONT)
            async with asyncio.timeout(PATIENCE_S):
                while not await obeyed(backend.start(a_start("b.1.0", node))):
                    await asyncio.sleep(0.2)
            await in_phase(backend, "b.1.0", "running")
        await nothing_left(cluster)

    asyncio.run(story())


def test_nodes_have_the_types_that_ray_says(cluster: RayCluster, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            types = {each.name: each.gpu_type for each in await backend.nodes()}
            assert [types[name] for name in cluster.nodes] == ["a100", "a100", "t4"]

    asyncio.run(story())


@pytest.mark.long  # Ray's own way in from outside is slow at times
def test_the_service_may_stand_outside_the_cluster(cluster: RayCluster, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(cluster, tmp_path, cluster.client_address) as backend:
            assert [node.name for node in await backend.nodes() if node.up] == list(cluster.nodes)
            await backend.start(a_start("a.1.0", cluster.nodes[0], (0, 1), "echo hi; sleep 600"))
            assert (await backend.log("a.1.0", wait_s=60)).data == b"hi\n"
            await backend.stop("a.1.0", 5.0)
            assert (await in_phase(backend, "a.1.0", "ended")).status == 143
            await nothing_left(cluster)  # a service that ends before leaves that to the next one

    asyncio.run(story())


@pytest.mark.long  # an idle node agent stays for a minute and a half
def test_node_agents_leave_when_nothing_runs_and_begin_again_when_something_is_to(
    cluster: RayCluster, tmp_path: Path
) -> None:
    async def node_agents() -> list[str]:
        return list(await asyncio.to_thread(cluster.ask, "node_agents", namespace=NAMESPACE))

    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:
            await backend.start(a_start("a.1.0", cluster.nodes[0], command="echo hi"))
            await in_phase(backend, "a.1.0", "ended")
            assert await node_agents()
            async with asyncio.timeout(180.0):
                while await node_agents():
                    await asyncio.sleep(1.0)
            shown = await backend.nodes()
            assert [node.name for node in shown if node.up] == list(cluster.nodes)
            assert (await backend.log("a.1.0")).data == b"hi\n"
            await backend.start(a_start("b.1.0", cluster.nodes[1]))
            await in_phase(backend, "b.1.0", "running")
        await nothing_left(cluster)

    asyncio.run(story())
