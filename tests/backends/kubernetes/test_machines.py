"""Machines are looked at anew only where something has changed, and then at once."""

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory
from tests.backends.kubernetes.memory_server import a_node, a_pod

from stretto.backends.kubernetes.foreign_pods import ForeignPods
from stretto.backends.kubernetes.machines import SILENT, Circumstances, Machines
from stretto.backends.kubernetes.objects import Node, Pod
from stretto.backends.kubernetes.options import KubernetesOptions

FINE = Circumstances(0, False, False)


def a_machine(gpus: int = 8) -> Node:
    return msgspec.convert(a_node("n1", gpus), Node)


def test_the_same_look_is_the_same_value_and_a_changed_machine_another() -> None:
    machines, node = Machines(KubernetesOptions()), a_machine()
    state = machines.state_of(node, FINE)
    assert machines.state_of(node, FINE) is state
    assert machines.state_of(a_machine(4), FINE).gpus == 4
    assert machines.gpus_of(a_machine(2)).count == 2
    machines.forget("n1")
    assert machines.state_of(node, FINE) == state


def test_gpus_that_a_machine_does_not_give_for_now_are_there_still() -> None:
    machines, node = Machines(KubernetesOptions()), a_machine(8)
    assert (machines.gpus_of(node).count, machines.gpus_of(node).withheld) == (8, 0)
    node = a_machine(8)
    node.status.allocatable["nvidia.com/gpu"] = "7"  # one of them is not healthy
    assert machines.gpus_of(node).remark == (
        "it gives 7 of its 8 GPUs: is its device plug-in there, are all of them healthy?"
    )
    assert (machines.gpus_of(node).count, machines.gpus_of(node).withheld) == (8, 1)
    node = a_machine(0)  # its kubelet was started again
    assert (machines.gpus_of(node).count, machines.gpus_of(node).withheld) == (8, 8)
    assert machines.gpus_of(a_machine(0)).remark.startswith("it gives 0 of its 8 GPUs: ")
    assert machines.gpus_of(a_machine(8)) == Machines(KubernetesOptions()).gpus_of(a_machine(8))
    replaced = a_machine(0)
    replaced.metadata.uid = "another machine of that name"
    assert machines.gpus_of(replaced).count == 0


@pytest.mark.parametrize(
    ("now", "up", "dead", "others", "remark"),
    [
        (FINE._replace(others=3), True, False, 3, ""),
        (FINE._replace(is_gone=True), False, True, 0, ""),
        (FINE._replace(is_silent=True), True, False, 0, SILENT),
    ],
)
def test_what_happens_around_a_machine_counts_at_once(
    now: Circumstances, up: bool, dead: bool, others: int, remark: str
) -> None:
    machines, node = Machines(KubernetesOptions()), a_machine()
    before = machines.state_of(node, FINE)
    state = machines.state_of(node, now)
    assert (state.up, state.dead, state.others, state.remark) == (up, dead, others, remark)
    assert machines.state_of(node, FINE) == before


def test_of_a_machine_without_gpus_nothing_is_said_while_the_api_server_is_silent() -> None:
    node = a_machine(0)
    node.metadata.labels.clear()
    state = Machines(KubernetesOptions()).state_of(node, FINE._replace(is_silent=True))
    assert (state.gpus, state.remark) == (0, "")


def test_pods_of_others_are_counted_anew_where_one_comes_or_goes() -> None:
    foreign, pods = ForeignPods(), [msgspec.convert(a_pod(name, "n1", gpus=2), Pod) for name in "ab"]
    for number, pod in enumerate(pods):
        pod.metadata.uid = str(number)
        foreign.put(pod, is_there=True)
        assert foreign.gpus_on("n1", "nvidia.com/gpu") == 2 * (number + 1)
    foreign.put(pods[0], is_there=False)
    assert foreign.gpus_on("n1", "nvidia.com/gpu") == 2
    assert foreign.gpus_on("n1", "amd.com/gpu") == foreign.gpus_on("n2", "nvidia.com/gpu") == 0


@pytest.mark.sockets
async def test_signs_of_life_of_nodes_wake_nobody_and_changes_do(tmp_path: Path) -> None:
    async with backend_in_memory(tmp_path) as (server, backend):
        before = await backend.changes(0)
        for second in range(5):
            conditions = [dict(each) for each in server.objects["nodes"]["", "k0"]["status"]["conditions"]]
            conditions[0]["lastHeartbeatTime"] = f"2026-11-20T10:00:0{second}Z"
            server.change("nodes", "k0", {"status": {"conditions": conditions}})
            version = server.objects["nodes"]["", "k0"]["metadata"]["resourceVersion"]
            while backend.node_informer.items["", "k0"].metadata.resourceVersion != version:
                await asyncio.sleep(0.01)
        assert await backend.changes(before, 0.0) == before
        shown = await backend.nodes()
        server.change("nodes", "k0", {"spec": {"unschedulable": True}})
        assert await backend.changes(before, 30.0) > before
        assert await backend.nodes() == [replace(shown[0], shut="cordoned"), shown[1]]
