from math import inf

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.model import (
    Adaptivity,
    Cluster,
    GpuType,
    InputError,
    Job,
    JobId,
    MeasuredSpeeds,
    Reward,
    Shares,
    Snapshot,
    View,
    Why,
    cluster_of,
)
from stretto.policies import load_policy
from stretto.policies.common.speed_curves import Curve
from stretto.policies.elasticflow import ElasticFlow, Promises, levels_on
from stretto.solve.progressive_filling import filling_with, least_filling, slots_until
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, speeds_of
from stretto.testing.conformance import PROMISES
from stretto.testing.situations import Situation, situations

LEVELS, PER_S = np.array([1, 2, 4]), np.array([1.0, 1.5, 2.0])  # iterations a slot, by GPUs
TABLE = np.array([[np.nan, 1.0, 1.5, 1.75, 2.0]])
BY_SECONDS = ElasticFlow(slot_s=1.0)


def due(name: str, deadline_s: float = inf, at_s: float = 0.0) -> Job:
    rewards = (Reward(deadline_s, 1.0),) if deadline_s < inf else ()
    return a_job(name, 1, at_s=at_s, max_gpus=4, rewards=rewards)


def promises(admitted: tuple[str, ...], declined: tuple[str, ...]) -> Promises:
    return Promises(tuple(map(JobId, admitted)), tuple(map(JobId, declined)))


def asked(policy: ElasticFlow, snapshot: Snapshot) -> Shares:
    columns = policy.configurations(snapshot.cluster)
    blank = speeds_of(columns, np.ones((len(snapshot.jobs), len(columns))), types=len(snapshot.cluster.types))
    return policy.allocate(snapshot.limited_to(policy.views), blank)


def situation(work: list[tuple[Job, float]], cluster: Cluster | None = None, **rest: object) -> Snapshot:
    by_turn = sorted(work, key=lambda one: (one[0].submitted_s, one[0].id))
    cluster = cluster or a_cluster(4)
    per_s = np.tile(TABLE, (len(cluster.types), 1))
    return a_snapshot(
        *(job for job, _ in by_turn),
        cluster=cluster,
        known_work=np.array([left for _, left in by_turn]),
        known_tables=[MeasuredSpeeds(per_s, per_s)] * len(work),
        **rest,  # type: ignore[arg-type]
    )


def given_to(snapshot: Snapshot, shares: Shares) -> dict[str, int]:
    return {str(job): int(gpus) for job, gpus in zip(snapshot.jobs.ids, shares.gpus, strict=True)}


def test_the_minimum_satisfactory_share_is_the_fewest_gpus_that_meet_a_deadline() -> None:
    slots = slots_until(4.0, 1.0, alike=60, growth=0.1)
    free = np.full(4, 4)
    a = least_filling(LEVELS, PER_S, 3.0, free, slots.before(2.0))
    assert a is not None
    assert a.gpus.tolist() == [2, 2, 0, 0]
    b = least_filling(LEVELS, PER_S, 4.0, free - a.gpus, slots.before(4.0))
    assert b is not None
    assert b.gpus.tolist() == [1, 1, 1, 1]
    raised = filling_with(2, 1, LEVELS, PER_S, 4.0, free - a.gpus, slots.before(4.0))
    assert raised is not None
    assert raised.gpu_s - b.gpu_s == pytest.approx(1.3333, abs=1e-4)
    assert least_filling(LEVELS, PER_S, 5.0, free, slots.before(2.0)) is None  # C, even alone


def test_the_surplus_goes_to_the_job_with_a_later_deadline() -> None:
    snapshot = situation([(due("a", 2.0), 3.0), (due("b", 4.0), 4.0)])
    shares = asked(BY_SECONDS, snapshot)
    assert given_to(snapshot, shares) == {"a": 2, "b": 2}


def test_a_job_that_fits_beside_the_others_is_admitted_and_one_that_does_not_is_declined() -> None:
    work = [(due("a", 2.0), 3.0), (due("b", 4.0), 4.0), (due("d", 2.0), 3.0)]
    snapshot = situation(work)
    shares = asked(BY_SECONDS, snapshot)
    assert shares.memory == promises(("a", "b", "d"), ())
    assert given_to(snapshot, shares) == {"a": 2, "b": 0, "d": 2}
    assert shares.wake_s == 2.0  # when b's four GPUs come free

    with_c = situation([*work, (due("c", 2.0), 5.0)])
    assert asked(BY_SECONDS, with_c).memory == promises(("a", "b", "d"), ("c",))


def test_a_newcomer_may_not_cost_an_admitted_job_its_deadline() -> None:
    early = situation([(due("a", 2.0), 4.0)])
    memory = asked(BY_SECONDS, early).memory
    both = situation([(due("a", 2.0), 4.0), (due("z", 1.0, at_s=0.5), 1.0)], memory=memory)
    assert asked(BY_SECONDS, both).memory == promises(("a",), ("z",))


def test_what_was_promised_is_kept_however_sooner_the_deadline_of_another() -> None:
    snapshot = situation([(due("a", 3.0), 3.0), (due("z", 2.0), 4.0)], memory=promises(("a",), ("z",)))
    shares = asked(BY_SECONDS, snapshot)
    assert shares.memory == promises(("a",), ("z",))
    assert shares.gpus.tolist()[0] >= 1


def test_a_declined_job_is_served_from_the_surplus_or_never() -> None:
    snapshot = situation([(due("a", 2.0), 3.0), (due("c", 2.0), 5.0)])
    assert given_to(snapshot, asked(BY_SECONDS, snapshot)) == {"a": 2, "c": 2}
    dropping = asked(ElasticFlow(slot_s=1.0, drop=True), snapshot)
    assert given_to(snapshot, dropping) == {"a": 4, "c": 0}
    assert dropping.why.of(1) is Why.DECLINED


def test_without_deadlines_everybody_has_one_gpu_before_anybody_has_two() -> None:
    snapshot = situation([(due(name, at_s=at), 100.0) for at, name in enumerate("abc")])
    shares = asked(ElasticFlow(), snapshot)
    assert sorted(shares.gpus.tolist()) == [1, 1, 2]
    crowded = situation([(due(name, at_s=at), 100.0) for at, name in enumerate("abcdef")])
    assert asked(ElasticFlow(), crowded).gpus.tolist() == [1, 1, 1, 1, 0, 0]


def test_the_surplus_goes_where_gpu_time_grows_least() -> None:
    snapshot = situation([(due("long"), 100.0), (due("short", at_s=1.0), 10.0)], a_cluster(3))
    assert asked(ElasticFlow(), snapshot).gpus.tolist() == [1, 2]


def test_without_knowledge_of_what_is_left_all_jobs_are_alike_and_no_deadline_is_promised() -> None:
    blind = ElasticFlow(knows_work=False)
    assert blind.views == {View.THROUGHPUT_TABLE}
    snapshot = situation([(due("long"), 100.0), (due("short", 50.0, at_s=1.0), 10.0)], a_cluster(3))
    shares = asked(blind, snapshot)
    assert shares.gpus.tolist() == [2, 1]
    assert shares.memory == promises((), ())
    assert asked(ElasticFlow(), snapshot).memory == promises(("short",), ())


def test_counts_that_make_nothing_faster_are_not_given() -> None:
    levels = levels_on(Curve((1, 2, 3, 4, 8), (1.0, 1.5, 1.4, 1.5, 3.0)), 1)
    assert levels is not None
    assert levels.gpus.tolist() == [1, 2, 8]


def test_a_job_without_a_power_of_two_in_its_range_gets_what_it_asks_for() -> None:
    rigid = levels_on(Curve((12,), (1.0,)), 12)
    threes = levels_on(Curve((3, 6, 12), (1.0, 1.5, 2.0)), 6)
    assert rigid is not None
    assert threes is not None
    assert (rigid.gpus.tolist(), threes.gpus.tolist()) == ([12], [6])


def test_an_admitted_job_that_fell_behind_comes_before_other_best_effort_jobs() -> None:
    jobs = [(due("first"), 10.0), (due("late", 2.0, at_s=1.0), 50.0)]
    snapshot = situation(jobs, a_cluster(1), memory=promises(("late",), ()))
    assert asked(BY_SECONDS, snapshot).gpus.tolist() == [0, 1]


def test_a_running_job_keeps_its_type_and_a_waiting_one_takes_the_roomier() -> None:
    cluster = cluster_of("two", (GpuType("small"), 1, 1), (GpuType("large"), 1, 4))
    snapshot = situation(
        [(due("a"), 10.0), (due("b", at_s=1.0), 10.0)], cluster, allocations={"a": grant(0, n0=1)}
    )
    shares = asked(ElasticFlow(), snapshot)
    assert shares.kind.tolist() == [0, 1]
    assert shares.gpus.tolist() == [1, 4]


def test_a_large_rigid_job_at_the_head_stops_those_behind_it() -> None:
    rigid = a_job("big", 4, at_s=0.0, adaptivity=Adaptivity.RIGID)
    snapshot = situation([(rigid, 10.0), (due("a", at_s=1.0), 10.0)], allocations={"a": grant(0, n0=1)})
    assert asked(ElasticFlow(), snapshot).gpus.tolist() == [4, 0]


def test_slots_reach_the_horizon_and_grow_behind_the_first_ones() -> None:
    slots = slots_until(30 * 86_400.0, 60.0, alike=60, growth=0.1)
    assert slots.length_s.sum() >= 30 * 86_400
    assert slots.length_s[:60].tolist() == [60.0] * 60
    assert len(slots.length_s) < 200
    assert len(slots_until(7_200.0, 60.0, alike=60, growth=0.0).length_s) == 120
    assert slots.before(90.0)[:3].tolist() == [60.0, 30.0, 0.0]


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(InputError, match=r"policy\.slot_s must be > 0, got 0"):
        load_policy("elasticflow", slot_s="0")
    with pytest.raises(InputError, match="slot_growth"):
        load_policy("elasticflow", slot_growth="-1")


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=10, deadline=None)
@given(situation=situations())
def test_its_variants_keep_every_promise(promise: str, situation: Situation) -> None:
    for policy in [ElasticFlow(drop=True), ElasticFlow(slot_growth=0.0, slot_s=30.0)]:
        PROMISES[promise](policy, situation)
