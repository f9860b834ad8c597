"""Bounds of queues and permitted sizes hold under every policy, and what is borrowed is given back."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.service.play import DUE, Deciding

from stretto.model import Why
from stretto.policies.common.admission import AskedAndFree
from stretto.policies.registry import policy_names
from stretto.scheduler.constraints.steps import reclaim, visible_part
from stretto.service.scheduling.decision import snapshot_for
from stretto.service.state import events as happened

POLICIES = policy_names()
ENOUGH = 8  # decisions


@pytest.mark.parametrize("policy", POLICIES)
def test_a_queue_never_holds_more_than_it_may(policy: str) -> None:
    live = Deciding(policy)
    live.queue("a", 3, 2)
    for number in range(5):
        live.submit(f"{number + 1}", "a", 1, 4)
    for _ in range(4):
        live.decide()
        assert live.held("a") <= 5


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_borrowed_is_given_back_to_a_job_within_its_quota(policy: str) -> None:
    live = Deciding(policy)
    live.queue("a", 4, 4)
    live.queue("b", 4)
    for number in range(8):
        live.submit(f"{number + 1}", "a", 1)
    for _ in range(ENOUGH):
        live.decide()
    assert live.held("a") == 8, "nobody else waits"
    live.submit("9", "b", 2)
    for _ in range(ENOUGH):
        live.decide()
        if live.gpus("9"):
            break
    assert live.gpus("9") == 2
    assert live.held("a") <= 6
    assert [live.gpus(str(number)) for number in range(1, 5)] == [1] * 4, "the oldest keep what they have"


def test_the_lowest_priority_gives_back_first_and_who_cannot_be_stopped_does_not() -> None:
    live = Deciding("fifo", nodes=1)
    live.queue("a", 1, 3)
    live.submit("1", "a", 1, priority=1)
    live.submit("2", "a", 1, priority=-1)
    live.submit("3", "a", 1)
    live.submit("4", "a", 1, priority=-5, preemptible=False)
    live.decide()
    assert live.held("a") == 4
    live.submit("5", "", 1)
    live.decide()
    assert [live.gpus(name) for name in "12345"] == [1, 0, 1, 1, 1]


def test_nothing_is_given_back_for_a_job_that_could_not_start_with_it() -> None:
    live = Deciding("fifo", nodes=1)
    live.queue("a", 1, 2)
    live.submit("1", "", 2)
    live.decide()
    for name in "234":
        live.submit(name, "a", 1)
    live.submit("5", "", 4)
    live.decide()
    assert live.held("a") == 2, "one of its own, one borrowed, which would not help who waits"


def test_reasons_say_by_how_many_gpus_a_quota_is_exceeded() -> None:
    live = Deciding("fifo")
    live.queue("a", 2, 1)
    live.submit("1", "a", 2)
    live.submit("2", "a", 2)
    live.submit("3", "a", 4)
    plan = live.decide()
    assert (live.gpus("1"), live.gpus("2"), live.gpus("3")) == (2, 0, 0)
    assert plan.why.of(1) is Why.QUOTA
    assert "holds 0; it needs 2, and jobs before it get the rest" in plan.why.evidence[1]
    assert plan.why.of(2) is Why.EXCEEDS_QUOTA
    assert "1 too many" in plan.why.evidence[2]


def test_a_reason_names_jobs_that_start_before_it_and_no_number_that_is_not_so() -> None:
    live = Deciding("fifo")
    live.queue("a", 4)
    live.submit("1", "a", 2)
    live.decide()
    live.submit("2", "a", 2)
    live.submit("3", "a", 1)
    plan = live.decide()
    assert (live.gpus("1"), live.gpus("2"), live.gpus("3")) == (2, 2, 0)
    assert (
        plan.why.evidence[2] == "queue a has 4 GPUs, and holds 2; it needs 1, and jobs before it get the rest"
    )
    plan = live.decide()
    assert plan.why.evidence[2] == "queue a has 4 GPUs, and holds 4; it needs 1, 1 too many"


def test_a_lowered_quota_is_kept_at_the_next_decision() -> None:
    live = Deciding("afs")
    live.submit("1", "a", 1, 8)
    live.submit("2", "a", 1, 8)
    for _ in range(ENOUGH):
        live.decide()
    assert live.held("a") > 3
    live.queue("a", 3)
    live.decide()
    assert 0 < live.held("a") <= 3


@pytest.mark.parametrize("policy", POLICIES)
def test_only_permitted_sizes_are_given(policy: str) -> None:
    live = Deciding(policy)
    elastic = {"min_gpus": 1, "max_gpus": 6, "sizes": [1, 3, 6]}
    live.submit("1", "", 1, elastic=elastic)
    live.submit("2", "", 1, elastic=elastic)
    given_once = 0
    for _ in range(ENOUGH):
        live.decide()
        assert {live.gpus("1"), live.gpus("2")} <= {0, 1, 3, 6}
        given_once = max(given_once, live.gpus("1"), live.gpus("2"))
    assert given_once


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_may_have_none_of_its_sizes_waits_and_keeps_nobody_else_from_running(policy: str) -> None:
    live = Deciding(policy)
    live.submit("1", "", 1, elastic={"min_gpus": 1, "max_gpus": 4, "sizes": [1, 4]})
    live.scene.tell(happened.Scaled("1", 2, 3))
    live.submit("2", "", 1)
    plans = [live.decide() for _ in range(ENOUGH)]
    assert (live.gpus("1"), live.gpus("2")) == (0, 1)
    assert all(plan.why.of(0) is Why.TOO_LARGE for plan in plans)
    assert plans[0].why.evidence[0] == "its sizes are 1, 4, none from 2 to 3"


def test_what_happens_while_a_decision_is_made_does_not_change_its_rules() -> None:
    live = Deciding("fifo")
    elastic = {"min_gpus": 1, "max_gpus": 6, "sizes": [1, 3, 6]}
    live.submit("1", "", 1, elastic=elastic)
    snapshot = snapshot_for(live.scheduler, live.observer, live.scene.state, 0.0, DUE, live.scene.memory)
    live.submit("2", "", 1, elastic=elastic)
    live.end("1")
    assert list(snapshot.constraints.sizes) == ["1"]


def test_thousands_who_wait_cost_a_decision_neither_words_nor_another_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_words(evidence: AskedAndFree, row: int) -> str:
        raise AssertionError("nobody has asked")

    live = Deciding("fifo")
    live.queue("a", 0)
    for number in range(20):
        live.submit(f"{number + 1}", "a" if number % 2 else "", 1)
    snapshot = snapshot_for(live.scheduler, live.observer, live.scene.state, 0.0, DUE, live.scene.memory)
    context = reclaim(visible_part(snapshot, live.scheduler))
    assert context.placement is snapshot.placement, "nobody held anything"
    with monkeypatch.context() as patched:
        patched.setattr(AskedAndFree, "__getitem__", in_words)
        plan = live.decide()
    assert sorted(plan.why.evidence) == [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 18, 19]
    assert plan.why.evidence[18] == "asks 1 GPU, 0 free"


Submission = tuple[str, int, int, int, bool]


@settings(max_examples=scaled(60), deadline=None)
@given(
    policy=st.sampled_from([name for name in POLICIES if name not in ("ones", "pollux", "drl")]),
    quotas=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=2, max_size=2),
    submissions=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", ""]),
            st.integers(1, 4),
            st.integers(0, 8),
            st.integers(-1, 1),
            st.booleans(),
        ),
        max_size=10,
    ),
)
def test_no_queue_exceeds_its_bounds_whatever_is_submitted_and_ends(
    policy: str, quotas: Sequence[tuple[int, int]], submissions: Sequence[Submission]
) -> None:
    live = Deciding(policy, nodes=3)
    limits = dict(zip("ab", quotas, strict=True))
    for name, (quota, borrow) in limits.items():
        live.queue(name, quota, borrow)
    for number, (queue, gpus, most, priority, ends) in enumerate(submissions):
        live.submit(f"{number}", queue, gpus, most, priority=priority)
        live.decide()
        if ends:
            live.end(f"{number}")
        live.decide()
        for name, (quota, borrow) in limits.items():
            assert live.held(name) <= quota + borrow
