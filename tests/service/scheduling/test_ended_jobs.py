"""The state counts jobs that have ended; policies are shown the sums, and learn from them."""

import pytest
from tests.service.play import Deciding

from stretto.model import EndedJobs, Trigger, View
from stretto.policies.cornucopia.mlfq import Remembered
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured


def run(live: Deciding, name: str, seconds: float, end: str = "COMPLETED", kind: str = "batch") -> None:
    """A job holds a GPU for so long, and ends."""
    live.submit(name, "", 1, kind=kind)
    live.scene.give(**{f"_{name}": {"n0": 0b1}})
    live.scene.now_s += seconds
    live.scene.tell(happened.Ended(name, end, 0 if end == "COMPLETED" else 1))


def shown(live: Deciding) -> EndedJobs:
    builder = SnapshotBuilder(frozenset({View.ENDED_JOBS}))
    scene = live.scene
    return builder.observe(scene.state, scene.now_s, frozenset({Trigger.ROUND})).jobs.ended


def test_jobs_that_ran_are_counted_by_kind_and_those_that_failed_once_more() -> None:
    live = Deciding("fifo")
    run(live, "1", 40.0, kind="interactive")
    run(live, "2", 500.0)
    run(live, "3", 70.0, "FAILED")
    run(live, "4", 30.0, "CANCELLED")
    run(live, "5", 10.0, "NODE_FAIL")
    live.submit("6", "", 1)
    live.scene.tell(happened.Ended("6", "CANCELLED", 1))  # it never ran
    counted = EndedJobs(1, 40.0, 4, 610.0, failed=1, failed_s=70.0)
    assert shown(live) == counted
    live.scene.tell(happened.Retired(("1", "2", "3")))
    assert shown(live) == counted, "those that have left the state are still counted"


def thresholds(live: Deciding) -> tuple[float, float, float]:
    live.decide()
    memory = live.scene.memory
    assert isinstance(memory, Remembered)
    learned = memory.thresholds
    return learned.interactive_s, learned.batch_s, learned.starved_s


def under(defaults: str) -> Deciding:
    """A service under Cornucopia on which ten jobs of each kind have ended, half of all by an error."""
    configured = Configured("cornucopia", defaults=defaults)
    live = Deciding("cornucopia")
    live.scheduler = scheduler_of(configured)
    live.scene.tell(configured)
    for number in range(10):
        run(live, f"{number}", 30.0, kind="interactive")
        run(live, f"1{number}", 900.0, "FAILED")
    live.submit("99", "", 1)
    return live


def test_cornucopia_learns_its_thresholds_from_the_jobs_of_the_service() -> None:
    live = under("current")
    assert thresholds(live) == pytest.approx((60.0, 1_800.0, 1_800.0))
    live.scene.memory = None  # as after a change of the settings: what has ended is still known
    assert thresholds(live) == pytest.approx((60.0, 1_800.0, 1_800.0))


def test_logs_from_before_are_decided_with_what_the_policy_followed_itself() -> None:
    assert thresholds(under("former")) == (1_200.0, 7_200.0, 7_200.0)
