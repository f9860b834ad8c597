"""Nodes that a cluster's autoscaler may add: slots for them, and placeholders by which it is asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, kubeconfig, until
from tests.backends.kubernetes.memory_server import MemoryServer, a_node
from tests.backends.kubernetes.test_faults import WORKER, bind, end, name_of, state_of, until_phase

from stretto.backends.kubernetes import autoscaling, manifests
from stretto.backends.kubernetes import backend as backends
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.node_pools import NodeSlots, pools_of
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.kubernetes.placeholders import still_missing
from stretto.backends.protocol import (
    Autoscales,
    BackendUnreachable,
    NodeRequest,
    NodeState,
    NotNow,
    WorkerState,
)
from stretto.model import InputError

ONE = NodeRequest("t4", 1, 2, cpus=3.0, memory_gb=8.0)
T4 = "Tesla-T4"


@asynccontextmanager
async def growing(
    folder: Path, server: MemoryServer, addresses: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[KubernetesBackend]:
    """The backend over a server whose cluster may have three nodes of two T4 each."""
    said = {"image": "i", "grow": ("t4:2:3",), **options}
    config = KubernetesOptions(kubeconfig=kubeconfig(folder, server.url), **said)
    backend = await open_kubernetes(config, "s1", folder / "state", addresses)
    try:
        yield backend
    finally:
        await backend.close()


def placeholders(server: MemoryServer) -> list[Any]:
    """Those that are there, in the order of their names."""
    pods = sorted(server.objects.get("pods", {}).items())
    return [pod for _, pod in pods if manifests.PLACEHOLDER in pod["metadata"].get("labels", {})]


async def shown(backend: KubernetesBackend) -> dict[str, tuple[bool, bool]]:
    """By name, whether a node is up, and whether it comes and goes."""
    return {node.name: (node.up, node.comes) for node in await backend.nodes()}


# ── what people say ───────────────────────────────────────────────────────────────────────────────


def test_a_pool_is_its_type_its_size_its_number_and_perhaps_its_labels() -> None:
    plain, labelled = pools_of(["no", "H100:8:2", "t4:1:40:pool=small,zone=a"])
    assert (plain.slots, plain.labels) == (["h100x8-1", "h100x8-2"], {})
    assert (labelled.most, labelled.labels) == (40, {"pool": "small", "zone": "a"})


@pytest.mark.parametrize("word", ["h100", "h100:8", "h100:0:4", "h100:8:0", "h100:8:4:pool", "h100:8:4:=x"])
def test_what_names_no_pool_is_refused_in_a_line(word: str) -> None:
    with pytest.raises(InputError, match=r"--grow .*: expected TYPE:GPUS:NODES like h100:8:4"):
        KubernetesOptions(grow=(word,))
    with pytest.raises(InputError, match="h100 with 8 GPUs was named before"):
        pools_of(["h100:8:4", "h100:8:2"])


# ── which machine is which ────────────────────────────────────────────────────────────────────────


def machine(name: str, address: str = "", gpus: int = 8) -> NodeState:
    return NodeState(name, "h100", gpus, address=address)


def filled(slots: NodeSlots, *machines: NodeState) -> list[str]:
    """What machines are called, after they have been shown."""
    slots.fill(
        {each.name: each for each in machines}, {each.name: {"pool": each.name[0]} for each in machines}
    )
    return [slots.name_of(each.name) for each in machines]


def test_a_machine_takes_the_first_slot_that_is_free_and_keeps_it_as_long_as_it_is_there() -> None:
    slots = NodeSlots(pools_of(["h100:8:2"]))
    a, b, c = machine("a"), machine("b"), machine("c")
    assert filled(slots, b) == ["h100x8-1"]
    assert filled(slots, a, b) == ["h100x8-2", "h100x8-1"]
    assert filled(slots, a, b, c) == ["h100x8-2", "h100x8-1", "c"], "one more than there may be"
    assert filled(slots, a, c) == ["h100x8-2", "h100x8-1"], "b is gone"
    assert slots.machine_of("h100x8-1") == "c"
    assert [node.name for node in slots.empty({"h100x8-2"})] == ["h100x8-1"]


def test_machines_of_another_size_or_label_keep_their_own_names() -> None:
    slots = NodeSlots(pools_of(["h100:8:4:pool=g"]))
    machines = machine("g1"), machine("fixed"), machine("g2", gpus=4)
    assert filled(slots, *machines) == ["h100x8-1", "fixed", "g2"]


def test_after_a_restart_machines_are_what_their_pods_or_addresses_say() -> None:
    slots = NodeSlots(pools_of(["h100:8:3"]), {"h100x8-3": "10.0.0.7"})
    slots.adopt("h100x8-2", "b")
    slots.adopt("d", "d")  # before it could be said that nodes come
    machines = machine("a"), machine("b"), machine("c", "10.0.0.7"), machine("d")
    assert filled(slots, *machines) == ["h100x8-1", "h100x8-2", "h100x8-3", "d"]


# ── what is missing ───────────────────────────────────────────────────────────────────────────────


def running(name: str, node: str, gpus: int) -> tuple[WorkerState, bool]:
    return WorkerState(name, node, tuple(range(gpus)), "running"), False


def test_missing_is_what_has_neither_a_pod_nor_room_on_a_node() -> None:
    node = NodeState("x", "t4", 4)
    four = NodeRequest("t4", 4, 1)
    assert still_missing([four], [node], []) == []
    assert still_missing([four], [replace(node, others=3)], []) == [replace(four, workers=1)] * 3
    assert still_missing([four], [replace(node, up=False)], []) == [replace(four, workers=1)] * 4
    assert still_missing([four], [replace(node, shut="cordoned")], []) == [replace(four, workers=1)] * 4
    held = [running(f"7.1.{index}", "x", 1) for index in range(4)]
    assert still_missing([four], [node], held) == [], "they run"
    ending = [(worker, True) for worker, _ in held]
    assert len(still_missing([four], [node], ending)) == 4, "they hold GPUs, and nobody wishes for them"
    assert still_missing([NodeRequest("t4", 1, 3), NodeRequest("t4", 2, 1)], [node], []) == [
        NodeRequest("t4", 1, 1)
    ]
    assert still_missing([NodeRequest("h100", 1, 1)], [node], []) == [NodeRequest("h100", 1, 1)]


# ── asking ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.sockets
async def test_an_autoscaler_sees_placeholders_until_their_node_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)
    async with backend_in_memory(tmp_path) as (server, _), growing(tmp_path, server) as backend:
        assert isinstance(backend, Autoscales)
        names = ["t4x2-1", "t4x2-2", "t4x2-3"]
        assert await shown(backend) == {
            "k0": (True, False), "k1": (True, False), **dict.fromkeys(names, (False, True))
        }  # fmt: skip
        await backend.wish([replace(ONE, workers=2)])
        first, second = placeholders(server)
        assert first["metadata"]["name"] != second["metadata"]["name"]
        (container,) = first["spec"]["containers"]
        assert container["resources"]["requests"] == {
            "nvidia.com/gpu": "2", "cpu": "3000m", "memory": "8192Mi"
        }  # fmt: skip
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in first["spec"][
            "tolerations"
        ]
        await backend.wish([replace(ONE, workers=2)])
        assert placeholders(server) == [first, second], "the same wish changes nothing"

        server.put("nodes", a_node("gke-abc", gpus=0, product=T4))  # its device plug-in is late
        server.change("nodes", "gke-abc", {"status": {"allocatable": {"nvidia.com/gpu": "2"}}})
        await until(lambda: len(placeholders(server)) == 1)
        assert (await shown(backend))["t4x2-1"] == (True, True)
        await backend.wish([])
        assert placeholders(server) == []


@pytest.mark.sockets
async def test_placeholders_name_the_labels_of_the_nodes_that_suit_them(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _):
        async with growing(tmp_path, server, grow=("t4:2:3:pool=small",)) as backend:
            await backend.wish([ONE])
            assert [each["spec"]["nodeSelector"] for each in placeholders(server)] == [{"pool": "small"}]
            await backend.wish([])
        async with growing(
            tmp_path, server, grow=("h100:2:8",), placeholder_priority_class="stretto-placeholder"
        ) as backend:
            await backend.wish([NodeRequest("h100", 5, 1)])
            only = placeholders(server)[0]["spec"]
            assert only["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
            assert only["priorityClassName"] == "stretto-placeholder"
            assert len(placeholders(server)) == 1, "four have room on k0 and k1"


@pytest.mark.sockets
async def test_a_placeholder_that_is_refused_is_said_and_asked_for_again(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, _), growing(tmp_path, server) as backend:
        server.fail("POST", "pods", 403, "exceeded quota: gpus", times=1)
        with pytest.raises(BackendUnreachable, match="exceeded quota: gpus"):
            await backend.wish([ONE])
        await until(lambda: len(placeholders(server)) == 1)


@pytest.mark.sockets
async def test_placeholders_of_an_earlier_service_go_once_it_is_known_that_nothing_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LOOK_S", 0.02)
    async with backend_in_memory(tmp_path) as (server, _):
        async with growing(tmp_path, server) as backend:
            await backend.wish([ONE])
        async with growing(tmp_path, server) as backend:
            await backend.wish([ONE])
            assert len(placeholders(server)) == 1, "the next service goes on with it"
        monkeypatch.setattr(autoscaling, "ADOPT_S", 0.1)
        async with growing(tmp_path, server) as backend:
            await until(lambda: placeholders(server) == [])
            assert await backend.workers() == []


# ── workers on nodes that come and go ─────────────────────────────────────────────────────────────


@pytest.mark.sockets
async def test_a_worker_of_a_slot_runs_on_its_machine_and_its_end_frees_the_slot(tmp_path: Path) -> None:
    worker = replace(WORKER, node="t4x2-1")
    async with backend_in_memory(tmp_path) as (server, _):
        async with growing(tmp_path, server) as backend:
            with pytest.raises(NotNow, match="node t4x2-1 is not there any more"):
                await backend.start(worker)
            server.put("nodes", a_node("gke-abc", gpus=2, product=T4))
            await until(lambda: ("", "gke-abc") in backend.node_informer.items)
            assert (await shown(backend))["t4x2-1"] == (True, True)
            await backend.start(worker)
            (term,) = server.objects["pods"]["jobs", name_of(worker)]["spec"]["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]["nodeSelectorTerms"]
            assert term["matchFields"][0]["values"] == ["gke-abc"]
            bind(server, replace(worker, node="gke-abc"))
            assert (await until_phase(backend, "running")).node == "t4x2-1"

        async with growing(tmp_path, server) as backend:  # another service finds it by its pod
            assert (await until_phase(backend, "running")).node == "t4x2-1"
            with pytest.raises(NotNow, match="GPU 0 of t4x2-1 is in use"):
                await backend.start(replace(worker, id="8.1.0", job="8"))
            server.put("nodes", a_node("gke-abd", gpus=2, product=T4))
            server.remove("nodes", "gke-abc")
            assert (await until_phase(backend, "ended")).why == "its node died"
            await until(lambda: ("", "gke-abd") in backend.node_informer.items)
            names = await shown(backend)
            assert names["t4x2-1"] != names["t4x2-2"], "one of them is up, the other to come"
            end(server, 137, replace(worker, node="gke-abc"))
            await backend.forget(worker.id)
            assert await state_of(backend, worker) is None
            assert "gke-abc" not in await shown(backend)
