"""A real Ray cluster with three nodes of two GPU types, only counted; all tests share it."""

import asyncio
import importlib.util
import random
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.backends.ray.cluster import RayCluster, release, shared
from tests.conformance.world import CannotRun, World

from stretto.backends.protocol import Backend, BackendUnreachable
from stretto.backends.ray.backend import Call, Gateway, RayBackend

LATE_S = 1.0  # the longest that an answer is held back in `slow`
NOT_TOLD = "nobody tells Ray whose a node is: nodes change hands in the service's records only"
LACKS = {
    "test_a_node_that_is_with_its_lender_takes_no_worker_until_it_is_back": NOT_TOLD,
    "test_a_node_whose_lender_is_deleted_takes_workers_from_then_on": NOT_TOLD,
}
LOST = 0.3  # the share of answers that get lost there


class LosingGateway(Gateway):
    """A way to a gateway on which answers are late or get lost while the world says so."""

    world: "RayWorld"

    async def ask(self, do: str, within_s: float, /, **arguments: Any) -> Any:
        """Have it done, and perhaps not hear of it."""
        answer = await super().ask(do, within_s, **arguments)
        if self.world.is_slow:
            await asyncio.sleep(self.world.chance.uniform(0.0, LATE_S))
            if self.world.chance.random() < LOST:
                raise BackendUnreachable("the answer was lost")
        return answer


@dataclass
class RayWorld:
    """The cluster, and what befalls it."""

    folder: Path
    cluster: RayCluster
    name: str = "ray"
    lacks: Mapping[str, str] = field(default_factory=lambda: LACKS)
    patience_s: float = 120.0
    program: Sequence[str] = ("-m", "stretto.cli.app")
    serve: Sequence[str] = ()
    is_slow: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        """Know how a service finds it."""
        self.serve = ("--backend", "ray", "--address", self.cluster.address)

    async def open(self) -> Backend:
        """A new connection."""
        call = Call(self.cluster.address, "conformance", self.folder / "gateway.log", 30.0, 75.0)
        backend = RayBackend(call)
        gateway = LosingGateway(call, backend.hear)
        gateway.world, backend.gateway = self, gateway
        return await backend.open()

    def nodes(self) -> Sequence[str]:
        """All three."""
        return self.cluster.nodes

    async def kill_node(self, name: str) -> None:
        """SIGKILL to Ray's processes there, to supervisors and to workers."""
        await asyncio.to_thread(self.cluster.kill_node, name)

    async def return_node(self, name: str) -> None:
        """Another `ray start`."""
        if name not in self.cluster.sessions:
            self.cluster.start_node(name)
            await asyncio.to_thread(self.cluster.joined, name)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Suspend the head, all raylets and all actors."""
        self.cluster.suspend()
        try:
            yield
        finally:
            self.cluster.suspend(signal.SIGCONT)

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        """Answers on the way from the gateway are late, and some are lost."""
        self.is_slow = True
        try:
            yield
        finally:
            self.is_slow = False

    async def left(self) -> Sequence[str]:
        """Supervisors, workers, actors that hold GPUs, placement groups."""
        in_ray: list[str] = await asyncio.to_thread(self.cluster.ask, "left")
        return [*self.cluster.workers_left(), *in_ray]

    def forget_workers(self) -> None:
        """Nothing is kept: services know their own workers from those of others."""

    async def close(self) -> None:
        """End the cluster, unless other tests need it still."""
        left = [*await self.left()]
        await asyncio.to_thread(release)
        assert not left, f"left behind: {left}"


def begin(folder: Path) -> World:
    """A head without GPUs, and three nodes of four."""
    if importlib.util.find_spec("ray") is None:
        raise CannotRun("ray is not installed; install stretto[ray]")
    return RayWorld(folder, shared())
