"""Clusters whose nodes come when they are asked for: what is asked, which machine is which; a real one."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.backends.ray.growing import MOST, GrowingCluster

from stretto.backends.ray.autoscaling import NodeSlots, NodeType, asked_for, types_in, types_said
from stretto.backends.ray.nodes import RayNode
from stretto.client import Client
from stretto.demo.own_service import OwnService, until
from stretto.errors import InputError

pytestmark = [pytest.mark.ray, pytest.mark.large]

SMALL = NodeType("small", "l4", 2, 3, cpus=4, group="small", resources={"accelerator_type:L4": 0.001})


def machine(address: str, **more: Any) -> RayNode:
    given: dict[str, Any] = {"gpus": 2, "gpu_type": "l4", "alive": True, "free_gpus": 2.0} | more
    return RayNode(f"id-{address}", "", address, port=1, cpus=4.0, memory_gb=8.0, **given)


def test_types_are_read_from_the_configuration_of_an_autoscaler() -> None:
    types = types_in(
        {
            "max_workers": 5,
            "head_node_type": "head",
            "available_node_types": {
                "head": {"resources": {"CPU": 8, "GPU": 1}, "max_workers": 0},
                "cpu": {"resources": {"CPU": 8}, "max_workers": 9},
                "small": {
                    "resources": {"CPU": 4, "GPU": 2, "accelerator_type:L4": 1},
                    "labels": {"ray.io/accelerator-type": "L4"},
                    "max_workers": 3,
                },
                "large": {"resources": {"CPU": 64, "GPU": 8, "memory": 64 << 30}, "max_workers": 50},
            },
        }
    )
    assert [(one.name, one.gpu_type, one.gpus, one.cpus, one.memory_gb, one.most) for one in types] == [
        ("large", "gpu", 8, 64.0, 64.0, 5),
        ("small", "l4", 2, 4.0, 0.0, 3),
    ]
    assert types[1].resources == {"accelerator_type:L4": 0.001}
    assert types[1].labels == {"ray.io/accelerator-type": "L4"}
    assert types_in({}) == []


def test_types_may_be_said() -> None:
    (one,) = types_said(["A100:8:4"])
    assert (one.gpu_type, one.gpus, one.places) == ("a100", 8, [f"a100x8-{n}" for n in (1, 2, 3, 4)])
    assert one.labels == {"ray.io/accelerator-type": "A100"}


@pytest.mark.parametrize("word", ["a100", "a100:8", "a100:0:4", "a100:8:0", "a100:x:4", ":8:4", "no"])
def test_a_wrong_word_is_named(word: str) -> None:
    with pytest.raises(InputError, match=f"--grow {word}: expected"):
        types_said([word])
    with pytest.raises(InputError, match="named before"):
        types_said(["a100:8:4", "a100:8:2"])


def test_what_others_use_is_asked_for_with_what_is_wished() -> None:
    nodes = [(machine("a"), 2), (machine("b"), 0), (machine("c", gpu_type="t4"), 2)]
    wish = {"gpu_type": "l4", "workers": 2, "gpus": 1, "cpus": 2.0, "memory_gb": 4.0}
    bundles, labels = asked_for([wish], nodes, [SMALL])
    one = {"GPU": 1.0, "CPU": 2.0, "accelerator_type:L4": 0.001}
    assert bundles == [{"GPU": 2.0, "accelerator_type:L4": 0.001}, one, one]
    assert labels == [{}, {}, {}]
    assert asked_for([], nodes, [SMALL]) == ([], []), "what idles may go"


def test_machines_take_the_first_free_place_and_keep_it() -> None:
    places = NodeSlots((SMALL,))
    assert places.names_for([machine("b"), machine("a")], {}) == {"id-a": "small-1", "id-b": "small-2"}
    last = {"small-1": ("a", True), "small-2": ("b", False)}
    assert places.names_for([machine("c")], last) == {"id-c": "small-1"}
    assert places.names_for([machine("b")], last) == {"id-b": "small-2"}, "a raylet that was begun anew"
    full = dict.fromkeys(SMALL.places, ("x", False))
    assert places.names_for([machine("d")], full) == {}, "more than there should be"
    others = [machine("a", gpus=4), machine("b", is_head=True), machine("c", group="large")]
    assert places.names_for(others, {}) == {}


def test_a_place_is_kept_for_what_was_in_it_before_the_gateway_began() -> None:
    known = {"small-1": "a", "small-2": "b"}
    places = NodeSlots((SMALL,), known, kept_s=60.0)
    assert places.names_for([machine("c"), machine("b")], {}) == {"id-b": "small-2", "id-c": "small-3"}
    shown = {each["name"]: each["dead"] for each in places.empty({})}
    assert shown == {"small-1": False, "small-2": False, "small-3": True}
    later = NodeSlots((SMALL,), known, kept_s=60.0, began_s=time.monotonic() - 61.0)
    assert later.names_for([machine("c")], {}) == {"id-c": "small-1"}
    assert all(each["dead"] and each["comes"] for each in later.empty({}))


# ── a real one ────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def growing(v2: bool) -> Iterator[GrowingCluster]:
    """A cluster of a head; nothing of it is left afterwards."""
    cluster = GrowingCluster(v2)
    try:
        cluster.begin()
        yield cluster
    finally:
        cluster.end()


def a_job(gpus: int, command: str, gpu_type: str = "l4", **more: Any) -> str:
    accelerators = {gpu_type: gpus}
    return json.dumps({"run": command, "resources": {"accelerators": accelerators}, **more})


def up(client: Client) -> list[str]:
    """Names of the nodes that are there."""
    return sorted(node["name"] for node in client.nodes() if node["up"])


def wait(found: Any, what: str) -> Any:
    """What comes within a minute or two: machines are started."""
    return until(found, 120.0, what)


@pytest.mark.long
@pytest.mark.parametrize("v2", [pytest.param(False, id="v1"), pytest.param(True, id="v2")])
def test_nodes_come_for_jobs_that_wait_and_go_when_nobody_needs_them(tmp_path: Path, v2: bool) -> None:
    pytest.importorskip("ray")
    with growing(v2) as cluster:
        service = OwnService(
            tmp_path,
            ["--backend", "ray", "--address", cluster.address, "--policy", "sia"],
            ("-m", "stretto.cli.app"),
        )
        service.begin()
        try:
            with service.client() as client:
                assert [(one["name"], one["up"]) for one in client.nodes()] == [
                    ("small-1", False),
                    ("small-2", False),
                ]
                with pytest.raises(Exception, match=r"expected a GPU type"):
                    client.submit(a_job(1, "true", "h100"))
                held = client.submit(a_job(2, "true"))["id"]
                client.change(held, "hold")
                job = client.submit(a_job(2, "sleep 5; echo done on $STRETTO_NODE"))["id"]
                reason = wait(
                    lambda: (found := client.describe(job))["reason"] == "NODES_TO_COME" and found, "a reason"
                )
                assert "the cluster is asked for 2 x l4" in reason["evidence"]
                assert "the cluster is asked for 2 x l4" in client.explain(job)["headline"]
                wait(lambda: up(client) == ["small-1"], "a node")
                wait(lambda: client.describe(job)["state"] == "COMPLETED", "the job ends")
                assert "done on small-1" in "".join(client.log(job, 0, 1))
                assert client.describe(held)["reason"] == "HELD"
                wait(lambda: not up(client), "the node goes by itself")
                assert len(cluster.started()) == 1, "nobody was asked for more than the job needs"

                # Two at once, which one node is too small for; places are used again.
                client.change(held, "cancel")
                jobs = [client.submit(a_job(each, "sleep 600"))["id"] for each in (2, 1)]
                wait(lambda: up(client) == ["small-1", "small-2"], "two nodes")
                wait(lambda: {client.describe(each)["state"] for each in jobs} == {"RUNNING"}, "both run")
                third = client.submit(a_job(2, "true"))["id"]
                wait(lambda: "there are no more" in client.describe(third)["evidence"], "a reason")
                for each in (third, *jobs):
                    client.change(each, "cancel")
                wait(lambda: not up(client), "both go")
                assert len(client.nodes()) == MOST, "no machine has left a name behind"
                assert len(cluster.started()) == 1 + MOST
        finally:
            service.end()
        assert not cluster.ask("left")
        assert not cluster.workers_left()
