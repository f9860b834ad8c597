"""Cordon leaves alone who runs; drain moves away who runs; neither lets anybody begin on a closed node."""

from dataclasses import replace

import pytest
from tests.service.play import Deciding
from tests.service.scene import Scene

from stretto.model import Snapshot, Trigger, Why, actions_between
from stretto.policies.registry import policy_names
from stretto.scheduler.round import decide
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured, Decided

DUE = frozenset({Trigger.CAPACITY, Trigger.ARRIVAL})


def snapshot_of(scene: Scene) -> Snapshot:
    return SnapshotBuilder(frozenset()).observe(scene.state, scene.now_s, DUE)


def decision(scene: Scene, policy: str) -> Decided:
    """What the policy wants, as the service would record it."""
    scheduler = scheduler_of(Configured(policy))
    observer = SnapshotBuilder(scheduler.policy.views)
    snapshot = snapshot_for(scheduler, observer, scene.state, scene.now_s, DUE, scene.memory)
    plan = decide(snapshot, scheduler)
    scene.memory = plan.memory
    return decided(snapshot, plan, scene.state.seq, 0.0)


def ask(scene: Scene, policy: str) -> None:
    """Let the policy decide once."""
    scene.tell(decision(scene, policy))


def cordon(scene: Scene, node: str, closed: bool = True, drain: bool = False) -> None:
    scene.tell(happened.NodeCordoned(node, closed, drain))
    scene.reconcile()


@pytest.mark.parametrize("policy", policy_names())
def test_whoever_runs_on_a_cordoned_node_goes_on_as_it_is_and_nobody_else_comes(policy: str) -> None:
    scene = Scene(nodes=3)
    scene.submit("1", gpus=2, elastic=(1, 8))
    scene.submit("2", gpus=2)
    scene.give(_1={"n0": 0b11}, _2={"n0": 0b100, "n1": 0b1})
    scene.reconcile()
    before = dict(scene.running)
    cordon(scene, "n0")
    for name in ("3", "4", "5"):
        scene.submit(name, gpus=3, elastic=(1, 4))
    for _ in range(5):
        scene.now_s += 400.0
        ask(scene, policy)
        scene.reconcile()
    assert scene.asked_to_stop.isdisjoint(before)
    assert {name for name, one in scene.running.items() if one.node == 0} <= set(before)
    assert scene.names("1") == ["1.1.0", "1.1.1"]
    assert scene.names("2") == ["2.1.0", "2.1.1"]
    assert any(scene.names(name) for name in ("3", "4", "5"))


def test_a_policy_is_not_asked_about_jobs_of_a_cordoned_node_until_it_is_open_again() -> None:
    scene = Scene()
    scene.submit("1")
    scene.submit("2")
    scene.give(_1={"n0": 1}, _2={"n1": 1})
    scene.reconcile()
    cordon(scene, "n0")
    shown = snapshot_of(scene)
    assert (shown.jobs.ids, shown.free.tolist()) == (("2",), [3])
    assert shown.placement["1"].gpus == 1  # type: ignore[index]
    cordon(scene, "n0", closed=False)
    assert snapshot_of(scene).jobs.ids == ("1", "2")


def test_a_job_of_a_cordoned_node_that_fails_begins_elsewhere() -> None:
    scene = Scene()
    scene.submit("1", restart={"max": 1})
    scene.give(_1={"n0": 1})
    scene.reconcile()
    cordon(scene, "n0")
    scene.end("1.1.0", 1)
    scene.reconcile()
    scene.now_s += 20.0
    ask(scene, "fifo")
    scene.reconcile()
    assert [one.node for one in scene.running.values()] == [1]


def test_who_was_to_begin_on_a_node_that_is_cordoned_meanwhile_waits_again() -> None:
    scene = Scene(gpus=1)
    scene.submit("1")
    scene.submit("2")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    scene.give(_1=None, _2={"n0": 1})  # and waits for the first to be gone
    scene.reconcile()
    cordon(scene, "n0")
    scene.end("1.1.0", 143)
    scene.reconcile()
    assert scene.names("2") == []
    assert (scene.standing("2"), scene.state.wanted("2")) == ("PENDING", None)


def grown(scene: Scene, masks: dict[str, int]) -> None:
    """An elastic job that trains on one GPU of n1 and is to have these."""
    scene.submit("1", elastic=(1, 8))
    scene.give(_1={"n1": 1})
    scene.reconcile()
    scene.ready("1.1.0")
    scene.reconcile()
    scene.join("1")
    scene.give(_1=masks)
    scene.reconcile()


@pytest.mark.parametrize(
    ("masks", "left"),
    [
        pytest.param({"n0": 0b11, "n1": 0b1}, {1: 0b1}, id="grows there"),
        pytest.param({"n0": 0b11, "n1": 0b11}, {1: 0b11}, id="grows there and elsewhere"),
        pytest.param({"n0": 0b11}, {1: 0b1}, id="moves there"),
    ],
)
def test_a_job_that_was_growing_onto_a_cordoned_node_goes_on_without_it(
    masks: dict[str, int], left: dict[int, int]
) -> None:
    scene = Scene()
    grown(scene, masks)
    cordon(scene, "n0")
    wanted = scene.state.wanted("1")
    assert wanted is not None
    assert dict(zip(wanted.nodes, wanted.masks, strict=True)) == left
    assert scene.state.jobs["1"].accounting.kind == wanted.kind
    assert "1.1.0" not in scene.asked_to_stop
    assert {name for name, one in scene.running.items() if one.node == 0} <= scene.asked_to_stop


def test_an_attempt_that_ended_on_a_cordoned_node_does_not_begin_there_again() -> None:
    scene = Scene()
    scene.submit("1", gpus=2)
    scene.give(_1={"n0": 0b11})
    scene.reconcile()
    cordon(scene, "n0")
    scene.tell(happened.WorkersStopped("1", ("1.1.0", "1.1.1")))
    for name in ("1.1.0", "1.1.1"):
        scene.end(name, 143)
    scene.reconcile()
    assert scene.names("1") == []
    assert scene.state.wanted("1") is None


def test_a_drained_node_is_left_with_grace_and_its_jobs_go_on_elsewhere() -> None:
    scene = Scene()
    scene.submit("1")
    scene.give(_1={"n0": 1})
    scene.reconcile()
    cordon(scene, "n0")
    assert scene.asked_to_stop == set()
    cordon(scene, "n0", drain=True)
    assert scene.asked_to_stop == {"1.1.0"}
    ask(scene, "fifo")
    scene.reconcile()
    assert scene.names("1") == ["1.1.0"]
    scene.end("1.1.0", 143)
    scene.reconcile()
    assert [(one.id, one.node) for one in scene.running.values()] == [("1.2.0", 1)]
    assert scene.state.jobs["1"].failures == 0


def on_both_nodes(configured: Configured) -> Scene:
    """A job trains on a GPU of each of two nodes."""
    scene = Scene()
    scene.tell(configured)
    scene.submit("1", elastic=(1, 8))
    scene.give(_1={"n0": 1, "n1": 1})
    scene.reconcile()
    scene.ready("1.1.0", "1.1.1")
    scene.reconcile()
    scene.join("1")
    return scene


def test_a_training_with_workers_elsewhere_leaves_a_drained_node_in_place() -> None:
    scene = on_both_nodes(Configured("fifo", drains="in place"))
    cordon(scene, "n0", drain=True)
    wanted = scene.state.wanted("1")
    assert wanted is not None
    assert dict(zip(wanted.nodes, wanted.masks, strict=True)) == {1: 0b1}
    scene.join("1")
    scene.reconcile()
    assert {one.id: one.node for one in scene.running.values()} == {"1.1.1": 1}
    assert "1.1.1" not in scene.asked_to_stop
    assert scene.state.jobs["1"].attempt == 1


def test_logs_of_before_have_it_begin_anew_elsewhere() -> None:
    scene = on_both_nodes(Configured("fifo"))
    cordon(scene, "n0", drain=True)
    assert scene.state.wanted("1") is None
    assert scene.asked_to_stop == {"1.1.0", "1.1.1"}


def test_a_training_that_needs_all_its_gpus_leaves_a_drained_node_as_a_whole() -> None:
    scene = Scene()
    scene.tell(Configured("fifo", drains="in place"))
    scene.submit("1", gpus=2, elastic=(2, 8))
    scene.give(_1={"n0": 1, "n1": 1})
    scene.reconcile()
    scene.ready("1.1.0", "1.1.1")
    scene.reconcile()
    scene.join("1")
    cordon(scene, "n0", drain=True)
    assert scene.state.wanted("1") is None


def test_what_was_decided_before_a_node_was_cordoned_brings_nobody_there() -> None:
    scene = Scene()
    scene.submit("1")
    late = decision(scene, "fifo")
    (node,) = late.actions[0]["after"]["nodes"]
    cordon(scene, node)
    scene.tell(late)
    scene.reconcile()
    assert scene.running == {}


def test_what_is_said_of_a_job_that_nobody_was_asked_about_is_left_out() -> None:
    scene = Scene()
    scene.submit("1")
    scene.submit("2")
    scene.give(_1={"n0": 1}, _2={"n1": 1})
    cordon(scene, "n0")
    scheduler = scheduler_of(Configured("fifo"))
    snapshot = snapshot_for(scheduler, SnapshotBuilder(scheduler.policy.views), scene.state, 0.0, DUE)
    plan, before = decide(snapshot, scheduler), snapshot.placement
    nobody = before.changed(dict.fromkeys(before))
    eager = replace(plan, actions=actions_between(before, nobody))
    event = decided(snapshot, eager, scene.state.seq, 0.0)
    assert [action["job"] for action in event.actions] == ["2"]


def test_who_stays_on_a_cordoned_node_counts_against_the_quota_of_its_queue() -> None:
    live = Deciding("fifo")
    live.queue("a", 2, 1)
    live.submit("1", "a", 2)
    live.scene.give(_1={"n0": 0b11})
    live.scene.reconcile()
    cordon(live.scene, "n0")
    for name in ("2", "3"):
        live.submit(name, "a", 1)
    plan = live.decide()
    assert (live.gpus("1"), live.gpus("2"), live.gpus("3")) == (2, 1, 0)
    assert plan.why.of(1) is Why.QUOTA
    assert "holds 2; it needs 1, and jobs before it get the rest" in plan.why.evidence[1]
    live.end("1")
    live.decide()
    assert live.gpus("3") == 1


def test_what_who_stays_holds_of_open_nodes_is_not_reserved_for_others() -> None:
    live = Deciding("fifo")
    live.submit("1", "", 2)
    live.scene.give(_1={"n0": 0b1, "n1": 0b1})
    live.scene.reconcile()
    cordon(live.scene, "n0")
    live.scene.tell(happened.Reserved("r", 0.0, 1e6, "a100", 3, (), "bob", ""))
    live.submit("2", "", 1)
    plan = live.decide()
    assert plan.why.of(0) is Why.RESERVED
    live.submit("3", "", 3, user="bob")
    live.decide()
    assert (live.gpus("1"), live.gpus("2"), live.gpus("3")) == (2, 0, 3)
