"""Nodes of ours from what Ray says, without a cluster."""

from typing import Any

import pytest

from stretto.backends.ray.nodes import RayNode, held_by_others, held_by_us, nodes_in
from stretto.backends.ray.reservation import GB, bundle_of

pytestmark = [pytest.mark.ray, pytest.mark.large]


def a_node(node_id: str, address: str, host: str = "", **more: Any) -> dict[str, Any]:
    resources = {"GPU": 4.0, "CPU": 8.0, "memory": 2.0 * GB}
    plain = {"alive": True, "port": 1, "why": "", "resources": resources, "labels": {}}
    return {"id": node_id, "address": address, "host": host or address, **plain, **more}


def seen(*nodes: dict[str, Any], free: float = 4.0, draining: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"nodes": list(nodes), "free": {each["id"]: free for each in nodes}, "draining": list(draining)}


def named(*nodes: dict[str, Any], names: dict[str, str] | None = None) -> dict[str, str]:
    return {node.name: node.id for node in nodes_in(seen(*nodes), names or {})}


def test_a_node_is_called_what_its_host_is_called_unless_another_is_too() -> None:
    assert named(a_node("1", "10.0.0.1", "a"), a_node("2", "10.0.0.2", "b")) == {"a": "1", "b": "2"}
    assert named(a_node("1", "10.0.0.1", "a"), a_node("2", "10.0.0.2", "a")) == {
        "10.0.0.1": "1",
        "10.0.0.2": "2",
    }


def test_a_node_keeps_its_name_when_another_comes_that_is_called_so() -> None:
    both = a_node("1", "10.0.0.1", "a"), a_node("2", "10.0.0.2", "a")
    assert named(*both, names={"1": "a"}) == {"a": "1", "10.0.0.2": "2"}


def test_of_a_machine_that_is_back_only_the_present_life_counts() -> None:
    dead = a_node("1", "10.0.0.1", "a", alive=False, resources={}, why="it crashed")
    assert named(dead, a_node("2", "10.0.0.1", "a")) == {"a": "2"}
    (node,) = nodes_in(seen(dead), {"1": "a"})
    assert (node.name, node.alive, node.why) == ("a", False, "it crashed")


def test_a_head_without_gpus_is_no_node() -> None:
    assert named(a_node("1", "10.0.0.1", resources={"CPU": 4.0})) == {}


@pytest.mark.parametrize(
    ("labels", "resources", "gpu_type"),
    [
        pytest.param({"ray.io/accelerator-type": "A100"}, {"accelerator_type:T4": 1.0}, "a100", id="label"),
        pytest.param({}, {"accelerator_type:T4": 1.0}, "t4", id="resource"),
        pytest.param({}, {}, "gpu", id="neither"),
    ],
)
def test_the_type_of_gpus_is_that_of(
    labels: dict[str, str], resources: dict[str, float], gpu_type: str
) -> None:
    raw = a_node("1", "10.0.0.1", labels=labels, resources={"GPU": 1.0, **resources})
    (node,) = nodes_in(seen(raw, draining=("1",)), {})
    assert (node.gpu_type, node.gpus, node.draining) == (gpu_type, 1, True)


@pytest.mark.parametrize(
    ("free", "ours", "others"),
    [
        pytest.param(4.0, 0.0, 0, id="all free"),
        pytest.param(1.0, 2.0, 1, id="one is another's"),
        pytest.param(3.5, 0.0, 1, id="a half counts as one"),
        pytest.param(3.0, 2.0, 0, id="ours are held before Ray counts them"),
        pytest.param(0.0, 4.0, 0, id="all ours"),
    ],
)
def test_gpus_in_use_that_are_not_ours_are_those_of_others(free: float, ours: float, others: int) -> None:
    node = RayNode("1", "a", "10.0.0.1", 1, 4, "gpu", 8.0, 2.0, alive=True, free_gpus=free)
    groups = [
        {"name": "stretto-x/j.1.0", "node": "1", "gpus": ours},
        {"name": "stretto-x/k.1.0", "node": "2", "gpus": 4.0},
        {"name": "stretto-y/j.1.0", "node": "1", "gpus": 1.0},
    ]
    assert held_by_others(node, held_by_us(node, groups, "stretto-x/")) == others


def test_a_worker_asks_for_what_it_is_to_have_and_never_for_nothing() -> None:
    assert bundle_of(2, 3.0, 4.0, "10.0.0.1") == {"GPU": 2.0, "CPU": 3.0, "memory": 4.0 * GB}
    assert bundle_of(1, 0.0, 0.0, "10.0.0.1") == {"GPU": 1.0}
    assert bundle_of(0, 0.0, 0.0, "10.0.0.1") == {"node:10.0.0.1": 0.001}
