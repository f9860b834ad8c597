"""Agents of this machine as three nodes, each with a state directory and a port of its own."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.conformance.world import World
from tests.conformance.worlds.proxy import Proxy

from stretto.agent import run_directory, supervisor
from stretto.backends.local.agent_client import OwnAgent, RemoteAgent, start_agent
from stretto.backends.local.backend import LocalBackend
from stretto.backends.protocol import Backend
from stretto.demo.own_service import environment_of, has_argument, until

NODES = {"n0": "fast", "n1": "fast", "n2": "slow"}  # and their GPU types
GPUS = 2
OWNERS = ("tests", "service")
DOWN_AFTER_S = 6.0  # more than a busy machine keeps anybody from answering, and thrice what tests are silent
PROGRAM = str(Path(__file__).with_name("local_service.py"))


@dataclass
class LocalWorld:
    """Two agents for each node, one for tests and one for services: whoever has an agent has it alone.

    They are reached through a wire each, whose other end is where the agent listens since its last start.
    """

    folder: Path
    types: Mapping[str, str] = field(default_factory=lambda: NODES)  # GPU types by node
    owners: Sequence[str] = OWNERS
    name: str = "local"
    lacks: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 120.0
    program: Sequence[str] = (PROGRAM,)
    serve: Sequence[str] = ()
    agents: dict[tuple[str, str], OwnAgent] = field(default_factory=dict)  # by (node, whose)
    wires: dict[tuple[str, str], Proxy] = field(default_factory=dict)
    pids: dict[tuple[str, str], int] = field(default_factory=dict)

    def start(self) -> None:
        """Start all agents, and write down for services where they are."""
        for whose in self.owners:
            for node, gpu_type in self.types.items():
                self.agents[node, whose] = OwnAgent(node, self.folder / whose / node, GPUS, gpu_type)
                self.wires[node, whose] = Proxy()
        self._start([*self.agents])
        told = self.folder / "agents.json"
        addresses = [[one.node, one.url, one.token] for one in self.remote("service")]
        told.write_text(json.dumps(addresses), encoding="utf-8")
        self.program = (PROGRAM, str(told), str(DOWN_AFTER_S))

    def _start(self, those: Sequence[tuple[str, str]]) -> None:
        for key in those:
            (self.agents[key].state / "address.json").unlink(missing_ok=True)
            self.pids[key] = start_agent(self.agents[key])
        for key in those:
            address = self.agents[key].state / "address.json"
            until(address.exists, what=f"the agent of {key} listens")
            at = urlsplit(json.loads(address.read_text(encoding="ascii"))["url"])
            self.wires[key].server = str(at.hostname), int(at.port or 0)

    def remote(self, whose: str) -> list[RemoteAgent]:
        """The agents as a backend finds them."""
        return [
            RemoteAgent(
                node,
                f"http://127.0.0.1:{self.wires[node, whose].port}",
                (self.agents[node, whose].state / "token").read_text(),
            )
            for node in self.types
        ]

    async def open(self) -> Backend:
        """A new connection."""
        return await LocalBackend(self.remote("tests"), DOWN_AFTER_S).open()

    def nodes(self) -> Sequence[str]:
        """All of them."""
        return tuple(self.types)

    async def kill_node(self, name: str) -> None:
        """SIGKILL to the agents, their supervisors, and all that came of workers."""
        for whose in self.owners:
            if pid := self.pids.pop((name, whose), 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        until_s = time.monotonic() + self.patience_s
        while left := self._of(name):
            for each in left:
                supervisor.send_to(each, signal.SIGKILL)
            assert time.monotonic() < until_s, f"of {name} there is still {left}"
            await asyncio.sleep(0.02)

    async def return_node(self, name: str) -> None:
        """Start the agents again."""
        self._start([(name, whose) for whose in self.owners if (name, whose) not in self.pids])

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
        """Supervisors, workers, and what came of these."""
        return [f"process {one.pid} of {node}" for node in self.types for one in self._of(node)]

    def _of(self, node: str) -> list[supervisor.Process]:
        """Processes of workers of one node."""
        states = [self.agents[node, whose].state for whose in self.owners]
        folders, marks = [str((state / "runs").resolve()) for state in states], set()
        for path in (path for state in states for path in state.glob("*/*/start.json")):
            with suppress(OSError, ValueError, KeyError):
                marks.add(f"{supervisor.RUN_MARK}={(run_directory.read_json(path) or {})['mark']}".encode())
        return [
            each
            for each in supervisor.processes()
            if each.pid != os.getpid()
            and (
                any(has_argument(each.pid, folder) for folder in folders) or marks & environment_of(each.pid)
            )
        ]

    def forget_workers(self) -> None:
        """Agents otherwise serve one service each, and keep the ids of its workers with their logs."""
        for node in self.types:
            for run in (self.agents[node, "service"].state / "forgotten").iterdir():
                shutil.rmtree(run)

    async def close(self) -> None:
        """End all agents; raises where anything is left."""
        left = [*await self.left()]
        for node in self.nodes():
            await self.kill_node(node)
        for wire in self.wires.values():
            wire.close()
        assert not left, f"left behind: {left}"


def begin(folder: Path) -> World:
    """Three nodes of two GPUs each."""
    world = LocalWorld(folder)
    world.start()
    return world
