"""Short stories over a backend of a real Slurm."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.backends.slurm.cluster import SlurmCluster

from stretto.backends.protocol import BackendUnreachable, NodeState, WorkerStart, WorkerState
from stretto.backends.slurm.backend import SlurmBackend, open_slurm
from stretto.backends.slurm.options import SlurmOptions

PATIENCE_S = 180.0


@asynccontextmanager
async def opened(
    cluster: SlurmCluster, shared: Path, service: str = "s", **options: Any
) -> AsyncIterator[SlurmBackend]:
    """A connection; worker jobs stay when it is closed, as when a service ends."""
    options = {"quiet_s": 1.0, "environment": cluster.environment, **options}
    backend = await open_slurm(SlurmOptions(**options), service, shared)
    assert isinstance(backend, SlurmBackend)
    try:
        yield backend
    finally:
        await backend.close()


def a_start(
    name: str, command: str, node: str = "a1", gpus: tuple[int, ...] = (0,), **more: Any
) -> WorkerStart:
    """A worker of one line for the shell."""
    start = WorkerStart(name, name.split(".", maxsplit=1)[0], node, gpus, command, {}, grace_s=5.0)
    return replace(start, **more)


async def until(backend: SlurmBackend, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for changes until something is so."""
    number = 0
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await is_so():
                number = await backend.changes(number, wait_s=0.5)
    except TimeoutError:
        raise AssertionError(f"{what}: {await backend.workers()} {await backend.nodes()}") from None


async def worker(backend: SlurmBackend, name: str) -> WorkerState:
    """A worker as it is listed."""
    return next(each for each in await backend.workers() if each.id == name)


async def in_phase(backend: SlurmBackend, name: str, phase: str) -> WorkerState:
    """A worker, once it is in a phase."""

    async def is_so() -> bool:
        return any(each.id == name and each.phase == phase for each in await backend.workers())

    await until(backend, is_so, f"{name} is {phase}")
    return await worker(backend, name)


async def node(backend: SlurmBackend, name: str) -> NodeState:
    """A node as it is listed."""
    return next(each for each in await backend.nodes() if each.name == name)


async def node_once(
    backend: SlurmBackend, name: str, is_so: Callable[[NodeState], object], what: str
) -> NodeState:
    """A node, once something is so of it."""

    async def seen() -> bool:
        return bool(is_so(await node(backend, name)))

    await until(backend, seen, f"{name} {what}")
    return await node(backend, name)


async def insist(order: Callable[[], Awaitable[Any]]) -> Any:
    """Give an order until it is taken."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await order()
            except BackendUnreachable:
                await asyncio.sleep(0.2)
