"""Three agents of this machine as three nodes, each with a state directory and a port of its own."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.world import World
from tests.conformance.worlds.proxy import Proxy

from stretto.demo.own_service import environment_of, has_argument, until
from stretto.live.agent import keeper, runs
from stretto.live.backends.link import OwnAgent, RemoteAgent, start_agent
from stretto.live.backends.local import LocalBackend
from stretto.live.backends.protocol import Backend

NODES = {"n0": "fast", "n1": "fast", "n2": "slow"}  # and their GPU types
GPUS = 2
DOWN_AFTER_S = 1.0
PROGRAM = str(Path(__file__).with_name("local_service.py"))


@dataclass
class LocalWorld:
    """The agents; services and tests reach them through a wire each."""

    folder: Path
    name: str = "local"
    lacks: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 15.0
    program: Sequence[str] = (PROGRAM,)
    serve: Sequence[str] = ()
    agents: dict[str, OwnAgent] = field(default_factory=dict)
    wires: dict[str, Proxy] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start all agents, and write down for services where they are."""
        for node, gpu_type in NODES.items():
            port = a_free_port()
            self.agents[node] = OwnAgent(node, self.folder / node, GPUS, gpu_type, f"127.0.0.1:{port}")
            self.wires[node] = Proxy(("127.0.0.1", port))
            self._start(node)
        addresses = [[one.node, one.url, one.token] for one in self.remote()]
        told = self.folder / "agents.json"
        told.write_text(json.dumps(addresses), encoding="utf-8")
        self.program = (PROGRAM, str(told), str(DOWN_AFTER_S))

    def _start(self, node: str) -> None:
        state = self.agents[node].state
        (state / "address.json").unlink(missing_ok=True)
        self.pids[node] = start_agent(self.agents[node])
        until((state / "address.json").exists, what=f"the agent of {node} listens")

    def remote(self) -> list[RemoteAgent]:
        """The agents as a service finds them."""
        return [
            RemoteAgent(node, f"http://127.0.0.1:{self.wires[node].port}", (own.state / "token").read_text())
            for node, own in self.agents.items()
        ]

    async def open(self) -> Backend:
        """A new connection."""
        return await LocalBackend(self.remote(), DOWN_AFTER_S).open()

    def nodes(self) -> Sequence[str]:
        """All three."""
        return tuple(self.agents)

    async def kill_node(self, name: str) -> None:
        """SIGKILL to the agent, its keepers, and all that came of workers."""
        pid, state = self.pids.pop(name, 0), self.agents[name].state
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        until_s = time.monotonic() + self.patience_s
        while left := self._of(state):
            for each in left:
                keeper.send_to(each, signal.SIGKILL)
            assert time.monotonic() < until_s, f"of {name} there is still {left}"
            await asyncio.sleep(0.02)

    async def return_node(self, name: str) -> None:
        """Start the agent again."""
        if name not in self.pids:
            self._start(name)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Suspend the agents."""
        stopped = list(self.pids.values())
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        """Through wires that lose answers."""
        for wire in self.wires.values():
            wire.slow = True
        try:
            yield
        finally:
            for wire in self.wires.values():
                wire.slow = False

    async def left(self) -> Sequence[str]:
        """Keepers, workers, and what came of these."""
        return [
            f"process {one.pid} of {node}" for node, own in self.agents.items() for one in self._of(own.state)
        ]

    def _of(self, state: Path) -> list[keeper.Process]:
        """Processes of workers of one node."""
        folder, marks = str((state / "runs").resolve()), set()
        for path in state.glob("*/*/start.json"):
            with suppress(OSError, ValueError, KeyError):
                marks.add(f"{keeper.RUN_MARK}={(runs.read_json(path) or {})['mark']}".encode())
        return [
            each
            for each in keeper.processes()
            if each.pid != os.getpid()
            and (has_argument(each.pid, folder) or marks & environment_of(each.pid))
        ]

    async def close(self) -> None:
        """End all agents; raises where anything is left."""
        left = [*await self.left()]
        for node in self.nodes():
            await self.kill_node(node)
        for wire in self.wires.values():
            wire.close()
        assert not left, f"left behind: {left}"


def a_free_port() -> int:
    """One that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def begin(folder: Path) -> World:
    """Three nodes of two GPUs each."""
    world = LocalWorld(folder)
    world.start()
    return world
