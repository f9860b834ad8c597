from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.model import (
    Cluster,
    GpuType,
    InputError,
    Shares,
    Snapshot,
    Trigger,
    View,
    Why,
    cluster_of,
    digest,
)
from stretto.policies import load_policy
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.gavel.policy import Gavel, Objective
from stretto.policies.gavel.rounds import Account, pairs_by_priority
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, speeds_of
from stretto.testing.play import play

V_AND_K = cluster_of("v-and-k", (GpuType("v"), 1, 1), (GpuType("k"), 1, 1))
SMALL_AND_LARGE = cluster_of("mixed", (GpuType("small"), 1, 4), (GpuType("large"), 2, 8))


def asked(policy: Gavel, snapshot: Snapshot, per_s: Any) -> Shares:
    rates = np.array(per_s, dtype=np.float64)
    speeds = speeds_of(
        NO_CONFIGURATIONS, np.zeros((len(rates), 0)), types=rates.shape[1], requested_per_s=rates
    )
    return policy.allocate(snapshot.limited_to(policy.views), speeds)


def given_to(snapshot: Snapshot, shares: Shares) -> dict[str, str]:
    """The type of each job that is served."""
    names = snapshot.cluster.type_names
    return {
        snapshot.jobs.ids[row]: names[int(shares.kind[row])] for row in np.flatnonzero(shares.gpus).tolist()
    }


def jobs_on(cluster: Cluster, *gpus: int, **rest: Any) -> Snapshot:
    """Jobs 0, 1, 2, … that ask for these GPUs."""
    return a_snapshot(*(a_job(str(name), count) for name, count in enumerate(gpus)), cluster=cluster, **rest)


def test_the_first_round_follows_the_time_shares() -> None:
    snapshot = jobs_on(V_AND_K, 1, 1, 1)
    shares = asked(Gavel(), snapshot, [[40, 10], [12, 8], [100, 50]])
    assert given_to(snapshot, shares) == {"2": "v", "0": "k"}
    assert shares.memory.share.value == pytest.approx(110)
    assert shares.why.of(1) is Why.WORTH_LESS


@pytest.mark.parametrize(
    ("objective", "served"),
    [
        pytest.param(Objective.MAX_SUM_THROUGHPUT, {"0": "v", "1": "k"}, id="sum"),
        pytest.param(Objective.MAX_MIN_FAIRNESS, {"0": "v", "1": "k"}, id="min"),
        pytest.param(Objective.FINISH_TIME_FAIRNESS, {"0": "v", "1": "k"}, id="finish times"),
        pytest.param(Objective.MAKESPAN, {"0": "v", "1": "k"}, id="makespan"),
    ],
)
def test_every_objective_gives_each_job_the_type_that_suits_it(
    objective: Objective, served: dict[str, str]
) -> None:
    snapshot = jobs_on(V_AND_K, 1, 1, known_work=np.array([400.0, 200.0]))
    assert given_to(snapshot, asked(Gavel(objective), snapshot, [[4, 1], [1, 2]])) == served


def test_views_follow_the_objective() -> None:
    assert Gavel().views == {View.THROUGHPUT_TABLE}
    assert Gavel(Objective.MAX_MIN_FAIRNESS).views == {View.THROUGHPUT_TABLE}
    assert Gavel(Objective.MAKESPAN).views == {View.THROUGHPUT_TABLE, View.REMAINING_WORK}


def test_equal_jobs_take_turns() -> None:
    jobs = [a_job(name, at_s=0) for name in "abc"]
    rates = {name: [2.0] for name in "abc"}
    policy = load_policy("gavel", round_s=10.0)
    played = play(policy, dict.fromkeys("abc", 40.0), jobs, a_cluster(1), rates, until_s=61.0)
    turns = [next(iter(held)) for _, held in played.decisions]
    assert turns[:6] == ["a", "b", "c", "a", "b", "c"]


def test_time_is_given_in_proportion_to_the_shares() -> None:
    jobs = [a_job("a", weight=3.0), a_job("b")]
    policy = load_policy("gavel", round_s=10.0, objective="max-min-fairness")
    played = play(
        policy, dict.fromkeys("ab", 4_000.0), jobs, a_cluster(1), {"a": [1.0], "b": [1.0]}, until_s=2_000
    )
    rounds_of_a = sum("a" in held for _, held in played.decisions)
    assert rounds_of_a / len(played.decisions) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("head_start", [0.0, 0.5])
def test_who_received_nothing_goes_before_who_received_as_much_as_owed(head_start: float) -> None:
    policy = Gavel(head_start=head_start)
    first = jobs_on(a_cluster(1), 1)
    memory = asked(policy, first, [[1]]).memory
    two = jobs_on(a_cluster(1), 1, 1, allocations={"0": grant(0, n0=1)}, now_s=360.0, memory=memory)
    assert given_to(two, asked(policy, two, [[1], [1]])) == {"1": "gpu"}


def test_ties_go_to_the_pair_that_is_owed_most() -> None:
    account = Account(
        received_s=np.full((3, 1), 100.0),
        owed_s=np.array([[100.0], [150.0], [300.0]]),
        total_s=np.array([300.0]),
        isolated_s=np.zeros(3),
    )
    can_run = np.ones((3, 1), dtype=np.bool_)
    rows, _ = pairs_by_priority(np.array([[0.4], [0.4], [0.2]]), account, 0.0, can_run)
    assert rows.tolist() == [1, 0, 2]


def test_idle_gpus_go_also_to_jobs_without_a_share() -> None:
    snapshot = jobs_on(a_cluster(4), 3, 3, 1)
    shares = asked(Gavel(), snapshot, [[9], [1], [1]])
    assert shares.memory.share.fraction[:, 0] == pytest.approx([1, 0, 1])
    big = jobs_on(a_cluster(5), 4, 4, 1)
    shares = asked(Gavel(), big, [[9], [1.0], [0.0]])
    assert given_to(big, shares) == {"0": "gpu"}  # nobody runs at no speed
    assert shares.why.of(1) is Why.NO_FREE_GPUS
    assert shares.why.of(2) is Why.NOT_PROFILED


def test_the_programme_is_solved_again_only_when_jobs_speeds_or_gpus_change() -> None:
    snapshot = jobs_on(V_AND_K, 1, 1)
    first = asked(Gavel(), snapshot, [[4, 1], [3, 2]])
    later = replace(snapshot, now_s=360.0, memory=first.memory)
    assert asked(Gavel(), later, [[4, 1], [3, 2]]).memory.share is first.memory.share
    assert asked(Gavel(), later, [[4, 1], [3, 3]]).memory.share is not first.memory.share
    one_gone = jobs_on(V_AND_K, 1, now_s=360.0, memory=first.memory)
    assert asked(Gavel(), one_gone, [[4, 1]]).memory.share is not first.memory.share
    no_k = replace(later, usable=np.array([True, False]))
    assert given_to(no_k, asked(Gavel(), no_k, [[4, 1], [3, 2]])) == {"0": "v"}


def test_time_is_accounted_to_the_type_that_was_held_also_of_jobs_that_have_gone() -> None:
    first = asked(Gavel(head_start=0.5), jobs_on(V_AND_K, 1, 1), [[4, 1], [3, 2]])
    assert first.memory.account.total_s.tolist() == [360.0, 360.0]  # two head starts of half a round
    later = jobs_on(V_AND_K, 1, allocations={"0": grant(0, n0=1)}, now_s=300.0, memory=first.memory)
    account = asked(Gavel(head_start=0.5), later, [[4, 1]]).memory.account
    assert account.received_s.tolist() == [[480.0, 180.0]]
    assert account.total_s.tolist() == [660.0, 660.0]
    assert account.owed_s.tolist() == [[300.0, 0.0]]


def test_a_job_larger_than_a_type_may_book_time_on_it_but_never_runs_there() -> None:
    snapshot = jobs_on(SMALL_AND_LARGE, 8)
    per_s = [[np.nan, 0.05]]
    credited = asked(Gavel(too_large_per_s=0.1), snapshot, per_s)
    assert credited.memory.per_s.tolist() == [[0.1, 0.05]]
    assert given_to(snapshot, credited) == {"0": "large"}
    assert asked(Gavel(), snapshot, per_s).memory.per_s.tolist() == [[0.0, 0.05]]
    assert asked(
        Gavel(Objective.MAX_MIN_FAIRNESS, too_large_per_s=0.1), snapshot, per_s
    ).memory.per_s.tolist() == [[0.0, 0.05]]


def test_a_job_larger_than_every_type_is_told_so() -> None:
    snapshot = jobs_on(SMALL_AND_LARGE, 17, 1)
    shares = asked(Gavel(), snapshot, [[np.nan, np.nan], [1, 2]])
    assert shares.why.of(0) is Why.TOO_LARGE
    assert given_to(snapshot, shares) == {"1": "large"}


def test_jobs_run_only_on_types_that_they_accept() -> None:
    picky = a_job("0", gpu_types=("k",))
    snapshot = a_snapshot(picky, cluster=V_AND_K)
    assert given_to(snapshot, asked(Gavel(), snapshot, [[9, 1]])) == {"0": "k"}


def test_a_job_that_may_not_be_preempted_keeps_its_gpus_and_the_others_share_the_rest() -> None:
    jobs = [a_job("0", preemptible=False), a_job("1"), a_job("2")]
    snapshot = a_snapshot(*jobs, cluster=V_AND_K, allocations={"0": grant(0, n0=1)})
    shares = asked(Gavel(), snapshot, [[1, 1], [50, 5], [40, 6]])
    assert given_to(snapshot, shares) == {"0": "v", "2": "k"}
    assert shares.memory.capacity.tolist() == [0, 1]


def test_finish_time_fairness_counts_what_isolation_would_have_taken() -> None:
    policy = Gavel(Objective.FINISH_TIME_FAIRNESS)
    first = asked(policy, jobs_on(a_cluster(1), 1, 1, known_work=np.array([100.0, 100.0])), [[1], [1]])
    later = jobs_on(
        a_cluster(1), 1, 1, allocations={"0": grant(0, n0=1)}, now_s=40.0, memory=first.memory,
        known_work=np.array([60.0, 100.0]),
    )  # fmt: skip
    account = asked(policy, later, [[1], [1]]).memory.account
    assert account.isolated_s.tolist() == [80.0, 0.0]  # 40 steps at half a step per second


def test_its_memory_is_a_value() -> None:
    snapshot = jobs_on(V_AND_K, 1, 1)
    once, again = (asked(Gavel(), snapshot, [[4, 1], [3, 2]]).memory for _ in range(2))
    assert digest(once) == digest(again)
    assert digest(once) != digest(asked(Gavel(), snapshot, [[4, 1], [3, 1]]).memory)


def test_it_is_asked_at_rounds_only() -> None:
    assert Gavel().triggers.on == {Trigger.ROUND}
    assert Gavel().triggers.round_s == 360.0


@pytest.mark.parametrize("field", ["round_s", "head_start", "too_large_per_s"])
def test_knobs_must_make_sense(field: str) -> None:
    with pytest.raises(InputError, match=f"{field} must be"):
        load_policy("gavel", **{field: -1.0})
