"""Every attempt after the first says why it began."""

import json
from collections.abc import Callable

import pytest
from tests.service.scene import Scene

from stretto.model import JobId, actions_between
from stretto.service.eventlog.archive import record_of, row_of
from stretto.service.state import events as happened
from stretto.service.state.records import KILLED, MOST_ATTEMPTS
from stretto.service.state.reducer import actions_json

HERE, THERE = {"n0": 1}, {"n0": 2}


def end_all(scene: Scene, status: int = 143) -> None:
    for name in scene.names("j"):
        scene.end(name, status)
    scene.reconcile()


def decide(scene: Scene, due: str, preempted: dict[str, tuple[str, int, int]] | None = None) -> None:
    """Take its GPUs from the job."""
    assert scene.state.placement is not None
    assert scene.state.cluster is not None
    actions = actions_between(scene.state.placement, scene.state.placement.changed({JobId("j"): None}))
    told = tuple(actions_json(actions, scene.state.cluster))
    scene.tell(happened.Decided(scene.state.seq, scene.now_s, (due,), told, preempted=preempted or {}))
    scene.reconcile()


def fails(scene: Scene) -> None:
    end_all(scene, 3)


def is_killed(scene: Scene) -> None:
    end_all(scene, KILLED)


def loses_its_node(scene: Scene) -> None:
    scene.silence(0)
    scene.bury(0)
    scene.reconcile()
    scene.running.clear()
    scene.answer(0)


def is_preempted(scene: Scene) -> None:
    scene.submit("high", 4, priority=5)
    decide(scene, "arrival", {"j": ("high", 5, 0)})
    end_all(scene)


def is_preempted_and_given_others_at_once(scene: Scene) -> None:
    scene.submit("high", 4, priority=5)
    decide(scene, "arrival", {"j": ("high", 5, 0)})
    scene.give(_j=THERE)
    end_all(scene)


def is_stopped_by_its_policy(scene: Scene) -> None:
    decide(scene, "round")
    end_all(scene)


def asked(scene: Scene) -> None:
    scene.tell(happened.Reported("j", {"in_place": False}))
    scene.reconcile()
    assert scene.asked_to_stop == {"j.1.0"}
    end_all(scene)


def grows(scene: Scene) -> None:
    scene.give(_j={"n0": 7})
    asked(scene)


def moves(scene: Scene) -> None:
    scene.give(_j=THERE)
    asked(scene)


def is_requeued(scene: Scene) -> None:
    scene.tell(happened.Requeued("j", 0.0, "requeued by hand"))
    scene.reconcile()
    end_all(scene)


def is_held(scene: Scene) -> None:
    scene.tell(happened.Held("j", True))
    scene.reconcile()
    end_all(scene)
    scene.tell(happened.Held("j", False))


def is_on_a_node_that_is_drained(scene: Scene) -> None:
    scene.tell(happened.NodeCordoned("n0", True, drain=True))
    scene.reconcile()
    end_all(scene)
    scene.tell(happened.NodeCordoned("n0", False))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (fails, "attempt 1 failed: worker j.1.0 ended with status 3"),
        (is_killed, "attempt 1 was killed by others: worker j.1.0 ended with status 137"),
        (loses_its_node, "node n0 was lost"),
        (is_preempted, "preempted by job high (priority 5)"),
        (is_preempted_and_given_others_at_once, "preempted by job high (priority 5)"),
        (is_stopped_by_its_policy, "preempted: fifo decided so: its round was due"),
        (grows, "resized from 1 to 3 GPUs by a restart: fifo decided so"),
        (moves, "moved to other GPUs by a restart: fifo decided so"),
        (is_requeued, "requeued by hand"),
        (is_held, "it was held and released"),
        (is_on_a_node_that_is_drained, "node n0 was closed"),
    ],
)
def test_a_second_attempt_says_why_it_began(what: Callable[[Scene], None], why: str) -> None:
    scene = Scene(nodes=1, gpus=4)
    job = scene.submit("j", 1, elastic=(1, 4), restart={"max": 3})
    scene.give(_j=HERE)
    scene.reconcile()
    assert [(each.number, each.why) for each in job.attempts] == [(1, "")]
    scene.now_s = 10.0
    what(scene)
    scene.now_s = 500.0
    if scene.state.wanted("j") is None:
        scene.give(_j=HERE)
    scene.reconcile()
    assert [(each.number, each.why) for each in job.attempts] == [(1, ""), (2, why)]
    again = record_of(row_of(job))
    assert again.attempts == job.attempts


def test_of_very_many_attempts_the_newest_are_kept() -> None:
    scene = Scene(nodes=1, gpus=4)
    job = scene.submit("j", 1)
    for _ in range(MOST_ATTEMPTS + 5):
        scene.give(_j=HERE)
        scene.reconcile()
        is_requeued(scene)
    assert [each.number for each in job.attempts] == list(range(6, MOST_ATTEMPTS + 6))
    assert json.loads(row_of(job).body)["attempts"][0][0] == 6
