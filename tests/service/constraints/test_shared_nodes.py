"""Nodes that belong to others too: whatever the policy, it keeps within what they leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.play import Deciding
from tests.service.scene import Scene
from tests.service.scheduling.test_closed_nodes import ask, snapshot_of

from stretto.model import Allocation, Cluster, GpuType, JobId, Node, NodeId, no_placement
from stretto.policies.registry import policy_names
from stretto.scheduler.constraints.shared_nodes import less_foreign_use
from stretto.service.forecast.fork import fork_of
from stretto.service.forecast.simulate import play
from stretto.service.state import events as happened


def see(scene: Scene, node: str, others: int = 0, shut: str = "") -> None:
    scene.tell(happened.NodeSeen(node, "a100", scene.gpus, others=others, shut=shut))


def held_on(scene: Scene, node: int) -> int:
    placement = scene.state.placement
    assert placement is not None
    return int(placement.busy[node]).bit_count()


@pytest.mark.parametrize("policy", policy_names())
def test_no_policy_gives_gpus_that_others_hold(policy: str) -> None:
    scene = Scene(nodes=2)
    see(scene, "n0", others=3)
    see(scene, "n1", others=4)
    for name in ("1", "2", "3"):
        scene.submit(name, gpus=1, elastic=(1, 8))
    for _ in range(4):
        scene.now_s += 400.0
        ask(scene, policy)
        scene.reconcile()
        assert held_on(scene, 0) <= 1
        assert held_on(scene, 1) == 0
    assert len(scene.running) == 1
    see(scene, "n1", others=1)
    for _ in range(4):
        scene.now_s += 400.0
        ask(scene, policy)
        scene.reconcile()
        assert held_on(scene, 1) <= 3
    assert held_on(scene, 1) > 0


def test_who_trains_keeps_its_gpus_when_others_take_the_rest() -> None:
    scene = Scene(nodes=1)
    scene.submit("1", gpus=2)
    scene.give(_1={"n0": 0b1010})
    scene.reconcile()
    see(scene, "n0", others=2)
    ask(scene, "fifo")
    scene.reconcile()
    assert scene.state.wanted("1") == Allocation(0, (0,), (0b1010,))
    assert not scene.asked_to_stop


@pytest.mark.parametrize("policy", policy_names())
def test_a_job_that_waits_for_gpus_of_others_is_not_told_that_it_never_starts(policy: str) -> None:
    live = Deciding(policy, nodes=1)
    see(live.scene, "n0", others=3)
    live.submit("1", "", 2)
    why = live.decide().why
    assert live.gpus("1") == 0
    assert why.of(0) > 0, why.of(0)
    assert "there are" not in why.evidence.get(0, "")


def test_who_was_to_start_on_gpus_that_others_took_first_waits_again() -> None:
    scene = Scene(nodes=1)
    scene.submit("1", gpus=1)
    scene.submit("2", gpus=3)
    scene.give(_1={"n0": 0b1})
    scene.reconcile()
    scene.give(_2={"n0": 0b1110})
    see(scene, "n0", others=1)
    assert scene.state.wanted("2") is None
    assert scene.state.jobs["2"].why == "others hold GPUs of node n0"
    assert scene.state.wanted("1") is not None


def test_what_others_hold_is_free_for_no_forecast() -> None:
    scene = Scene(nodes=1)
    see(scene, "n0", others=2)
    scene.submit("1", gpus=2, expected_time_s=100.0)
    scene.submit("2", gpus=2, expected_time_s=100.0)
    fates = play(fork_of(scene.state, 0.0)).fates
    assert fates["1"].start_s == 0.0
    assert fates["2"].start_s >= 100.0


def test_nobody_starts_on_a_node_that_its_cluster_has_shut_and_who_runs_there_goes_on() -> None:
    scene = Scene(nodes=2)
    scene.submit("1", gpus=2)
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    see(scene, "n0", shut="drained by root: new disk")
    scene.submit("2", gpus=4)
    scene.submit("3", gpus=2)
    ask(scene, "fifo")
    scene.reconcile()
    assert not snapshot_of(scene).usable[0]
    assert scene.state.wanted("2") == Allocation(0, (1,), (0b1111,))
    assert scene.state.wanted("3") is None
    assert not scene.asked_to_stop
    see(scene, "n0")
    ask(scene, "fifo")
    assert scene.state.wanted("3") == Allocation(0, (0,), (0b1100,))


def test_a_node_that_is_known_to_be_dead_is_waited_for_by_nobody() -> None:
    scene = Scene(nodes=2)
    scene.submit("1", gpus=2, checkpoint={"dir": ""})
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    scene.silence(0)
    scene.tell(happened.NodeDead("n0", 0.0))
    scene.reconcile()
    ask(scene, "fifo")
    scene.now_s += 600.0
    scene.reconcile()
    assert scene.state.jobs["1"].failures == 0
    assert not scene.state.jobs["1"].alive or scene.state.jobs["1"].alive[0].node == 1


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 255), st.integers(0, 8)), min_size=1, max_size=4))
def test_what_is_read_back_is_what_was_shown(nodes: list[tuple[int, int, int]]) -> None:
    """Each node: GPUs, which of them one job holds, and how many others hold."""
    cluster = Cluster(
        "c",
        (GpuType("a100"),),
        tuple(Node(NodeId(f"n{index}"), "a100", gpus) for index, (gpus, _, _) in enumerate(nodes)),
    )
    mine = [(index, held & ((1 << gpus) - 1)) for index, (gpus, held, _) in enumerate(nodes)]
    mine = [(index, mask) for index, mask in mine if mask]
    before = no_placement(cluster)
    if mine:
        masks = tuple(mask for _, mask in mine)
        highest = tuple(1 << mask.bit_length() - 1 for mask in masks)
        allocation = Allocation(0, tuple(index for index, _ in mine), masks, flexible=highest)
        before = before.changed({JobId("1"): allocation})
    view = less_foreign_use(before, {index: others for index, (_, _, others) in enumerate(nodes) if others})
    shown = view.to_shown(before)
    assert {job: one.shape for job, one in shown.items()} == {job: one.shape for job, one in before.items()}
    assert dict(view.from_shown(shown)) == dict(before)
    for one in shown.values():  # what is flexible is among what is held, as it is shown too
        assert [own & flexible for own, flexible in zip(one.masks, one.flexible, strict=True)] == [
            *one.flexible
        ]
    left = {
        JobId("2"): Allocation(0, (node,), (((1 << cluster.nodes[node].gpus) - 1) & mask,))
        for node, mask in [
            (node, ((1 << view.shown.nodes[node].gpus) - 1) & ~int(shown.busy[node]))
            for node in range(len(nodes))
            if view.visible.get(node, 1)
        ][:1]
        if mask
    }
    after = view.from_shown(shown.changed(left))  # raises where a GPU would be held twice
    for job, one in left.items():
        assert after[job].shape == one.shape


def test_why_a_node_is_cordoned_outlives_its_being_down() -> None:
    scene = Scene(nodes=1)
    scene.tell(happened.NodeCordoned("n0", closed=True, why="new disk"))
    node = scene.state.nodes[0]
    scene.tell(happened.NodeLost("n0", "no answer"))
    assert node.why == "no answer"
    see(scene, "n0", shut="drained by root")
    assert node.why == "new disk"
    scene.tell(happened.NodeCordoned("n0", closed=False))
    assert (node.why, node.closed) == ("drained by root", True)
