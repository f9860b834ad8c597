"""Tainted nodes take jobs that tolerate their taints, and no others, under every policy."""

from typing import Any

import pytest
from tests.service.play import Deciding

from stretto.model import Why
from stretto.policies.registry import policy_names
from stretto.service.state import events as happened
from stretto.service.state.status import status_of

POLICIES = policy_names()
TAINT = "team=a:NoSchedule"
TOLERANT: dict[str, Any] = {"kubernetes": {"tolerations": [{"key": "team", "operator": "Exists"}]}}


def taint(live: Deciding, *nodes: str, taints: tuple[str, ...] = (TAINT,)) -> None:
    for name in nodes:
        node = live.scene.state.nodes[live.scene.state.node_index[name]]
        shut = f"its taint {taints[0]} keeps pods away" if taints else ""
        seen = happened.NodeSeen(name, node.gpu_type, node.gpus, shut=shut, taints=taints)
        live.scene.tell(seen)


def nodes_of(live: Deciding, job: str) -> set[str]:
    state = live.scene.state
    held = state.wanted(job)
    return {state.nodes[node].name for node in held.nodes} if held is not None else set()


def settle(live: Deciding, times: int = 6) -> None:
    """Some policies profile a job first, on fewer GPUs: its workers must have begun."""
    for _ in range(times):
        live.decide()
        live.scene.reconcile()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_tainted_node_is_for_those_that_tolerate_it(policy: str) -> None:
    live = Deciding(policy)
    taint(live, "n1")
    for number in range(8):
        live.submit(f"{number + 1}", "", 1)
    settle(live)
    assert live.held("") == 4, "the others have one node"
    live.submit("9", "", 4, **TOLERANT)
    settle(live)
    assert nodes_of(live, "9") == {"n1"}
    assert set().union(*(nodes_of(live, f"{number + 1}") for number in range(8))) == {"n0"}
    live.end("9")
    settle(live)
    assert live.held("") == 4


@pytest.mark.parametrize("policy", ["fifo", "sia", "stretto"])
def test_a_job_that_fits_on_tainted_nodes_only_waits_and_says_why(policy: str) -> None:
    live = Deciding(policy)
    taint(live, "n0", "n1")
    live.submit("1", "", 4, **TOLERANT)
    live.submit("2", "", 4)
    settle(live)
    assert (live.gpus("1"), live.gpus("2")) == (4, 0)
    scene = live.scene
    plan = live.decide()
    row = plan.jobs.ids.index("2")
    assert (plan.why.code[row], plan.why.evidence[row]) == (
        int(Why.RESERVED), f"nodes take only jobs that tolerate {TAINT}"
    )  # fmt: skip
    assert status_of(scene.state, scene.state.jobs["1"], scene.now_s).gpus == 4


def test_a_job_stays_where_it_was_before_the_taint_and_what_had_not_begun_does_not_come() -> None:
    live = Deciding("fifo")
    live.submit("1", "", 8)
    settle(live)
    taint(live, "n1")
    settle(live)
    assert nodes_of(live, "1") == {"n0", "n1"}
    live.submit("2", "", 1, **TOLERANT)
    settle(live)
    assert nodes_of(live, "2") == set(), "its GPUs are taken"
    live.end("1")
    settle(live)
    assert nodes_of(live, "2") == {"n1"}
    taint(live, "n1", taints=("other:NoExecute",))
    live.end("2")
    live.submit("3", "", 8, **TOLERANT)
    settle(live)
    assert live.gpus("3") == 0, "another taint than it tolerates"


@pytest.mark.parametrize("policy", ["fifo", "sia", "stretto"])
def test_a_node_that_is_tainted_and_reserved_takes_jobs_that_may_use_both(policy: str) -> None:
    live = Deciding(policy)
    taint(live, "n1")
    live.scene.tell(happened.Reserved("r", 0.0, 9_000.0, "", 0, ("n1",), "bob"))
    submitted: list[tuple[str, dict[str, Any]]] = [
        ("1", {"user": "bob"}), ("2", TOLERANT), ("3", {**TOLERANT, "user": "bob"})
    ]  # fmt: skip
    for name, more in submitted:
        live.submit(name, "", 4, **more)
    settle(live, 10)
    assert nodes_of(live, "3") == {"n1"}
    assert nodes_of(live, "1") | nodes_of(live, "2") == {"n0"}
