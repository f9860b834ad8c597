"""Higher jobs go first and take no more from lower ones than they use, whatever the policy."""

import pytest
from tests.service.play import Deciding

from stretto.model import Why
from stretto.policies.registry import policy_names
from stretto.service.state import events as happened
from stretto.service.state.status import JobStatus, status_of

POLICIES = policy_names()
ENOUGH = 8  # decisions
STINGY = ("elasticflow", "optimus")  # of themselves they leave a job of unknown speed on one GPU


def shown(live: Deciding, name: str) -> JobStatus:
    return status_of(live.scene.state, live.scene.state.jobs[name], live.scene.now_s)


def until_held(live: Deciding, name: str, gpus: int) -> None:
    for _ in range(ENOUGH):
        if live.gpus(name) == gpus:
            return
        live.decide()
    assert live.gpus(name) == gpus


@pytest.mark.parametrize("policy", POLICIES)
def test_a_higher_job_starts_at_once_and_a_lower_one_goes_on_with_the_rest(policy: str) -> None:
    live = Deciding(policy, nodes=1)
    live.submit("1", "", 4, elastic={"min_gpus": 1, "max_gpus": 4})
    live.scene.give(_1={"n0": 0b1111})
    live.submit("2", "", 2, priority=10)
    plan = live.decide()
    rest = 1 if policy in STINGY else 2
    assert (live.gpus("1"), live.gpus("2")) == (rest, 2)
    assert [action.verb.value for action in plan.actions] == ["shrink", "start"]
    for _ in range(4):
        live.decide()
        assert (live.gpus("1"), live.gpus("2")) == (rest, 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lower_job_that_cannot_be_made_smaller_is_stopped_and_comes_back(policy: str) -> None:
    live = Deciding(policy, nodes=1)
    live.submit("1", "", 4)
    live.scene.give(_1={"n0": 0b1111})
    live.submit("2", "", 2, priority=10)
    plan = live.decide()
    assert (live.gpus("1"), live.gpus("2")) == (0, 2)
    assert plan.why.of(0) is Why.PREEMPTED
    assert plan.why.evidence[0] == "preempted by 2 (priority 10)"
    plan = live.decide()
    assert plan.why.of(0) is Why.OUTRANKED
    assert plan.why.evidence[0] == "behind 2 (priority 10), which holds 2 GPUs"
    live.end("2")
    until_held(live, "1", 2 if policy == "unisched" else 4)  # which profiles a job of unknown speed on two


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_taken_in_vain(policy: str) -> None:
    live = Deciding(policy, nodes=1)
    live.submit("1", "", 1)
    live.submit("2", "", 1)
    until_held(live, "2", 1)
    live.submit("3", "", 8, priority=10)  # more than there is
    live.submit("4", "", 2, priority=9)  # which are free
    for _ in range(4):
        live.decide()
        assert [live.gpus(name) for name in "1234"] == [1, 1, 0, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_behind_lower_ones_that_are_never_stopped_is_not_told_that_it_never_starts(policy: str) -> None:
    live = Deciding(policy, nodes=1)
    live.submit("1", "", 3, preemptible=False)
    live.scene.give(_1={"n0": 0b0111})
    live.submit("2", "", 2, priority=10)
    why = live.decide().why
    assert (live.gpus("1"), live.gpus("2")) == (3, 0)
    assert why.of(1) > 0, why.of(1)
    assert "there are" not in why.evidence.get(1, "")
    live.submit("3", "", 5, priority=9)
    assert live.decide().why.of(2) < 0, "more than there is"


def test_both_jobs_say_what_one_took_from_the_other() -> None:
    live = Deciding("fifo", nodes=1)
    live.submit("1", "", 4, elastic={"min_gpus": 1, "max_gpus": 4})
    live.submit("2", "", 1)
    live.scene.give(_1={"n0": 0b1110}, _2={"n0": 0b0001})
    live.submit("3", "", 3, priority=10)
    live.decide()
    assert (live.gpus("1"), live.gpus("2"), live.gpus("3")) == (1, 0, 3)
    assert shown(live, "1").preempted == "by 3 (priority 10), 1 GPU left"
    assert shown(live, "2").preempted == "by 3 (priority 10), stopped"
    assert shown(live, "3").took_from == ["1", "2"]
    assert shown(live, "3").preempted == ""


def test_where_a_log_says_nothing_of_priorities_they_are_ignored() -> None:
    live = Deciding("fifo", nodes=1)
    live.scene.tell(happened.Configured("fifo"))
    live.submit("1", "", 4)
    live.decide()
    live.submit("2", "", 2, priority=10)
    live.decide()
    assert (live.gpus("1"), live.gpus("2")) == (4, 0)


def test_a_queue_keeps_its_quota_from_higher_jobs_of_others_but_not_from_its_own() -> None:
    live = Deciding("fifo", nodes=1)
    live.queue("a", 2, 2)
    live.queue("b", 2, 2)
    for name in "1234":
        live.submit(name, "a", 1)
    live.decide()
    live.submit("5", "b", 4, priority=10)
    live.decide()
    assert live.held("a") == 4, "two borrowed ones would not be enough"
    live.submit("6", "b", 2, priority=9)
    live.decide()
    assert [live.gpus(name) for name in "123456"] == [1, 1, 0, 0, 0, 2]
    live.submit("7", "a", 2, priority=1)
    live.decide()
    assert [live.gpus(name) for name in "127"] == [0, 0, 2]


def test_a_guarantee_is_met_from_what_higher_jobs_borrowed_and_they_do_not_take_it_back() -> None:
    live = Deciding("fifo", nodes=1)
    live.queue("a", 2, 2)
    live.queue("b", 2)
    for name in "1234":
        live.submit(name, "a", 1, priority=10)
    live.decide()
    live.submit("5", "b", 2)
    live.submit("6", "", 4, priority=20)  # of no queue with a quota: it may take free GPUs only, and waits
    for _ in range(4):
        live.decide()
        assert [live.gpus(name) for name in "123456"] == [1, 1, 0, 0, 2, 0]


def test_who_has_no_guarantee_takes_nothing_back_from_a_higher_job_that_borrows() -> None:
    live = Deciding("fifo", nodes=1)
    live.queue("a", 2, 2)
    for name in "1234":
        live.submit(name, "a", 1, priority=10)
    live.decide()
    live.submit("5", "", 2)
    for _ in range(4):
        live.decide()
        assert [live.gpus(name) for name in "12345"] == [1, 1, 1, 1, 0]
