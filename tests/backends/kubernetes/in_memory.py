"""The backend, or only its informer, over an API server in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from tests.backends.kubernetes.memory_server import MemoryServer, a_node

from stretto.backends.kubernetes.api import PODS, Api, configuration
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.informer import Informer
from stretto.backends.kubernetes.objects import Pod
from stretto.backends.kubernetes.options import KubernetesOptions


def kubeconfig(folder: Path, url: str, token: str = "t") -> str:
    """A file by which the server is found."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "jobs"}}],
        "current-context": "c",
    }
    path = folder / f"kubeconfig-{token}"
    path.write_text(yaml.safe_dump(config), encoding="ascii")
    return str(path)


async def until(is_so: Callable[[], Any]) -> None:
    """Wait for something; the test has a limit of its own."""
    while not is_so():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def api_in_memory(folder: Path) -> AsyncIterator[tuple[MemoryServer, Api]]:
    """An empty server, and a connection to it."""
    server = await MemoryServer().open()
    api = Api(configuration(kubeconfig(folder, server.url)))
    try:
        yield server, api
    finally:
        await api.close()
        await server.close()


class Seen:
    """What an informer of pods has told of, in order."""

    def __init__(self, api: Api, silence_s: float = 30.0) -> None:
        self.changes: list[str] = []
        self.informer = Informer(api, PODS, "", self.changed, silence_s)

    def changed(self, before: Pod | None, after: Pod | None) -> None:
        """Note one change."""
        if after is None:
            assert before is not None
            self.changes.append(f"-{before.metadata.name}")
        else:
            self.changes.append(f"{'+' if before is None else '~'}{after.metadata.name}")

    @property
    def names(self) -> list[str]:
        """Of all pods that there are now."""
        return sorted(name for _, name in self.informer.items)


@asynccontextmanager
async def following(seen: Seen) -> AsyncIterator[Seen]:
    """Follow, once the first list is in, and then no more."""
    task = asyncio.create_task(seen.informer.follow())
    await seen.informer.listed.wait()
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def backend_in_memory(
    folder: Path, **options: Any
) -> AsyncIterator[tuple[MemoryServer, KubernetesBackend]]:
    """A server with two nodes of two GPUs each, and the backend over it."""
    server = await MemoryServer().open()
    for name in ("k0", "k1"):
        server.put("nodes", a_node(name, gpus=2))
    config = kubeconfig(folder, server.url)
    backend = await open_kubernetes(
        KubernetesOptions(kubeconfig=config, image="i", **options), "s1", folder / "state"
    )
    try:
        yield server, backend
    finally:
        await backend.close()
        await server.close()
