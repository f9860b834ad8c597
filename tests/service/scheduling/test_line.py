"""Jobs that wait stand in the order in which the policy is shown them."""

import pytest
from tests.service.play import DUE, Deciding

from stretto.service.scheduling.decision import snapshot_for
from stretto.service.scheduling.line import Line, line_of
from stretto.service.state import events as happened


def line(live: Deciding) -> tuple[str, ...]:
    scene = live.scene
    snapshot = snapshot_for(live.scheduler, live.observer, scene.state, scene.now_s, DUE)
    return line_of(snapshot, live.scheduler)


@pytest.mark.parametrize("policy", ["fifo", "sia", "tiresias"])
def test_higher_priorities_come_first_and_equal_ones_by_submission(policy: str) -> None:
    live = Deciding(policy)
    live.submit("first", "", 1)
    live.submit("second", "", 1)
    live.submit("urgent", "", 1, priority=5)
    live.submit("late", "", 1, priority=-1)
    live.submit("third", "", 1)
    assert line(live) == ("urgent", "first", "second", "third", "late")


def test_a_job_that_holds_gpus_does_not_wait() -> None:
    live = Deciding("fifo", nodes=1, gpus=4)
    for name in ("a", "b", "c"):
        live.submit(name, "", 2)
    live.decide()
    assert line(live) == ("c",)


def test_of_two_users_the_one_that_has_had_less_comes_first() -> None:
    live = Deciding("fifo", nodes=1, gpus=4)
    live.scene.tell(happened.Configured("fifo", priorities="preempt", fair_share_half_life_s=86_400.0))
    live.submit("adas", "", 4, user="ada")
    live.decide()
    live.submit("adas-next", "", 4, user="ada")
    live.submit("bobs", "", 4, user="bob")
    assert line(live) == ("bobs", "adas-next")


def test_a_line_is_worked_out_once_for_a_snapshot() -> None:
    live = Deciding("fifo")
    live.submit("a", "", 1)
    scene = live.scene
    snapshot = snapshot_for(live.scheduler, live.observer, scene.state, scene.now_s, DUE)
    kept = Line()
    assert kept.ids(None, live.scheduler) == ()
    assert kept.ids(snapshot, live.scheduler) is kept.ids(snapshot, live.scheduler) == ("a",)
