"""Deadlines of job files under policies that keep them."""

import pytest
from tests.service.play import Deciding

from stretto.jobfile.to_job import DEADLINE_WORTH
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Configured

HOUR = {"after_s": 3_600.0}
SOFT = [{"by": HOUR, "worth": 80.0}, {"by": {"after_s": 3_960.0}, "worth": 20.0}]
OLD_WORTH = 1.0  # of a log that does not say


class WithDeadlines(Deciding):
    """One GPU, over which jobs with and without deadlines compete."""

    def __init__(self, policy: str, deadline_worth: float, **settings: str) -> None:
        super().__init__(policy, nodes=1, gpus=1)
        settings = {f"policy.{key}": value for key, value in settings.items()}
        configured = Configured(
            policy, settings=settings, speeds="measured", defaults="current", deadline_worth=deadline_worth
        )
        self.scheduler = scheduler_of(configured)
        self.observer = SnapshotBuilder(self.scheduler.policy.views)
        self.scene.tell(configured)


@pytest.mark.parametrize(("worth", "strict"), [(DEADLINE_WORTH, 1), (OLD_WORTH, 0)])
def test_under_unisched_a_strict_deadline_outweighs_a_soft_one(worth: float, strict: int) -> None:
    live = WithDeadlines("unisched", worth, profiling="off")
    # Each needs more than half of the time that is left, so only one of them can be done by then.
    live.submit("soft", "", 1, rewards=SOFT, expected_time_s=2_400.0)
    live.submit("strict", "", 1, deadline=HOUR, expected_time_s=2_400.0)
    live.decide()
    assert (live.gpus("strict"), live.gpus("soft")) == (strict, 1 - strict)


@pytest.mark.parametrize(("worth", "strict"), [(DEADLINE_WORTH, 1), (OLD_WORTH, 0)])
def test_under_3sigma_best_effort_makes_room_for_a_strict_deadline(worth: float, strict: int) -> None:
    live = WithDeadlines("3sigma", worth)
    live.submit("best effort", "", 1, expected_time_s=2_400.0)
    live.decide()
    assert live.gpus("best effort") == 1
    live.submit("strict", "", 1, deadline=HOUR, expected_time_s=2_400.0)
    live.decide()
    assert (live.gpus("strict"), live.gpus("best effort")) == (strict, 1 - strict)


def test_a_job_of_an_old_log_is_worth_what_it_was_when_it_came() -> None:
    live = WithDeadlines("unisched", OLD_WORTH)
    scene = live.scene
    live.submit("old", "", 1, deadline={"at_unix_s": 1.0e9 + 3_600.0})
    scene.tell(Configured("unisched", deadline_worth=DEADLINE_WORTH))
    live.submit("new", "", 1, deadline=HOUR)
    # The machine's clock was wrong by a minute: the first deadline moves, and is worth the same.
    before_s = scene.state.jobs["old"].job.deadline_s
    scene.tell(happened.ClockSet(scene.now_s, 1.0e9 + 60.0, 1.0e9 + 60.0))
    assert scene.state.jobs["old"].job.deadline_s == before_s - 60.0
    worths = [scene.state.jobs[name].job.rewards[0].value for name in ("old", "new")]
    assert worths == [OLD_WORTH, DEADLINE_WORTH]
    assert happened.event_of("Configured", {"policy": "fifo"}) == Configured("fifo", deadline_worth=OLD_WORTH)
