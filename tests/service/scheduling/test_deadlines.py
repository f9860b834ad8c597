"""Deadlines of job files under policies that keep them."""

import numpy as np
import pytest
from tests.service.play import DUE, Deciding

from stretto.jobfile.parts import MOST_WORTH
from stretto.jobfile.to_job import DEADLINE_WORTH
from stretto.model import JobId, JobOutlook, Promise, PromisesDeadlines
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


def test_a_strict_deadline_outweighs_the_most_that_a_job_file_may_say() -> None:
    live = WithDeadlines("unisched", DEADLINE_WORTH, profiling="off")
    rewards = [{"by": HOUR, "worth": MOST_WORTH}, {"by": {"after_s": 3_960.0}, "worth": MOST_WORTH}]
    live.submit("soft", "", 1, rewards=rewards, expected_time_s=2_400.0)
    live.submit("strict", "", 1, deadline=HOUR, expected_time_s=2_400.0)
    live.decide()
    assert (live.gpus("strict"), live.gpus("soft")) == (1, 0)


def test_a_log_in_which_a_soft_deadline_is_worth_more_is_decided_as_it_was() -> None:
    live = WithDeadlines("unisched", 100.0, profiling="off")
    live.submit("soft", "", 1, rewards=[{"by": HOUR, "worth": 101.0}], expected_time_s=2_400.0)
    live.submit("strict", "", 1, deadline=HOUR, expected_time_s=2_400.0)
    live.decide()
    assert (live.gpus("strict"), live.gpus("soft")) == (0, 1)


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


def outlook(live: Deciding, job: str) -> JobOutlook:
    policy, scene = live.scheduler.policy, live.scene
    assert isinstance(policy, PromisesDeadlines)
    snapshot = live.observer.observe(scene.state, scene.now_s, DUE, scene.memory)
    speeds = live.scheduler.estimator.estimate(snapshot, policy.configurations(snapshot.cluster))
    return policy.outlook(snapshot, speeds, JobId(job))


@pytest.mark.parametrize(
    ("due_s", "takes_s", "promise", "end_s"),
    [
        pytest.param(3_600.0, 1_800.0, Promise.YES, 3_600.0, id="it fits into the plan, at the latest"),
        pytest.param(
            1_740.0, 1_260.0, Promise.AT_RISK, 1_260.0, id="no whole leases hold it, the clock does"
        ),
        pytest.param(3_600.0, 5_400.0, Promise.NO, 5_400.0, id="it takes longer than there is"),
    ],
)
def test_a_newcomer_is_told_whether_its_deadline_can_be_kept(
    due_s: float, takes_s: float, promise: Promise, end_s: float
) -> None:
    live = WithDeadlines("unisched", DEADLINE_WORTH)
    live.submit("new", "", 1, deadline={"after_s": due_s}, expected_time_s=takes_s)
    told = outlook(live, "new")
    assert (told.promise, told.deadline_s) == (promise, due_s)
    assert told.end_s == pytest.approx(end_s)
    assert np.isnan(told.lease_until_s)
    assert (told.suspension_s, told.is_measured) == (20.0, False)


@pytest.mark.parametrize(("takes_s", "promise"), [(3_000.0, Promise.YES), (5_400.0, Promise.NO)])
def test_a_running_job_that_may_not_be_stopped_is_promised_what_the_clock_allows(
    takes_s: float, promise: Promise
) -> None:
    live = WithDeadlines("unisched", DEADLINE_WORTH, profiling="off")
    live.submit("runs", "", 1, deadline=HOUR, expected_time_s=takes_s, preemptible=False)
    live.decide()
    assert live.gpus("runs") == 1
    told = outlook(live, "runs")
    assert told.promise is promise
    assert told.deadline_s == pytest.approx(3_600.0)
    assert told.end_s - live.scene.now_s == pytest.approx(takes_s, rel=0.01)


def test_where_others_need_the_time_a_deadline_is_not_promised() -> None:
    live = WithDeadlines("unisched", DEADLINE_WORTH, profiling="off")
    live.submit("first", "", 1, deadline=HOUR, expected_time_s=1_800.0)
    live.decide()
    live.submit("second", "", 1, deadline=HOUR, expected_time_s=2_700.0)
    assert outlook(live, "first").promise is Promise.YES
    assert outlook(live, "second").promise is Promise.AT_RISK, "alone it would be in time"


def test_a_lease_lasts_until_the_end_of_a_cycle_and_one_of_best_effort_until_the_next_tick() -> None:
    for deadline, lease_s in ((HOUR, 600.0), (None, 300.0)):
        live = WithDeadlines("unisched", DEADLINE_WORTH, profiling="off")
        live.submit("runs", "", 1, deadline=deadline, expected_time_s=3_000.0)
        live.decide()
        began_s = live.scene.now_s
        live.scene.now_s += 20.0
        assert outlook(live, "runs").lease_until_s == pytest.approx(began_s + lease_s)
    assert outlook(live, "runs").promise is None


def test_of_a_job_with_a_goal_the_end_is_what_its_reports_foresee() -> None:
    """Its owner allows 200 epochs of a minute; the reported curve reaches the goal at about the 60th."""
    live = WithDeadlines("unisched", DEADLINE_WORTH, profiling="off")
    epochs = np.arange(1, 31)
    metrics = 0.9 - 0.6 / np.sqrt(epochs)
    goal = {"metric": "accuracy", "target": float(0.9 - 0.6 / np.sqrt(60)), "max_epochs": 200}
    live.submit("learns", "", 1, stop=goal, expected_time_s=12_000.0)
    live.decide()
    began_s = live.scene.now_s
    for epoch in epochs.tolist():  # as the SDK reports them
        live.scene.now_s = began_s + 60.0 * epoch
        told = {"epoch": epoch, "epoch_metrics": metrics[:epoch].tolist(), "epoch_end": True}
        samples = {"samples": 1_000.0 * epoch, "dataset_samples": 1_000.0}
        live.scene.tell(happened.Reported("learns", {**told, **samples}))
    left_s = outlook(live, "learns").end_s - live.scene.now_s
    assert left_s == pytest.approx(30 * 60.0, rel=0.15)


# ── what stretto promises ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("takes_s", "promise", "end_s"),
    [
        pytest.param(1_800.0, Promise.YES, 3_600.0, id="with its doubts there is time enough"),
        pytest.param(3_500.0, Promise.NO, 3_880.0, id="there is not"),
    ],
)
def test_under_stretto_a_newcomer_is_told_whether_its_deadline_can_be_kept(
    takes_s: float, promise: Promise, end_s: float
) -> None:
    live = WithDeadlines("stretto", DEADLINE_WORTH)
    live.submit("new", "", 1, deadline=HOUR, expected_time_s=takes_s)
    told = outlook(live, "new")
    assert (told.promise, told.deadline_s) == (promise, 3_600.0)
    assert told.end_s == pytest.approx(end_s), "with a tenth for doubts, and half a minute for a start"
    assert (told.suspension_s, told.is_measured) == (30.0, False)


def test_under_stretto_what_was_promised_is_kept_and_no_more_is_promised_than_there_is_time_for() -> None:
    live = WithDeadlines("stretto", DEADLINE_WORTH)
    live.submit("first", "", 1, rewards=SOFT, expected_time_s=2_400.0)
    live.decide()
    live.submit("second", "", 1, deadline=HOUR, expected_time_s=1_800.0)
    assert outlook(live, "first").promise is Promise.YES
    assert outlook(live, "second").promise is Promise.AT_RISK, "alone it would be in time"
    live.decide()
    assert (live.gpus("first"), live.gpus("second")) == (1, 0)


def test_under_stretto_a_job_without_a_deadline_is_promised_nothing() -> None:
    live = WithDeadlines("stretto", DEADLINE_WORTH)
    live.submit("best effort", "", 1, expected_time_s=2_400.0)
    assert outlook(live, "best effort").promise is None
