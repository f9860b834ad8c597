"""Live decisions by fair share: who waits comes by usage, and is told the reason that is its own."""

import pytest
from tests.service.play import DUE, Deciding

from stretto.model import JobId, Why
from stretto.scheduler.round import decide
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.reducer import apply
from stretto.service.state.state import State

WEEK_S = 7 * 86_400.0


def a_race(half_life_s: float) -> Deciding:
    """Eight GPUs; ada asks for 20, then bob for 2."""
    live = Deciding("fifo")
    live.scene.tell(happened.Configured("fifo", fair_share_half_life_s=half_life_s))
    for number in range(20):
        live.submit(f"{number + 1}", "", 1, user="ada")
    for number in (21, 22):
        live.submit(f"{number}", "", 1, user="bob")
    return live


@pytest.mark.parametrize(
    ("half_life_s", "running"),
    [
        pytest.param(WEEK_S, [*"123456", "21", "22"], id="by fair share"),
        pytest.param(0.0, [*"12345678"], id="by submission, as logs before fair share have it"),
    ],
)
def test_jobs_start(half_life_s: float, running: list[str]) -> None:
    live = a_race(half_life_s)
    live.decide()
    placement = live.scene.state.placement
    assert placement is not None
    assert sorted(placement, key=int) == running


def test_who_has_had_more_waits_until_the_other_has_caught_up() -> None:
    live = a_race(WEEK_S)
    live.decide()
    live.submit("30", "", 1, user="bob")
    for name in "12345":
        live.end(name)
    live.decide()
    state = live.scene.state
    assert state.wanted("30") is not None, "bob has had a third of what ada has"
    live.end("6")
    live.decide()
    assert state.wanted("11") is not None
    assert state.wanted("12") is None


def test_reasons_and_gpus_are_those_of_each_job() -> None:
    live = a_race(WEEK_S)
    live.submit("30", "", 8, user="bob")
    plan = live.decide()
    ids = [str(name) for name in plan.jobs.ids]
    assert ids == [str(number) for number in range(1, 23)] + ["30"], "by submission, as it was asked"
    for name in ids:
        why = plan.why.of(ids.index(name))
        assert (why is Why.RUNS) == (JobId(name) in plan.placement), name
    assert plan.why.of(ids.index("30")) is Why.NO_FREE_GPUS
    assert "asks 8 GPUs" in plan.why.evidence[ids.index("30")]


def test_a_quota_goes_to_users_of_the_queue_by_fair_share() -> None:
    live = Deciding("fifo")
    live.scene.tell(happened.Configured("fifo", fair_share_half_life_s=WEEK_S))
    live.queue("team", 4)
    for number in range(6):
        live.submit(f"{number + 1}", "team", 1, user="ada")
    for number in (7, 8):
        live.submit(f"{number}", "team", 1, user="bob")
    live.decide()
    placement = live.scene.state.placement
    assert placement is not None
    assert sorted(placement) == ["1", "2", "7", "8"]


@pytest.mark.parametrize(
    ("limits", "always"),
    [
        pytest.param(True, True, id="who is within a share goes on"),
        pytest.param(False, False, id="as logs have it that say nothing of limits"),
    ],
)
def test_turns_of_one_user_do_not_stop_another(limits: bool, always: bool) -> None:
    live = Deciding("gavel")
    live.scene.tell(
        happened.Configured("gavel", fair_share_half_life_s=WEEK_S, fair_share_limits=limits)
        if limits
        else happened.Configured("gavel", fair_share_half_life_s=WEEK_S)
    )
    for number in range(20):
        live.submit(f"{number + 1}", "", 1, user="ada")
    live.decide()
    for number in (21, 22):
        live.submit(f"{number}", "", 1, user="bob")
    run, reasons = [], set()
    for _ in range(6):
        live.scene.now_s += 400.0
        plan = live.decide()
        run.append({"21", "22"} <= set(plan.placement))
        reasons |= {plan.why.of(row) for row in range(len(plan.jobs))}
    assert all(run) == always
    assert (Why.OVER_SHARE in reasons) == limits
    assert_decided_again(live)


def test_an_order_by_shares_is_the_same_when_it_is_decided_again() -> None:
    live = a_race(WEEK_S)
    live.scene.tell(happened.UserSharesSet("bob", 3.0))
    for name in ("1", "21", "2"):
        live.decide()
        live.end(name)
    assert_decided_again(live)


def assert_decided_again(live: Deciding) -> None:
    """The log alone gives the same decisions and the same usage."""
    again, memory = State(), None
    for number, (event, at_s) in enumerate(zip(live.scene.log, live.scene.times, strict=True), start=1):
        if isinstance(event, happened.Decided):
            builder = SnapshotBuilder(live.scheduler.policy.views)
            snapshot = snapshot_for(live.scheduler, builder, again, event.at_s, DUE, memory)
            plan = decide(snapshot, live.scheduler)
            repeated, memory = decided(snapshot, plan, event.seen, 1.0), plan.memory
            assert repeated.actions == event.actions
            assert repeated.memory == event.memory
        apply(again, event, number, at_s)
    assert again.usage == live.scene.state.usage
