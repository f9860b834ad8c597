from itertools import permutations
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import Durations, InputError, Reward, View
from stretto.policies import load_policy
from stretto.policies.hydra import Hydra, Problem, best_sequence, cost_of
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant, speeds_of
from stretto.testing.conformance import PROMISES
from stretto.testing.play import play
from stretto.testing.situations import Situation, situations


def two_jobs() -> Problem:
    """A takes 4 s and is due at 4, B takes 2 s and is due at 10, on one GPU."""
    return Problem(
        duration_s=np.array([[4.0], [2.0]]),
        gpus=np.array([1, 1]),
        due_s=np.array([4.0, 10.0]),
        age_s=np.zeros(2),
        models=("a", "b"),
        free_s=((0.0,),),
    )


def test_the_original_cost_puts_the_job_that_would_be_late_first() -> None:
    assert cost_of(two_jobs(), (0, 1), weight=2.0) == 10.0
    assert cost_of(two_jobs(), (1, 0), weight=2.0) == 12.0
    found = best_sequence(two_jobs(), weight=2.0, nodes=100)
    assert (found.start_s.tolist(), found.cost, found.proven) == ([0.0, 4.0], 10.0, True)


@pytest.mark.parametrize(("original", "first"), [(True, "a"), (False, "b")])
def test_in_unischeds_form_the_shorter_job_goes_first(original: bool, first: str) -> None:
    jobs = [a_job("a", rewards=(Reward(4.0, 100.0),)), a_job("b", rewards=(Reward(10.0, 100.0),))]
    policy = load_policy("hydra", original=original)
    played = play(policy, {"a": 4.0, "b": 2.0}, jobs, a_cluster(1), {"a": [1.0], "b": [1.0]})
    assert played.decisions[0][1] == {first: 1}


def test_jobs_with_a_deadline_go_before_best_effort_and_nobody_is_stopped() -> None:
    due = (Reward(1_000.0, 100.0),)
    jobs = [
        a_job("runs"),
        a_job("best-effort", at_s=1.0),
        a_job("due-long", at_s=2.0, rewards=due),
        a_job("due-short", at_s=3.0, rewards=due),
    ]
    duration_s = {"runs": 50.0, "best-effort": 1.0, "due-long": 20.0, "due-short": 10.0}
    played = play(Hydra(), duration_s, jobs, a_cluster(1))
    assert sorted(played.ended_s, key=played.ended_s.__getitem__) == [
        "runs",
        "due-short",
        "due-long",
        "best-effort",
    ]


def test_a_job_that_does_not_fit_is_passed() -> None:
    jobs = [a_job("runs", 3), a_job("wide", 2, at_s=1.0), a_job("narrow", at_s=2.0)]
    played = play(Hydra(), {"runs": 50.0, "wide": 5.0, "narrow": 9.0}, jobs, a_cluster(4))
    assert played.ended_s["narrow"] == 11.0


def test_the_original_sends_a_job_to_the_type_on_which_the_sum_is_least() -> None:
    problem = Problem(
        duration_s=np.array([[1.0, 1.5], [1.0, 9.0]]),  # both prefer type 0; the second needs it more
        gpus=np.array([1, 1]),
        due_s=np.full(2, inf),
        age_s=np.zeros(2),
        models=("a", "b"),
        free_s=((0.0,), (0.0,)),
    )
    found = best_sequence(problem, weight=1.0, nodes=100)
    assert (found.cost, found.kind.tolist()) == (2.5, [1, 0])


@settings(max_examples=scaled(60), deadline=None)
@given(
    duration_s=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    data=st.data(),
)
def test_no_order_of_jobs_on_one_type_is_cheaper(duration_s: list[int], data: st.DataObject) -> None:
    jobs = len(duration_s)
    column = st.lists(st.integers(1, 3), min_size=jobs, max_size=jobs)
    problem = Problem(
        duration_s=np.array(duration_s, dtype=np.float64)[:, None],
        gpus=np.array(data.draw(column)),
        due_s=np.array(data.draw(st.lists(st.integers(0, 20), min_size=jobs, max_size=jobs)), dtype=float),
        age_s=np.zeros(jobs),
        models=tuple("same" for _ in duration_s),
        free_s=((0.0, 1.0, 5.0),),
    )
    found = best_sequence(problem, weight=2.0, nodes=10_000)
    assert found.proven
    assert found.cost == min(cost_of(problem, order, 2.0) for order in permutations(range(jobs)))


def test_a_search_that_may_take_no_more_nodes_says_that_it_is_not_proven() -> None:
    problem = Problem(
        duration_s=np.array([[9.0], [8.0], [7.0], [1.0]]),
        gpus=np.array([1, 2, 1, 2]),
        due_s=np.array([9.0, 30.0, 1.0, 1.0]),
        age_s=np.zeros(4),
        models=("a", "b", "c", "d"),
        free_s=((0.0, 0.0),),
    )
    hurried = best_sequence(problem, weight=2.0, nodes=1)
    assert not hurried.proven
    assert hurried.cost >= best_sequence(problem, weight=2.0, nodes=1_000).cost


def test_lateness_weighs_more_the_more_of_it_there_is() -> None:
    """Two jobs of which only one can be in time; ω decides. Late jobs that run already raise it."""
    late = a_job("late", 4, rewards=(Reward(1.0, 100.0),))
    jobs = [late, a_job("due", at_s=80.0, rewards=(Reward(104.0, 100.0),)), a_job("short", at_s=80.0)]
    snapshot = a_snapshot(
        *jobs,
        cluster=a_cluster(5),
        allocations={"late": grant(0, n0=4)},
        now_s=100.0,
        known_estimates=Durations(np.array([500.0, 4.0, 2.0]), np.array([500.0, 4.0, 2.0])),
    )

    def first(weight: float) -> str:
        policy = Hydra(original=True, tardiness_weight=weight)
        speeds = speeds_of(policy.configurations(snapshot.cluster), np.zeros((3, 0)))
        shares = policy.allocate(snapshot, speeds)
        return next(job for job in ("due", "short") if shares.gpus[snapshot.jobs.ids.index(job)])

    # due, short: 4 + 6; short, due: 2 + 6 + ω·2, so due goes first where ω > 1; ω = weight · (1 + 99/140)
    assert (first(0.5), first(0.7)) == ("short", "due")


@pytest.mark.parametrize("wrong", [{"tardiness_weight": -1.0}, {"most_jobs": 0}, {"nodes": 0}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be"):
        load_policy("hydra", **wrong)


def test_only_the_original_measures_speeds() -> None:
    assert Hydra().views == {View.ESTIMATED_DURATION}
    assert Hydra(original=True).views == {View.ESTIMATED_DURATION, View.THROUGHPUT_TABLE}


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=scaled(20), deadline=None)
@given(situation=situations())
def test_the_original_keeps_the_promises_of_every_policy(promise: str, situation: Situation) -> None:
    PROMISES[promise](Hydra(original=True, most_jobs=4, nodes=50), situation)
