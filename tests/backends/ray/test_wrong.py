"""Clusters that cannot be used are one clear line at once, nodes that cannot say why."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.backends.ray.cluster import RayCluster

from stretto.backends.protocol import NodeState
from stretto.backends.ray.backend import Call, RayBackend, open_ray
from stretto.errors import InputError
from stretto.jobfile import JobSpec, Resources
from stretto.jobfile.parts import Accelerators

pytestmark = [pytest.mark.ray, pytest.mark.large]

AT_ONCE_S = 60.0  # Ray by itself goes on for two minutes


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of a server that is not Ray's."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def refusal(address: str, folder: Path) -> str:
    """The line that a service over this address is refused with, at once."""
    pytest.importorskip("ray", reason="ray is not installed; install stretto[ray]")
    began_s = time.monotonic()
    with pytest.raises(InputError) as refused:
        asyncio.run(open_ray(address, "tests", folder))
    assert time.monotonic() - began_s < AT_ONCE_S
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("address", ["", "head", "head:0", "head:66000", "http://head:1", "ray://head"])
def test_an_address_that_is_none(address: str, tmp_path: Path) -> None:
    assert refusal(address, tmp_path) == f"--address {address}: expected auto, HOST:PORT or ray://HOST:PORT"


@pytest.mark.parametrize("before", ["", "ray://"])
def test_an_address_at_which_nobody_answers(before: str, tmp_path: Path) -> None:
    assert "nothing answers at 127.0.0.1:9" in refusal(f"{before}127.0.0.1:9", tmp_path)


@pytest.mark.parametrize("before", ["", "ray://"])
def test_an_address_at_which_somebody_else_answers(before: str, stranger: int, tmp_path: Path) -> None:
    address = f"{before}127.0.0.1:{stranger}"
    said = f"--address {address}: what answers at 127.0.0.1:{stranger} is not Ray"
    assert refusal(address, tmp_path) == said


@pytest.mark.long  # a node joins a cluster of Ray in minutes where the machine is busy
def test_a_node_without_stretto_says_so_and_the_others_are_used(cluster: RayCluster, tmp_path: Path) -> None:
    node = f"{cluster.net}.6"
    (tmp_path / "stretto").mkdir()
    (tmp_path / "stretto" / "__init__.py").write_text("raise ModuleNotFoundError('No module named stretto')")
    cluster.start_node(node, {"PYTHONPATH": str(tmp_path)})
    try:
        cluster.joined(node)

        async def story() -> None:
            backend = await open_ray(cluster.address, "tests", tmp_path)
            try:
                async with asyncio.timeout(60):
                    number = 0
                    while "Stretto cannot be imported there" not in (await shown(backend, node)).why:
                        number = await backend.changes(number, 0.5)
                assert not (await shown(backend, node)).up
                assert (await shown(backend, cluster.nodes[0])).up
            finally:
                await backend.close()

        asyncio.run(story())
    finally:
        cluster.kill_node(node)


async def shown(backend: RayBackend, name: str) -> NodeState:
    return next((one for one in await backend.nodes() if one.name == name), NodeState(name, "", 0, up=False))


def test_that_ray_wants_a_token_is_seen_in_what_the_present_gateway_prints(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text("of yesterday: Unauthenticated: InvalidAuthToken\n")
    gateway = a_backend(tmp_path).gateway
    assert not gateway.is_turned_away()
    with log.open("a") as file:
        file.write("Failed to get cluster ID from GCS server: Unauthenticated: RPC error: InvalidAuthToken\n")
    assert gateway.is_turned_away()


def a_backend(folder: Path, *nodes: NodeState) -> RayBackend:
    """One that has seen these nodes, over a cluster that is not there."""
    backend = RayBackend(Call("auto", "tests", folder / "gateway.log", 30.0, 75.0))
    backend.known_nodes = nodes
    return backend


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        pytest.param(Resources((Accelerators("h100", 1),)), "a GPU type .*: a100, t4", id="a type"),
        pytest.param(Resources(gpus_per_worker=8), "8: expected at most 4", id="GPUs of one node"),
        pytest.param(Resources(cpus=64.0), "share is 64, expected at most 16", id="cores"),
        pytest.param(Resources(memory_gb=900.0), "share is 900, expected at most 64", id="memory"),
    ],
)
def test_what_no_node_has_is_refused_when_it_is_submitted(
    asked: Resources, says: str, tmp_path: Path
) -> None:
    nodes = [NodeState("a", "a100", 4, 16, 64.0), NodeState("b", "t4", 2, 8, 32.0)]
    with pytest.raises(InputError, match=says):
        asyncio.run(a_backend(tmp_path, *nodes).check(JobSpec("true", resources=asked)))


def test_what_fits_is_not_refused(tmp_path: Path) -> None:
    fits = Resources((Accelerators("H100", 8), Accelerators("A100", 8)), cpus=64.0, memory_gb=256.0)
    node = NodeState("a", "a100", 4, 16, 64.0)
    asyncio.run(a_backend(tmp_path, node).check(JobSpec("true", resources=fits)))


def test_a_cluster_of_which_no_node_has_stretto_is_refused(tmp_path: Path) -> None:
    why = "Stretto cannot be imported there: No module named 'stretto'"
    backend = a_backend(tmp_path, NodeState("a", "a100", 4, up=False, why=why))
    with pytest.raises(InputError, match="node a: Stretto cannot be imported there"):
        backend.check_installed()
