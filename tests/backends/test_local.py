"""The local backend over real agents: adopted, restarted, silent, and what is then known of their workers."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.service.files_left import files_left

from stretto.agent import run_directory
from stretto.backends.local import agent_client
from stretto.backends.local.agent_client import OwnAgent, RemoteAgent
from stretto.backends.local.backend import LocalBackend
from stretto.backends.protocol import (
    Backend,
    BackendUnreachable,
    NodeState,
    NoSuchWorker,
    NotNow,
    StartRefused,
    WorkerStart,
    WorkerState,
)
from stretto.errors import InputError

pytestmark = [pytest.mark.processes, pytest.mark.large]

PATIENCE_S = 180.0
ENDS_AFTER_S = 0.7  # an agent that nobody asks


@asynccontextmanager
async def opened(*agents: OwnAgent | RemoteAgent, down_after_s: float = 10.0) -> AsyncIterator[LocalBackend]:
    """A backend; its own agents stay, as they do when a service ends."""
    backend = LocalBackend(agents, down_after_s)
    try:
        yield await backend.open()
    finally:
        await backend.close()


def a_start(name: str, command: str, gpus: tuple[int, ...] = (), node: str = "n1") -> WorkerStart:
    return WorkerStart(name, name.split(".", maxsplit=1)[0], node, gpus, command, {}, grace_s=5.0)


async def until(backend: Backend, is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for changes until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        number = 0
        while not await is_so():
            number = await backend.changes(number, wait_s=1.0)


async def worker(backend: Backend, name: str) -> WorkerState:
    return next(each for each in await backend.workers() if each.id == name)


async def in_phase(backend: Backend, name: str, phase: str) -> WorkerState:
    """A worker, once it is in a phase."""

    async def is_so() -> bool:
        return any(each.id == name and each.phase == phase for each in await backend.workers())

    await until(backend, is_so)
    return await worker(backend, name)


async def node_once(backend: Backend, is_so: Callable[[NodeState], bool], name: str = "n1") -> NodeState:
    """A node, once something is so of it: a busy machine may take longer than it counts as silent."""

    async def found() -> bool:
        return any(each.name == name and is_so(each) for each in await backend.nodes())

    await until(backend, found)
    return next(each for each in await backend.nodes() if each.name == name)


def is_up(node: NodeState) -> bool:
    return node.up


def pid_of(own: OwnAgent) -> int:
    return int(json.loads((own.state / "address.json").read_text())["pid"])


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnAgent]:
    own = OwnAgent("n1", tmp_path / "n1", gpus=2, gpu_type="t")
    yield own
    end(own)


def end(own: OwnAgent) -> None:
    """End an agent and all its workers; nothing may be left of them."""
    if not (own.state / "address.json").exists():
        return

    async def end_all() -> None:
        async with opened(own) as backend:
            for each in await backend.workers():
                await backend.stop(each.id, 0)
            for each in await backend.workers():
                await in_phase(backend, each.id, "ended")
            os.kill(pid_of(own), signal.SIGTERM)

    asyncio.run(end_all())
    starts = [run_directory.read_json(path) for path in own.state.glob("*/*/start.json")]
    for start in starts:
        assert start is None or run_directory.leftovers(start["mark"], None) == []


def test_a_worker_goes_from_start_to_forgotten(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own) as backend:
            (node,) = await backend.nodes()
            assert (node.name, node.gpus, node.gpu_type, node.up) == ("n1", 2, "t", True)
            assert node.address == "127.0.0.1"
            started = await backend.start(a_start("j.1.0", "echo hi; sleep 600", (1,)))
            assert await backend.workers() == [started]
            running = await in_phase(backend, "j.1.0", "running")
            assert (running.gpus, running.job, running.holds_gpus) == ((1,), "j", True)
            assert (await backend.log("j.1.0", wait_s=10)).data == b"hi\n"
            await backend.stop("j.1.0", 30.0)
            ended = await in_phase(backend, "j.1.0", "ended")
            assert (ended.status, ended.signal, ended.stopped, ended.holds_gpus) == (143, 15, True, False)
            await backend.forget("j.1.0")
            await backend.forget("j.1.0")
            assert await backend.workers() == []
            piece = await backend.log("j.1.0", offset=1)
            assert (piece.data, piece.offset, piece.next_offset, piece.complete) == (b"i\n", 1, 3, True)
            await backend.delete_logs("j")
            with pytest.raises(NoSuchWorker):
                await backend.log("j.1.0")

    asyncio.run(story())


def test_an_agent_that_nobody_needs_ends_and_whoever_needs_one_starts_another(tmp_path: Path) -> None:
    own = OwnAgent("n1", tmp_path / "n1", gpus=2, gpu_type="t", end_after_s=ENDS_AFTER_S)
    go = tmp_path / "go"

    async def begun() -> int:
        async with opened(own) as backend:
            await asyncio.sleep(2 * ENDS_AFTER_S)  # somebody listens all the time
            await backend.start(a_start("j.1.0", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 7", (1,)))
            await in_phase(backend, "j.1.0", "running")
            return pid_of(own)

    async def carried_on() -> int:
        async with opened(own) as backend:
            assert (await worker(backend, "j.1.0")).status == 7
            await backend.start(a_start("k.1.0", "exit 0", (1,)))
            await in_phase(backend, "k.1.0", "ended")
            return pid_of(own)

    try:
        first = asyncio.run(begun())
        time.sleep(2 * ENDS_AFTER_S)
        assert agent_client.is_taken(own.state), "it must stay while a worker lives"
        go.touch()
        end_s = time.monotonic() + PATIENCE_S
        while agent_client.is_taken(own.state):
            assert time.monotonic() < end_s
            time.sleep(0.02)
        assert asyncio.run(carried_on()) != first
    finally:
        go.touch()
        end(own)


def test_a_node_says_which_of_its_workers_was_set_aside_and_starts_others(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own) as backend:
            await backend.start(a_start("j.1.0", "sleep 600", (0,)))
            await in_phase(backend, "j.1.0", "running")
            os.kill(pid_of(own), signal.SIGKILL)
            start = own.state / "runs" / "j.1.0" / "start.json"
            text = start.read_text()
            start.write_text("")
            node = await node_once(backend, lambda node: bool(node.remark))
            assert node.up
            assert node.remark.startswith("set aside j.1.0: start.json must be JSON")
            assert (await worker(backend, "j.1.0")).gpus == (0,)
            await backend.start(a_start("k.1.0", "exit 0", (1,)))
            assert (await in_phase(backend, "k.1.0", "ended")).status == 0
            await backend.stop("j.1.0", 0.0)
            await in_phase(backend, "j.1.0", "ended")
            await backend.forget("j.1.0")
            assert (await node_once(backend, lambda node: not node.remark)).up
            (own.state / "forgotten" / "j.1.0" / "start.json").write_text(text)

    asyncio.run(story())


def test_a_refused_start_says_whether_to_ask_again(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own) as backend:
            first = await backend.start(a_start("j.1.0", "sleep 600", (0,)))
            assert (await backend.start(a_start("j.1.0", "sleep 600", (0,)))).id == first.id
            with pytest.raises(StartRefused, match="another request"):
                await backend.start(a_start("j.1.0", "sleep 601", (0,)))
            with pytest.raises(NotNow, match=r"j\.1\.0"):
                await backend.start(a_start("k.1.0", "sleep 600", (0, 1)))
            with pytest.raises(StartRefused, match="gpus"):
                await backend.start(a_start("k.1.0", "sleep 600", (7,)))
            with pytest.raises(StartRefused, match="n2"):
                await backend.start(a_start("k.1.0", "sleep 600", node="n2"))
            with pytest.raises(StartRefused, match="worker id"):
                await backend.start(a_start("../k", "sleep 600"))
            with pytest.raises(NoSuchWorker):
                await backend.stop("k.1.0", 1.0)
            await backend.signal("j.1.0", signal.SIGKILL)
            assert (await in_phase(backend, "j.1.0", "ended")).status == 137
            await backend.start(a_start("k.1.0", "exit 0", (0, 1)))
            assert (await in_phase(backend, "k.1.0", "ended")).status == 0

    asyncio.run(story())


def test_the_next_service_adopts_the_agent_and_its_workers(own: OwnAgent) -> None:
    async def first() -> WorkerState:
        async with opened(own) as backend:
            await backend.start(a_start("j.1.0", "sleep 600", (0,)))
            return await in_phase(backend, "j.1.0", "running")

    async def second() -> WorkerState:
        async with opened(own) as backend:
            return await worker(backend, "j.1.0")

    before = asyncio.run(first())
    pid = pid_of(own)
    assert asyncio.run(second()) == before
    assert pid_of(own) == pid


def test_an_agent_that_is_killed_is_started_again_and_nobody_notices(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own) as backend:
            await backend.start(a_start("j.1.0", "sleep 600"))
            await backend.start(a_start("k.1.0", "while [ ! -e ../../go ]; do sleep 0.02; done; exit 3"))
            before = await in_phase(backend, "j.1.0", "running")
            await in_phase(backend, "k.1.0", "running")
            os.kill(pid_of(own), signal.SIGKILL)
            (own.state / "go").touch()
            assert (await in_phase(backend, "k.1.0", "ended")).status == 3
            assert await worker(backend, "j.1.0") == before
            assert [node.up for node in await backend.nodes()] == [True]

    asyncio.run(story())


def test_an_agent_that_begins_anew_knows_that_its_node_is_with_a_lender(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own) as backend:
            await backend.start(a_start("1.1.0", "sleep 600"))
            with pytest.raises(NotNow, match=r"n1 cannot go to inference: 1\.1\.0 still runs there"):
                await backend.hand_over(["n1"], "inference")
            await backend.stop("1.1.0", 0.0)
            await in_phase(backend, "1.1.0", "ended")
            await backend.hand_over(["n1", "unknown"], "inference")
            os.kill(pid_of(own), signal.SIGKILL)

            async def is_refused() -> bool:
                try:
                    await backend.start(a_start("2.1.0", "true"))
                except NotNow as refusal:
                    return str(refusal) == "node n1 is with its lender inference"
                except BackendUnreachable:
                    await asyncio.sleep(0.05)
                return False

            await until(backend, is_refused)
            await backend.hand_over(["n1"], "")
            await backend.start(a_start("2.1.0", "true"))
            await in_phase(backend, "2.1.0", "ended")

    asyncio.run(story())


def test_of_a_silent_node_nothing_is_known_until_it_answers_again(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own, down_after_s=1.0) as backend:
            await node_once(backend, is_up)
            await backend.start(a_start("j.1.0", "sleep 600", (0,)))
            await backend.start(a_start("k.1.0", "exit 3", (1,)))
            before = await in_phase(backend, "j.1.0", "running")
            await in_phase(backend, "k.1.0", "ended")
            os.kill(pid_of(own), signal.SIGSTOP)
            try:
                unknown = await in_phase(backend, "j.1.0", "unknown")
                (node,) = await backend.nodes()
                assert (node.up, bool(node.why)) == (False, True)
                assert (unknown.holds_gpus, (await worker(backend, "k.1.0")).status) == (True, 3)
                with pytest.raises(BackendUnreachable):
                    await backend.stop("other.1.0", 1.0)
            finally:
                os.kill(pid_of(own), signal.SIGCONT)
            assert await in_phase(backend, "j.1.0", "running") == before
            assert [node.up for node in await backend.nodes()] == [True]

    asyncio.run(story())


def test_a_node_that_never_answers_is_down_from_the_start_and_hides_nothing(own: OwnAgent) -> None:
    silent = RemoteAgent("n0", "http://127.0.0.1:9", "token")  # the port of `discard`: nobody listens

    async def story() -> None:
        async with opened(silent, own, down_after_s=1.0) as backend:
            await node_once(backend, is_up)
            assert [(node.name, node.up) for node in await backend.nodes()] == [("n0", False), ("n1", True)]
            with pytest.raises(BackendUnreachable, match="n0"):
                await backend.log("j.1.0")
            await backend.start(a_start("j.1.0", "exit 0"))
            assert (await in_phase(backend, "j.1.0", "ended")).status == 0
            with pytest.raises(BackendUnreachable, match="n0"):
                await backend.start(a_start("k.1.0", "exit 0", node="n0"))

    asyncio.run(story())


def test_several_nodes_may_have_agents_on_one_machine_and_one_may_be_remote(
    own: OwnAgent, tmp_path: Path
) -> None:
    other = OwnAgent("n2", tmp_path / "n2", gpus=1, gpu_type="u")

    async def story() -> None:
        async with opened(other) as backend:
            await backend.start(a_start("a.1.0", "sleep 600", (0,), "n2"))
        url = json.loads((other.state / "address.json").read_text())["url"]
        remote = RemoteAgent("n2", url, (other.state / "token").read_text())
        async with opened(remote, own) as backend:
            await backend.start(a_start("a.1.1", "sleep 600", (0,), "n1"))
            assert [(each.id, each.node) for each in await backend.workers()] == [
                ("a.1.0", "n2"),
                ("a.1.1", "n1"),
            ]
            await backend.stop("a.1.0", 0)
            assert (await in_phase(backend, "a.1.0", "ended")).status in (137, 143)

    try:
        asyncio.run(story())
    finally:
        end(other)


def test_an_agent_of_another_shape_is_not_taken_for_the_one_asked_for(own: OwnAgent) -> None:
    async def open_and_close(agent: OwnAgent) -> None:
        async with opened(agent):
            pass

    asyncio.run(open_and_close(own))
    with pytest.raises(InputError, match=r"gpus 2, expected 3; end it first, as process [1-9]"):
        asyncio.run(open_and_close(OwnAgent("n1", own.state, gpus=3, gpu_type="t")))
    with pytest.raises(InputError, match="node must be 'n9', got 'n1'"):
        asyncio.run(open_and_close(OwnAgent("n9", own.state, gpus=2, gpu_type="t")))


def test_a_first_agent_that_finds_no_gpu_says_at_once_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    async def story() -> None:
        async with opened(OwnAgent("n1", tmp_path / "n1", gpus=None), down_after_s=PATIENCE_S):
            pass

    with pytest.raises(InputError, match="--slots"):
        asyncio.run(story())


def test_a_node_whose_gpus_have_gone_since_is_down_and_says_why(
    own: OwnAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    async def node_of(agent: OwnAgent, is_so: Callable[[NodeState], bool]) -> NodeState:
        async with opened(agent, down_after_s=2.0) as backend:
            return await node_once(backend, is_so)

    asyncio.run(node_of(own, is_up))
    end(own)
    end_s = time.monotonic() + PATIENCE_S
    while agent_client.is_taken(own.state):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    node = asyncio.run(node_of(OwnAgent("n1", own.state, gpus=None), lambda node: "found no GPU" in node.why))
    assert not node.up


def test_a_fresh_token_is_for_its_owner_alone(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own):
            url = json.loads((own.state / "address.json").read_text())["url"]
            async with opened(RemoteAgent("n1", url, "wrong"), down_after_s=0.5) as stranger:
                assert not (await node_once(stranger, lambda node: "token" in node.why)).up
                assert await stranger.workers() == []

    asyncio.run(story())


def test_an_agent_that_cannot_be_started_now_is_tried_again(
    own: OwnAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = agent_client.start_agent, [OSError(11, "no more processes")]

    def once_not(agent: OwnAgent) -> int:
        if failures:
            raise failures.pop()
        return start(agent)

    monkeypatch.setattr(agent_client, "start_agent", once_not)

    async def story() -> None:
        async with opened(own) as backend:
            assert (await backend.nodes())[0].up
            assert failures == []

    asyncio.run(story())


def test_whoever_waits_for_changes_is_told_that_nobody_follows_an_agent(
    own: OwnAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> bool:
        return False

    async def story() -> None:
        async with opened(own) as backend:
            monkeypatch.setattr(agent_client.AgentClient, "note_silence", lambda self, why: 1 / 0)
            os.kill(pid_of(own), signal.SIGTERM)
            with pytest.raises(ZeroDivisionError):
                await until(backend, never)
        monkeypatch.undo()

    asyncio.run(story())


def test_who_can_open_no_more_files_takes_no_node_for_silent(own: OwnAgent) -> None:
    async def story() -> None:
        async with opened(own, down_after_s=1.0) as backend:
            (agent,) = backend.agents.values()
            await node_once(backend, is_up)  # an agent may take longer than that to start
            for pooled in backend.client._transport._pool.connections:  # type: ignore[attr-defined]
                await pooled.aclose()
            with files_left(0):
                heard_s = agent.heard_s
                async with asyncio.timeout(PATIENCE_S):
                    while agent.heard_s < heard_s + 3.0:  # thrice as long as a node may be silent
                        assert agent.node.up
                        await asyncio.sleep(0.02)
                with pytest.raises(BackendUnreachable, match="Too many open files"):
                    await agent.ask("GET", "/v1/node")
            assert (await agent.ask("GET", "/v1/node")).status_code == 200

    asyncio.run(story())
