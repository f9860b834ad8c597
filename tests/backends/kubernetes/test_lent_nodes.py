"""Nodes of lenders say whose they are by a taint and an annotation, beside what others have put there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import backend_in_memory, until
from tests.backends.kubernetes.memory_server import MemoryServer

from stretto.backends.kubernetes import lent_nodes, manifests
from stretto.backends.protocol import BackendUnreachable, HandsOver, NotNow, WorkerStart

pytestmark = pytest.mark.sockets

WORKER = WorkerStart("7.1.0", "7", "k0", (0,), ("python", "train.py"), {})
TAINT = {"key": manifests.ON_LOAN, "effect": "NoSchedule"}
OTHER = {
    "key": "example.org/owner",
    "value": "vision",
    "effect": "NoExecute",
    "timeAdded": "2026-11-20T10:00:00Z",
}


def of_node(server: MemoryServer, name: str = "k0") -> tuple[list[dict[str, Any]], str]:
    """Its taints, and the lender that it is with."""
    item = server.objects["nodes"]["", name]
    annotations = item["metadata"].get("annotations") or {}
    return item["spec"].get("taints") or [], annotations.get(manifests.LENDER, "")


def test_a_node_on_loan_has_a_taint_that_our_pods_tolerate_and_others_do_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with backend_in_memory(tmp_path) as (server, backend):
            assert isinstance(backend, HandsOver)
            server.change("nodes", "k0", {"spec": {"taints": [OTHER]}})
            await backend.hand_over(["k0"], "inference")
            assert of_node(server) == ([OTHER], "inference")
            with pytest.raises(NotNow, match="k0 is with its lender inference"):
                await backend.start(WORKER)
            assert server.of("POST", "pods") == []
            await backend.hand_over(["k0"], "")
            assert of_node(server) == ([OTHER, TAINT], "")
            await backend.start(WORKER)
            (created,) = server.of("POST", "pods")
            tolerated = [each["key"] for each in created.body["spec"]["tolerations"]]
            assert manifests.ON_LOAN in tolerated
            assert OTHER["key"] not in tolerated

    asyncio.run(story())


def test_the_taint_of_a_loan_does_not_shut_a_node_for_us(tmp_path: Path) -> None:
    async def story() -> None:
        async with backend_in_memory(tmp_path) as (_, backend):
            await backend.hand_over(["k0"], "")
            (node,) = [each for each in await backend.nodes() if each.name == "k0"]
            assert (node.up, node.shut) == (True, "")

    asyncio.run(story())


@pytest.mark.parametrize("latest", ["inference", ""])
def test_a_node_of_no_lender_has_no_mark_of_ours_and_keeps_those_of_others(
    latest: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with backend_in_memory(tmp_path) as (server, backend):
            server.change("nodes", "k0", {"spec": {"taints": [OTHER]}})
            for to in ("inference", latest, None, None):
                await backend.hand_over(["k0"], to)
            assert of_node(server) == ([OTHER], "")
            await backend.start(WORKER)

    asyncio.run(story())


def test_what_was_handed_over_before_is_not_written_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with backend_in_memory(tmp_path) as (server, backend):
            for to in ("inference", "inference", "", ""):
                await backend.hand_over(["k0", "k1"], to)
            assert len(server.of("PATCH", "nodes")) == 4

    asyncio.run(story())


def test_a_node_that_somebody_else_is_changing_keeps_both_changes(tmp_path: Path) -> None:
    async def story() -> None:
        async with backend_in_memory(tmp_path) as (server, backend):
            server.fail("PATCH", "nodes", 409)
            await backend.hand_over(["k0"], "")
            assert of_node(server)[0] == [TAINT]
            assert len(server.of("GET", "nodes")) >= 2

    asyncio.run(story())


@pytest.mark.parametrize(("code", "why"), [(403, "lenders.nodes"), (500, "k0 cannot change hands")])
def test_a_refusal_is_said_and_nothing_has_changed(code: int, why: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with backend_in_memory(tmp_path) as (server, backend):
            server.fail("PATCH", "nodes", code)
            with pytest.raises(BackendUnreachable, match=why):
                await backend.hand_over(["k0"], "inference")
            assert of_node(server) == ([], "")
            await backend.hand_over(["k0"], "inference")
            assert of_node(server) == ([], "inference")

    asyncio.run(story())


def test_a_node_that_is_gone_is_nobodys_to_give(tmp_path: Path) -> None:
    async def story() -> None:
        async with backend_in_memory(tmp_path) as (server, backend):
            server.remove("nodes", "k1")
            await backend.hand_over(["k0", "k1"], "inference")
            assert of_node(server) == ([], "inference")
            await until(lambda: ("", "k1") not in backend.node_informer.items)

    asyncio.run(story())


def test_a_patch_names_the_version_that_it_was_made_for() -> None:
    node = {"metadata": {"resourceVersion": "41"}, "spec": {"taints": [TAINT, OTHER]}}
    assert lent_nodes.patch_for(node, "inference") == {
        "metadata": {"resourceVersion": "41", "annotations": {manifests.LENDER: "inference"}},
        "spec": {"taints": [OTHER]},
    }
    assert lent_nodes.patch_for(node, "") is None
