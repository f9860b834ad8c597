"""Higher jobs go first and take no more from lower ones than they use, whatever the policy."""

import pytest
from tests.live.play import Deciding

from stretto.model import Why
from stretto.policies.registry import policy_names

POLICIES = policy_names()
ENOUGH = 8  # decisions
STINGY = ("elasticflow", "optimus")  # of themselves they leave a job of unknown speed on one GPU


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
    plan = live.decide().plan
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
    plan = live.decide().plan
    assert (live.gpus("1"), live.gpus("2")) == (0, 2)
    assert plan.why.of(0) is Why.PREEMPTED
    assert plan.why.evidence[0] == "preempted by 2 (priority 10)"
    plan = live.decide().plan
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
