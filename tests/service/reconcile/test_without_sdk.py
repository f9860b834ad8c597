"""An elastic job that never says hello: after its first restart it is told that nothing saves for it."""

import pytest
from tests.service.scene import Scene

from stretto.service.state.event_words import said_of
from stretto.service.state.events import AttemptClosed, Reported, WorkersReady, body_of
from stretto.service.state.status import BEGINS_ANEW, status_of
from stretto.service.state.workers import LISTENED_S


def restarted(scene: Scene, after_s: float = LISTENED_S, heard: str = "") -> AttemptClosed:
    """How an attempt of job 1 ended that was preempted so late."""
    scene.give(_1={"n0": 0b1})
    scene.reconcile()
    first = next(iter(scene.state.jobs["1"].workers))
    if heard == "ready":
        scene.tell(WorkersReady("1", (first,)))
    if heard == "report":
        scene.tell(Reported("1", {"step": 5}))
    scene.now_s += after_s
    scene.give(_1=None)
    scene.reconcile()
    for worker in list(scene.running):
        scene.end(worker, 143)
    scene.reconcile()
    return [each for each in scene.log if isinstance(each, AttemptClosed)][-1]


def remark(scene: Scene) -> str:
    return status_of(scene.state, scene.state.jobs["1"], scene.now_s).remark


def test_the_first_restart_of_a_script_without_the_sdk_says_what_it_costs_and_what_keeps_its_size() -> None:
    scene = Scene()
    scene.submit("1", elastic=(1, 4))
    assert remark(scene) == ""
    closed = restarted(scene)
    assert (closed.outcome, closed.why) == ("left", BEGINS_ANEW)
    assert said_of({"kind": "AttemptClosed", **body_of(closed)}).endswith(f"left its GPUs: {BEGINS_ANEW}")
    assert remark(scene) == BEGINS_ANEW
    assert restarted(scene).why == "", "once is enough"
    assert remark(scene) == BEGINS_ANEW


@pytest.mark.parametrize(
    ("elastic", "after_s", "heard"),
    [
        (None, LISTENED_S, ""),
        ((1, 4), LISTENED_S / 2, ""),
        ((1, 4), LISTENED_S, "ready"),
        ((1, 4), LISTENED_S, "report"),
    ],
    ids=["its size is fixed", "it may not have come so far", "it uses the SDK", "it reports by another way"],
)
def test_nothing_is_said_where_it_may_not_be_so(elastic: tuple[int, int], after_s: float, heard: str) -> None:
    scene = Scene()
    scene.submit("1", elastic=elastic)
    assert restarted(scene, after_s, heard).why == ""
    assert remark(scene) == ""
