from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.model import (
    ON_CHANGE,
    Cluster,
    Durations,
    GpuType,
    InputError,
    MeasuredSpeeds,
    Shares,
    Snapshot,
    View,
    cluster_of,
    every,
)
from stretto.policies import load_policy
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.gavel.programs import finish_time_fairness
from stretto.policies.themis import Leases, Themis, fair_on_one_type, finish_time_ratio, partial_allocation
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, speeds_of
from stretto.testing.conformance import PROMISES
from stretto.testing.play import play
from stretto.testing.situations import Situation, situations

AUCTION = Themis(auction=True)


def asked(policy: Themis, snapshot: Snapshot, per_s: Any = None) -> Shares:
    types = len(snapshot.cluster.types)
    rates = np.ones((len(snapshot.jobs), types)) if per_s is None else np.array(per_s, dtype=np.float64)
    speeds = speeds_of(NO_CONFIGURATIONS, np.zeros((len(rates), 0)), types=types, requested_per_s=rates)
    return policy.allocate(snapshot.limited_to(policy.views), speeds)


def lasting(cluster: Cluster, remaining_s: dict[str, float], gpus: int = 1, **rest: Any) -> Snapshot:
    """Jobs of these times left, a second apart, at 100 s unless told otherwise."""
    jobs = [a_job(name, gpus, at_s=float(at)) for at, name in enumerate(remaining_s)]
    left_s = np.array(list(remaining_s.values()))
    known: dict[str, Any] = {
        "known_durations": Durations(left_s, left_s),
        "known_tables": [],
        "known_work": left_s,
    }
    return a_snapshot(*jobs, cluster=cluster, **({"now_s": 100.0} | known | rest))


def test_the_finish_time_ratio_falls_with_every_gpu_more() -> None:
    remaining_s = 800.0 / np.array([1, 2, 4])
    assert finish_time_ratio(np.full(3, 100.0), remaining_s, np.full(3, 500.0)) == pytest.approx(
        [1.8, 1.0, 0.6]
    )


def test_two_bidders_for_four_gpus_keep_one_each_after_payments() -> None:
    value = np.array([[1.0, 1.5], [0.8, 1.0]])
    won = partial_allocation(value, np.array([0.25, 0.5]), np.array([2, 4]), np.array([0, 0]), np.array([4]))
    assert won.column.tolist() == [0, 0]
    assert won.part == pytest.approx([0.8, 0.6667], abs=1e-4)
    assert np.floor(won.part * 2).tolist() == [1, 1]  # and two are left over


def test_without_the_auction_it_asks_in_rounds_and_with_it_when_gpus_come_free() -> None:
    assert Themis().triggers == every(360.0)
    assert Themis().views == {View.THROUGHPUT_TABLE, View.REMAINING_WORK}
    assert AUCTION.triggers == ON_CHANGE
    assert AUCTION.views == {View.THROUGHPUT_TABLE, View.ORACLE_DURATION}
    assert View.ESTIMATED_DURATION in Themis(auction=True, estimated=True).views


def test_it_believes_estimates_where_it_is_told_no_more() -> None:
    policy = Themis(estimated=True)
    assert policy.views == {View.THROUGHPUT_TABLE, View.ESTIMATED_DURATION}
    per_s = np.array([[np.nan, 1.0]])
    for left_s in ([10.0, 1_000.0], [1_000.0, 10.0]):
        told = np.array(left_s)
        tables = [MeasuredSpeeds(per_s, per_s)] * 2
        believed = lasting(
            a_cluster(1),
            {"a": 500.0, "b": 500.0},
            known_estimates=Durations(told, told),
            known_tables=tables,
        )
        exact = lasting(a_cluster(1), dict(zip("ab", left_s, strict=True)), known_tables=tables)
        assert asked(policy, believed).gpus.tolist() == asked(Themis(), exact).gpus.tolist()
        # One GPU for two jobs that came together: the shorter one is further from a fair finish.
        assert asked(policy, believed).gpus.tolist() == [
            int(left_s[0] < left_s[1]),
            int(left_s[1] < left_s[0]),
        ]


@pytest.mark.parametrize("seed", range(5))
def test_on_one_type_the_bisection_agrees_with_the_linear_programmes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    jobs = 12
    gpus = draw.choice([1, 2, 4], jobs)
    per_s, remaining = draw.uniform(0.5, 4.0, jobs), draw.uniform(10.0, 5_000.0, jobs)
    age_s = draw.uniform(0.0, 2_000.0, jobs)
    isolated_s = remaining / (per_s * np.minimum(8 / (jobs * gpus), 1.0)) + age_s / 3
    by_programme = finish_time_fairness(per_s[:, None], gpus, np.array([8]), age_s, remaining, isolated_s)
    fraction, ratio = fair_on_one_type(remaining / per_s, gpus, 8, age_s, isolated_s)
    assert ratio == pytest.approx(by_programme.value, rel=1e-3)
    assert (fraction <= 1).all()
    assert (gpus * fraction).sum() == pytest.approx(min(8, gpus.sum()))
    assert ((age_s + remaining / per_s / fraction) / isolated_s <= ratio * (1 + 1e-9)).all()


def test_a_job_that_is_new_and_has_nothing_left_to_do_does_not_keep_the_search_without_end() -> None:
    nothing = np.zeros(1)
    fraction, ratio = fair_on_one_type(nothing, np.array([7]), 2, nothing, np.array([634.0]))
    assert fraction.tolist() == [2 / 7]
    assert ratio == pytest.approx(0.0)


def test_on_several_types_it_is_gavels_programme() -> None:
    cluster = cluster_of("v-and-k", (GpuType("v"), 1, 1), (GpuType("k"), 1, 1))
    snapshot = lasting(cluster, {"a": 400.0, "b": 200.0})
    shares = asked(Themis(), snapshot, [[4, 1], [1, 2]])
    assert shares.kind.tolist() == [0, 1]


def test_equal_jobs_take_turns() -> None:
    jobs = [a_job(name) for name in "abc"]
    played = play(
        Themis(round_s=10.0),
        dict.fromkeys("abc", 40.0),
        jobs,
        a_cluster(1),
        {name: [1.0] for name in "abc"},
        until_s=61.0,
    )
    turns = [next(iter(held)) for _, held in played.decisions]
    assert sorted(turns[:3]) == ["a", "b", "c"]
    assert sorted(turns[3:6]) == ["a", "b", "c"]


def test_the_job_that_fares_worst_is_offered_the_gpus() -> None:
    snapshot = lasting(a_cluster(1), {"short": 10.0, "long": 1_000.0})
    assert asked(AUCTION, snapshot).gpus.tolist() == [1, 0]  # 100 s late is much for 10 s, little for 1000


def test_a_lease_protects_and_its_end_does_not() -> None:
    work = {"short": 10.0, "long": 1_000.0}
    held = {"long": grant(0, n0=1)}
    leased = Leases(((a_job("long").id, 150.0),))
    kept = asked(AUCTION, lasting(a_cluster(1), work, allocations=held, memory=leased))
    assert kept.gpus.tolist() == [0, 1]
    assert kept.wake_s == 150.0
    ended = asked(AUCTION, lasting(a_cluster(1), work, allocations=held, memory=leased, now_s=150.0))
    assert ended.gpus.tolist() == [1, 0]
    assert ended.wake_s == 150.0 + 1_200.0


def test_leftovers_go_to_those_that_were_not_asked() -> None:
    snapshot = lasting(a_cluster(3), dict.fromkeys("abcd", 100.0))
    assert asked(AUCTION, snapshot).gpus.sum() == 3


def test_only_so_many_bid_however_many_wait() -> None:
    snapshot = lasting(a_cluster(8), {f"j{at}": 100.0 + at for at in range(60)})
    one = asked(Themis(auction=True, most_bidders=1, fairness_knob=0.0), snapshot)
    assert one.gpus[np.argmax((100.0 - np.arange(60) + 100 + np.arange(60)) / (100 + np.arange(60)))] == 1
    assert one.gpus.sum() == 8


def test_an_elastic_winner_pays_with_a_part_of_its_gpus() -> None:
    jobs = [a_job("a", 4, min_gpus=1), a_job("b", 4, at_s=1.0, min_gpus=1)]
    left_s = np.array([500.0, 500.0])
    snapshot = a_snapshot(
        *jobs,
        cluster=a_cluster(4),
        now_s=100.0,
        known_durations=Durations(left_s, left_s),
        known_tables=[],
    )
    shares = asked(Themis(auction=True, fairness_knob=0.0, lease_s=600.0), snapshot)
    # Without the winner the other's ρ would be 600 / T instead of 1200 / T: half of the four GPUs are paid.
    assert shares.gpus.tolist() == [2, 2]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(InputError, match=r"policy\.fairness_knob must be >= 0 and <= 1, got 2"):
        load_policy("themis", fairness_knob="2")
    with pytest.raises(InputError, match="lease_s must be > 0"):
        load_policy("themis", lease_s="0")


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=10, deadline=None)
@given(situation=situations())
def test_its_variants_keep_every_promise(promise: str, situation: Situation) -> None:
    for policy in [
        AUCTION,
        Themis(auction=True, estimated=True, fairness_knob=0.0),
        Themis(estimated=True),
    ]:
        PROMISES[promise](policy, situation)
