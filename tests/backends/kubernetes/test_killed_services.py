"""A service that is killed while it starts a worker leaves nothing behind that the next one does not find."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.backends.kubernetes.in_memory import kubeconfig, until
from tests.backends.kubernetes.memory_server import MemoryServer, a_node

from stretto.backends.kubernetes import backend as backends
from stretto.backends.kubernetes import job_secrets, manifests
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import WorkerStart

pytestmark = [pytest.mark.processes, pytest.mark.sockets]

TEAM = {"kubernetes": {"namespace": "team"}}
WORKER = WorkerStart(
    "7.1.0", "7", "k0", (0,), ("python", "train.py"), {manifests.TOKEN: "7.secret"}, asks=TEAM
)
STARTS_ONE = """
import asyncio, os, signal, sys
from pathlib import Path
from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.options import KubernetesOptions
from tests.backends.kubernetes.test_killed_services import WORKER

async def main():
    options = KubernetesOptions(kubeconfig=sys.argv[1], image="i")
    backend = await open_kubernetes(options, "s1", Path(sys.argv[2]))

    async def create(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    backend.api.create = create
    await backend.start(WORKER)

asyncio.run(main())
"""


async def killed_before_its_pod(server: MemoryServer, config: str, folder: Path) -> None:
    """A process whose backend dies once the Secret is there, and before it asks for the pod."""
    program = (sys.executable, "-c", STARTS_ONE, config, str(folder))
    process: Process = await asyncio.create_subprocess_exec(*program)
    assert await process.wait() == -signal.SIGKILL
    await until(lambda: not server.watching.get("pods"))
    assert [name for name, _ in server.objects["secrets"]] == ["team"]
    assert not server.of("POST", "pods")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)
    monkeypatch.setattr(job_secrets, "UNUSED_S", 0.1)


async def open_again(config: str, folder: Path) -> KubernetesBackend:
    return await open_kubernetes(KubernetesOptions(kubeconfig=config, image="i"), "s1", folder)


@asynccontextmanager
async def begun_again(tmp_path: Path) -> AsyncIterator[tuple[MemoryServer, KubernetesBackend]]:
    """The backend that begins after one was killed between Secret and pod."""
    server = await MemoryServer(bookmark_s=0.2).open()  # so that it notices soon that a watch has gone
    server.put("nodes", a_node("k0", gpus=2))
    config, folder = kubeconfig(tmp_path, server.url), tmp_path / "state"
    try:
        await killed_before_its_pod(server, config, folder)
        later = await open_again(config, folder)
        try:
            yield server, later
        finally:
            await later.close()
    finally:
        await server.close()


@pytest.mark.usefixtures("soon")
async def test_a_secret_whose_service_was_killed_before_the_pod_goes_after_a_restart(tmp_path: Path) -> None:
    async with begun_again(tmp_path) as (server, _):
        await until(lambda: not server.objects["secrets"])
        await until(lambda: not [*(tmp_path / "state" / "secrets").iterdir()])  # its note goes after it


@pytest.mark.usefixtures("soon")
async def test_it_stays_for_the_pod_that_the_next_service_creates_after_all(tmp_path: Path) -> None:
    async with begun_again(tmp_path) as (server, later):
        await later.start(WORKER)
        await asyncio.sleep(0.3)  # it has been looked for several times
        assert len(server.objects["secrets"]) == 1 == len(server.objects["pods"])


@pytest.mark.usefixtures("soon")
async def test_a_note_that_was_cut_off_says_nothing_and_goes(tmp_path: Path) -> None:
    server = await MemoryServer().open()
    folder = tmp_path / "state"
    (folder / "secrets").mkdir(parents=True)
    (folder / "secrets" / "half.json").write_text('["team"', encoding="ascii")
    try:
        later = await open_again(kubeconfig(tmp_path, server.url), folder)
        await later.close()
    finally:
        await server.close()
    assert [*(folder / "secrets").iterdir()] == []
