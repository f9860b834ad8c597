"""Workers of the backend in containers of real kubelets."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.control_plane import ControlPlane
from tests.backends.kubernetes.real_nodes import IMAGE, RealNodes, missing, process_in
from tests.conformance.worlds.kubernetes import rights

from stretto.backends.kubernetes import pod_events
from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.manifests import BEGAN
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import Backend, NotNow, WorkerStart, WorkerState

pytestmark = [
    pytest.mark.processes,
    pytest.mark.kubernetes,
    pytest.mark.large,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

PRODUCTS = {"r0": "NVIDIA-A100-SXM4-80GB", "r1": "Tesla-T4"}
GPUS = 2


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodes]:
    """Two ready nodes of two GPUs each."""
    folder = tmp_path_factory.mktemp("real")
    plane = ControlPlane(folder / "plane")
    cluster = RealNodes(folder / "nodes", plane)
    try:
        plane.start()
        plane.allow("stretto", rights())
        yield cluster.start(PRODUCTS, GPUS)
    finally:
        cluster.close()
        plane.close()
    assert cluster.left() == []


async def connect(nodes: RealNodes, folder: Path, **more: Any) -> Backend:
    options = KubernetesOptions(
        **more,
        kubeconfig=str(nodes.plane.kubeconfig("stretto")),
        image=IMAGE,
        host_network=True,
        python=sys.executable,
    )
    return await open_kubernetes(options, "real", folder)


def worker(name: str, node: str, script: str, gpus: tuple[int, ...] = (0,)) -> WorkerStart:
    return WorkerStart(
        id=name,
        job=name.partition(".")[0],
        node=node,
        gpus=gpus,
        command=("/bin/sh", "-c", script),
        env={"STRETTO_TOKEN": "t"},
        grace_s=10,
    )


async def until(backend: Backend, name: str, phase: str) -> WorkerState:
    """The state of a worker, once it has reached a phase."""
    while True:
        for state in await backend.workers():
            if state.id == name and state.phase == phase:
                return state
            assert state.id != name or state.phase != "ended", state
        await asyncio.sleep(0.1)


async def started(backend: Backend, one: WorkerStart) -> None:
    """Start a worker, as soon as that may be."""
    while True:
        with suppress(NotNow):  # the device plug-in has not registered with its kubelet yet
            await backend.start(one)
            return
        await asyncio.sleep(0.1)


async def log_of(backend: Backend, name: str, text: str) -> None:
    """Wait until the log of a worker has a text."""
    while text not in (await backend.log(name)).data.decode():
        await asyncio.sleep(0.1)


async def until_noted(nodes: RealNodes) -> None:
    """Wait until the only pod has the mark that it began."""
    while True:
        (pod,) = nodes.plane.ask("GET", "api/v1/pods").json()["items"]
        if BEGAN in pod["metadata"]["annotations"]:
            return
        await asyncio.sleep(0.1)


async def test_both_nodes_are_there_with_the_gpus_of_their_types(nodes: RealNodes, tmp_path: Path) -> None:
    backend = await connect(nodes, tmp_path)
    try:
        states = {state.name: state for state in await backend.nodes()}
        gpus_of_nodes = {name: (state.gpus, state.up) for name, state in states.items()}
        assert gpus_of_nodes == dict.fromkeys(PRODUCTS, (GPUS, True))
        assert states["r0"].gpu_type != states["r1"].gpu_type
    finally:
        await backend.close()


async def test_a_pod_on_each_node_runs_prints_and_ends_with_its_exit_status(
    nodes: RealNodes, tmp_path: Path
) -> None:
    backend = await connect(nodes, tmp_path)
    try:
        for number, node in enumerate(PRODUCTS):
            name = f"{number + 1}.1.0"
            await backend.start(worker(name, node, f"echo I am $STRETTO_WORKER_ID; exit {number + 3}"))
        for number, node in enumerate(PRODUCTS):
            name = f"{number + 1}.1.0"
            state = await until(backend, name, "ended")
            assert (state.node, state.status, state.signal) == (node, number + 3, None), state
            await log_of(backend, name, f"I am {name}")
            await backend.forget(name)
    finally:
        await backend.close()


async def test_a_stop_reaches_the_command_in_its_container_as_sigterm(
    nodes: RealNodes, tmp_path: Path
) -> None:
    backend = await connect(nodes, tmp_path)
    try:
        script = "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
        await backend.start(worker("8.1.0", "r0", script, (0, 1)))
        await log_of(backend, "8.1.0", "ready")
        await backend.stop("8.1.0", 10)
        state = await until(backend, "8.1.0", "ended")
        assert (state.status, state.stopped) == (7, True), state
        await log_of(backend, "8.1.0", "saved")
        await backend.forget("8.1.0")
    finally:
        await backend.close()


async def ended_with(backend: Backend, one: WorkerStart) -> WorkerState:
    """How a worker ends that never begins."""
    await backend.start(one)
    while not (found := [each for each in await backend.workers() if each.phase == "ended"]):
        await asyncio.sleep(0.1)
    (state,) = found
    await backend.forget(one.id)
    return state


async def test_a_volume_that_is_missing_ends_the_start_in_the_kubelets_own_words(
    nodes: RealNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_events, "LOOK_S", 1.0)
    backend = await connect(nodes, tmp_path, pending_s=10.0)
    try:
        volume = {"name": "keys", "secret": {"secretName": "none"}}
        mount = {"name": "keys", "mountPath": "/run/keys"}
        asks = {"kubernetes": {"volumes": [volume], "volume_mounts": [mount]}}
        state = await ended_with(backend, replace(worker("50.1.0", "r0", "true"), asks=asks))
        assert (state.status, state.stopped) == (125, False), state
        assert state.why.startswith("cannot start: FailedMount: "), state
        assert state.why.endswith('secret "none" not found'), state
    finally:
        await backend.close()


async def test_an_image_that_cannot_be_had_ends_the_start_in_the_kubelets_own_words(
    nodes: RealNodes, tmp_path: Path
) -> None:
    backend = await connect(nodes, tmp_path, pending_s=10.0)
    try:
        missing_image = replace(worker("51.1.0", "r0", "true"), image="127.0.0.1:1/no/such:1")
        state = await ended_with(backend, missing_image)
        assert (state.status, state.stopped) == (125, False), state
        assert state.why.startswith(("cannot start: ErrImagePull: ", "cannot start: ImagePullBackOff: "))
        assert "127.0.0.1:1/no/such:1" in state.why, state
    finally:
        await backend.close()


async def test_a_kubelet_that_dies_leaves_its_workers_running_and_finds_them_again(
    nodes: RealNodes, tmp_path: Path
) -> None:
    backend = await connect(nodes, tmp_path)
    try:
        script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done"
        await backend.start(worker("30.1.0", "r0", script, (0, 1)))
        await log_of(backend, "30.1.0", "ready")
        container = process_in("30.1.0", 1)
        nodes.kill_kubelet("r0")
        assert (await until(backend, "30.1.0", "unknown")).holds_gpus
        with pytest.raises(NotNow, match=r"is in use by 30\.1\.0"):
            await backend.start(worker("31.1.0", "r0", "echo never"))
        assert process_in("30.1.0", 1) == container != 0, "its container goes on"
        nodes.bring_kubelet_back("r0")
        await until(backend, "30.1.0", "running")
        assert (await backend.nodes())[0].gpus == GPUS, "whether or not its device plug-in is there again"
        assert process_in("30.1.0", 1) == container, "it was not started again"
        await backend.stop("30.1.0", 10)
        assert (await until(backend, "30.1.0", "ended")).stopped
        await backend.forget("30.1.0")
        await started(backend, worker("32.1.0", "r0", "exit 4", (0, 1)))
        assert (await until(backend, "32.1.0", "ended")).status == 4, "its GPUs are there again"
        await backend.forget("32.1.0")
    finally:
        await backend.close()


async def test_a_worker_whose_machine_comes_back_before_its_device_plugin_is_lost_and_says_why(
    nodes: RealNodes, tmp_path: Path
) -> None:
    backend = await connect(nodes, tmp_path)
    try:
        await backend.start(worker("40.1.0", "r0", "echo ready; sleep 1000", (0, 1)))
        await log_of(backend, "40.1.0", "ready")
        await until_noted(nodes)
        nodes.kill("r0")
        nodes.keep_plugin_away("r0")
        nodes.run_again("r0", PRODUCTS["r0"])
        state = await until(backend, "40.1.0", "ended")
        assert (state.status, state.stopped, state.is_nodes_fault) == (137, False, True), state
        assert state.why.startswith("Kubernetes says OutOfnvidia.com/gpu"), state
        await backend.forget("40.1.0")
        nodes.begin_plugin("r0")
        await started(backend, worker("41.1.0", "r0", "exit 5", (0, 1)))
        assert (await until(backend, "41.1.0", "ended")).status == 5, "its GPUs are there again"
        await backend.forget("41.1.0")
    finally:
        await backend.close()


# From here on there is one node.
async def test_of_a_node_that_dies_nothing_is_known_and_its_gpus_stay_taken(
    nodes: RealNodes, tmp_path: Path
) -> None:
    backend = await connect(nodes, tmp_path)
    try:
        await backend.start(worker("20.1.0", "r1", "sleep 1000"))
        await until(backend, "20.1.0", "running")
        nodes.kill("r1")
        state = await until(backend, "20.1.0", "unknown")
        assert state.holds_gpus
        up = {node.name: (node.up, node.dead) for node in await backend.nodes()}
        assert up == {"r0": (True, False), "r1": (False, False)}
    finally:
        await backend.close()


# The last one: afterwards there are no nodes.
async def test_nodes_that_are_closed_leave_nothing_of_a_worker_that_runs(
    nodes: RealNodes, tmp_path: Path
) -> None:
    backend = await connect(nodes, tmp_path)
    try:
        await backend.start(worker("9.1.0", "r0", "echo ready; sleep 1000"))
        await log_of(backend, "9.1.0", "ready")
        assert nodes.left()
    finally:
        await backend.close()
    nodes.close()
    assert nodes.left() == []
