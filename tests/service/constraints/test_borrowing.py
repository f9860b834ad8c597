"""Jobs that cannot be preempted borrow nothing: what is lent can be taken back at any time."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.service.play import Deciding

from stretto.model import Why
from stretto.policies.registry import policy_names
from stretto.service.state.events import Configured, QueueSet

ENOUGH = 8  # decisions
WITH_PARTS = (
    QueueSet("lab", 4, 4),
    QueueSet("vision", 1, 4, parent="lab"),
    QueueSet("speech", 3, 4, parent="lab"),
    QueueSet("other", 4, 4),
)


def a_cluster_with(*queues: QueueSet, policy: str = "fifo") -> Deciding:
    """Eight GPUs."""
    live = Deciding(policy)
    live.scene.tell(*queues)
    return live


def decide(live: Deciding, times: int = 2) -> None:
    for _ in range(times):
        live.decide()


@pytest.mark.parametrize("policy", policy_names())
def test_jobs_within_their_quota_wait_for_no_job_that_cannot_be_preempted(policy: str) -> None:
    live = a_cluster_with(QueueSet("a", 4, 4), QueueSet("b", 4, 4), policy=policy)
    for number in range(8):
        live.submit(f"{number + 1}", "a", 1, preemptible=False)
    decide(live, ENOUGH)
    assert live.held("a") == 4, "four GPUs are free, but cannot be taken back"
    for number in range(8, 10):
        live.submit(f"{number + 1}", "b", 2)
    for _ in range(ENOUGH):
        live.decide()
        if live.held("b") == 4:
            break
    assert (live.held("a"), live.held("b")) == (4, 4)


def test_others_of_its_queue_borrow_instead() -> None:
    live = a_cluster_with(QueueSet("a", 2, 2), QueueSet("b", 6))
    live.submit("1", "a", 2)
    live.submit("2", "a", 2, preemptible=False)
    decide(live)
    assert (live.gpus("1"), live.gpus("2")) == (2, 2), "what the first one holds can be taken back"
    live.submit("3", "b", 6)
    decide(live)
    assert (live.gpus("1"), live.gpus("2"), live.gpus("3")) == (0, 2, 6)


def test_the_reason_says_that_it_may_not_borrow() -> None:
    live = a_cluster_with(QueueSet("a", 2, 6))
    live.submit("1", "a", 1, preemptible=False)
    live.submit("2", "a", 2, preemptible=False)
    live.submit("3", "a", 3, preemptible=False)
    plan = live.decide()
    assert plan.why.of(1) is Why.MAY_NOT_BORROW
    said = "queue a is guaranteed 2 GPUs, of which jobs that cannot be preempted hold 0"
    assert plan.why.evidence[1].startswith(said.removesuffix("0"))
    assert plan.why.evidence[1].endswith("; it needs 2, and jobs before it get the rest")
    assert plan.why.of(2) is Why.EXCEEDS_QUOTA
    assert "cannot be preempted" in plan.why.evidence[2]


def test_a_queue_that_lends_nothing_gives_the_reason_that_it_always_gave() -> None:
    live = a_cluster_with(QueueSet("a", 1))
    live.submit("1", "a", 1, preemptible=False)
    live.submit("2", "a", 1, preemptible=False)
    assert live.decide().why.of(1) is Why.QUOTA


def test_it_starts_on_no_more_than_is_guaranteed_and_grows_no_further() -> None:
    live = a_cluster_with(QueueSet("a", 3, 5), policy="afs")
    live.submit("1", "a", 1, 8, preemptible=False)
    decide(live, ENOUGH)
    assert live.gpus("1") == 3, "it would never be made smaller"


def test_it_borrows_nothing_within_the_queue_that_its_own_is_in_either() -> None:
    live = a_cluster_with(*WITH_PARTS)
    live.submit("1", "vision", 1, preemptible=False)
    live.submit("2", "vision", 1, preemptible=False)  # the lab is guaranteed more, its part is not
    plan = live.decide()
    assert [live.gpus(name) for name in "12"] == [1, 0]
    assert plan.why.of(1) is Why.MAY_NOT_BORROW
    assert plan.why.evidence[1].startswith("queue vision ")


def test_nothing_is_given_back_for_a_job_that_would_borrow() -> None:
    live = a_cluster_with(*WITH_PARTS)
    live.submit("1", "vision", 1, preemptible=False)
    decide(live)
    for name in ("2", "3", "4", "5", "6", "7", "8"):
        live.submit(name, "other", 1)
    decide(live)
    assert live.held("other") == 7
    live.submit("9", "vision", 1, preemptible=False)  # within the lab's guarantee, beyond that of its part
    decide(live)
    assert (live.held("other"), live.gpus("9")) == (7, 0)


def test_what_it_needs_of_its_quota_is_given_back_to_it() -> None:
    live = a_cluster_with(QueueSet("a", 4, 4), QueueSet("b", 4, 4))
    for number in range(8):
        live.submit(f"{number + 1}", "b", 1)
    decide(live)
    for name in ("11", "12", "13"):
        live.submit(name, "a", 2, preemptible=False)
    decide(live, 4)
    assert (live.held("a"), live.held("b")) == (4, 4)


def test_jobs_of_no_queue_have_what_is_left_over_and_those_of_a_queue_without_a_quota_have_no_bounds() -> (
    None
):
    live = a_cluster_with(QueueSet("a", 6), QueueSet("free"), QueueSet("default", is_default=True))
    live.submit("1", "", 2, preemptible=False)
    live.submit("2", "", 1, preemptible=False)
    plan = live.decide()
    assert (live.gpus("1"), live.gpus("2")) == (2, 0)
    assert plan.why.of(1) is Why.MAY_NOT_BORROW
    live.end("1")
    live.submit("3", "free", 5, preemptible=False)
    decide(live)
    assert live.gpus("3") == 5


def test_a_job_that_runs_keeps_what_it_holds_when_a_quota_is_lowered() -> None:
    live = a_cluster_with(QueueSet("a", 4, 4), policy="afs")
    live.submit("1", "a", 1, 4, preemptible=False)
    decide(live, ENOUGH)
    assert live.gpus("1") == 4
    live.queue("a", 2, 2)
    live.submit("2", "a", 1, preemptible=False)
    decide(live, ENOUGH)
    assert (live.gpus("1"), live.gpus("2")) == (4, 0)


def test_decisions_of_an_older_log_come_out_as_they_did() -> None:
    live = a_cluster_with(QueueSet("a", 2, 6))
    live.scene.tell(Configured("fifo", priorities="preempt"))  # says nothing of quotas
    for number in range(8):
        live.submit(f"{number + 1}", "a", 1, preemptible=False)
    decide(live)
    assert live.held("a") == 8


Submission = tuple[str, int, int, int, bool, bool]
POLICIES = [name for name in policy_names() if name not in ("ones", "pollux", "drl")]


@settings(max_examples=scaled(60), deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    submissions=st.lists(
        st.tuples(
            st.sampled_from(["vision", "speech", "other", "lab"]),
            st.integers(1, 4),
            st.integers(0, 8),
            st.integers(-1, 1),
            st.booleans(),
            st.booleans(),
        ),
        max_size=10,
    ),
)
def test_what_cannot_be_taken_back_is_within_every_quota_around_it(
    policy: str, submissions: Sequence[Submission]
) -> None:
    live = a_cluster_with(*WITH_PARTS, policy=policy)
    for number, (queue, gpus, most, priority, preemptible, ends) in enumerate(submissions):
        live.submit(f"{number}", queue, gpus, most, priority=priority, preemptible=preemptible)
        live.decide()
        if ends:
            live.end(f"{number}")
        live.decide()
        fixed = {"lab": 0, "vision": 0, "speech": 0, "other": 0}
        for record in live.scene.state.open_jobs():
            if not record.job.preemptible:
                for name in {record.queue, "lab" if record.queue in ("vision", "speech") else record.queue}:
                    fixed[name] += record.accounting.held_gpus
        assert fixed["lab"] <= 4
        assert fixed["vision"] <= 1
        assert fixed["speech"] <= 3
        assert fixed["other"] <= 4
