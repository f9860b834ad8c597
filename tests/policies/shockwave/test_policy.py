from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from stretto.model import Durations, InputError, Shares, Snapshot, every
from stretto.policies import load_policy
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.shockwave.policy import Shockwave
from stretto.policies.shockwave.window import BREAKPOINTS, ORIGIN, Window, best_rounds, timetable
from stretto.testing.builders import a_cluster, a_job, a_snapshot, speeds_of
from stretto.testing.conformance import PROMISES
from stretto.testing.play import play
from stretto.testing.situations import Situation, situations


def window(rounds: int, gpus: int, jobs: list[tuple[int, float, float]], weight: Any = None) -> Window:
    """Rounds of a second; jobs as (GPUs asked for, part done, duration in rounds)."""
    asked, done, duration = (np.array(column) for column in zip(*jobs, strict=True))
    ones = np.ones(len(jobs)) if weight is None else np.array(weight, dtype=np.float64)
    return Window(rounds, 1.0, gpus, asked.astype(np.int64), done, duration.astype(np.float64), ones)


def solved(problem: Window, lateness_cost: float = 0.0, least: Any = None) -> list[int] | None:
    progress = np.zeros(len(problem.asked)) if least is None else np.array(least, dtype=np.float64)
    found = best_rounds(problem, lateness_cost, progress, nodes=1_000, gap=0.0)
    return None if found is None else found.rounds.tolist()


def worth(problem: Window, rounds: Any, lateness_cost: float) -> float:
    """The objective of some numbers of rounds, straight from its definition."""
    progress = np.minimum(np.array(rounds) / problem.duration_s, 1.0 - problem.done)
    logs = np.interp(problem.done + progress, BREAKPOINTS, np.log(np.maximum(BREAKPOINTS, ORIGIN)))
    late = max(float((problem.remaining_s - progress * problem.duration_s).max()), 0.0)
    return float((problem.weight * logs).mean()) / problem.rounds - lateness_cost * late


def asked(policy: Shockwave, snapshot: Snapshot) -> Shares:
    types = len(snapshot.cluster.types)
    rates = np.ones((len(snapshot.jobs), types))
    speeds = speeds_of(NO_CONFIGURATIONS, np.zeros((len(rates), 0)), types=types, requested_per_s=rates)
    return policy.allocate(snapshot.limited_to(policy.views), speeds)


def lasting(gpus: int, *jobs: tuple[int, float, float], **rest: Any) -> Snapshot:
    """Jobs a second apart that ask for some GPUs, take so long and have so much left."""
    named = [a_job(f"j{at}", size, at_s=float(at)) for at, (size, _, _) in enumerate(jobs)]
    durations = Durations(np.array([long for _, long, _ in jobs]), np.array([left for _, _, left in jobs]))
    return a_snapshot(
        *named,
        cluster=a_cluster(gpus),
        known_durations=durations,
        known_tables=[],
        **({"now_s": 10.0} | rest),
    )


def test_two_jobs_with_equal_progress_get_a_round_each() -> None:
    assert solved(window(2, 1, [(1, 0.25, 4.0), (1, 0.25, 4.0)])) == [1, 1]


@pytest.mark.parametrize("seed", range(6))
def test_no_other_numbers_of_rounds_are_worth_more(seed: int) -> None:
    draw = np.random.default_rng(seed)
    jobs = [
        (int(draw.choice([1, 2])), float(draw.uniform(0, 0.9)), float(draw.uniform(1, 8))) for _ in range(4)
    ]
    problem = window(3, 2, jobs, weight=draw.uniform(0.5, 3.0, 4))
    cost = float(draw.choice([0.0, 1e-3, 0.1]))
    feasible = [rounds for rounds in product(range(4), repeat=4) if np.dot(rounds, problem.asked) <= 2 * 3]
    best = max(worth(problem, rounds, cost) for rounds in feasible)
    assert worth(problem, solved(problem, cost), cost) == pytest.approx(best, abs=1e-6)


def test_a_cost_of_lateness_favours_the_longest_job() -> None:
    problem = window(2, 1, [(1, 0.0, 2.0), (1, 0.5, 40.0)])
    assert solved(problem, 0.0) == [2, 0]
    assert solved(problem, 10.0) == [0, 2]


def test_fairness_rows_come_before_worth_and_may_be_impossible() -> None:
    problem = window(2, 1, [(1, 0.0, 2.0), (1, 0.5, 40.0)])
    assert solved(problem, 0.0, least=[0.0, 0.02]) == [1, 1]
    assert solved(problem, 0.0, least=[1.0, 0.02]) is None
    assert solved(problem, 0.0, least=[0.0, 0.5]) is None  # more than the window has


def test_the_timetable_serves_the_urgent_first_and_never_too_many() -> None:
    rounds, sizes = np.array([2, 1, 2]), np.array([1, 2, 1])
    runs = timetable(rounds, sizes, gpus=2, window=3, urgency=np.array([1.0, 1.0, 9.0]))
    assert runs.astype(int).tolist() == [[1, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert ((runs * sizes[:, None]).sum(axis=0) <= 2).all()


def test_a_plan_is_followed_until_a_job_comes_or_goes() -> None:
    policy = Shockwave(round_s=10.0, window=4)
    first = asked(policy, lasting(1, (1, 40.0, 40.0), (1, 40.0, 40.0)))
    same = asked(policy, lasting(1, (1, 40.0, 40.0), (1, 40.0, 30.0), memory=first.memory, now_s=20.0))
    assert same.memory.planned_s == first.memory.planned_s
    assert same.memory.plan.tolist() == first.memory.plan.tolist()
    three = lasting(1, (1, 40.0, 40.0), (1, 40.0, 30.0), (1, 5.0, 5.0), memory=first.memory, now_s=20.0)
    assert asked(policy, three).memory.planned_s == 20.0
    over = lasting(1, (1, 40.0, 40.0), (1, 40.0, 30.0), memory=first.memory, now_s=50.0)
    assert asked(policy, over).memory.planned_s == 50.0


def test_idle_gpus_go_to_the_job_with_the_longest_time_left() -> None:
    policy = Shockwave(most_jobs=1)
    shares = asked(policy, lasting(2, (1, 10.0, 10.0), (1, 500.0, 400.0), (1, 500.0, 450.0)))
    planned = int(shares.memory.plan.any(axis=1).argmax())
    others = sorted({0, 1, 2} - {planned}, key=lambda row: -[10.0, 400.0, 450.0][row])
    assert shares.gpus[planned] == 1
    assert shares.gpus[others[0]] == 1


def test_a_job_that_is_late_beyond_what_is_fair_goes_first() -> None:
    policy = Shockwave(round_s=10.0, window=2, lateness_cost=0.0)
    jobs = [a_job("old", 1, at_s=0.0), a_job("new", 1, at_s=9_990.0)]
    durations = Durations(np.array([100.0, 100.0]), np.array([95.0, 100.0]))
    snapshot = a_snapshot(
        *jobs, cluster=a_cluster(1), known_durations=durations, known_tables=[], now_s=10_000.0
    )
    assert asked(policy, snapshot).gpus.tolist() == [1, 0]


def test_everybody_ends_and_equal_jobs_end_about_together() -> None:
    jobs = [a_job(name) for name in "abcd"]
    played = play(
        Shockwave(round_s=10.0),
        dict.fromkeys("abcd", 100.0),
        jobs,
        a_cluster(2),
        {name: [1.0] for name in "abcd"},
    )
    assert max(played.ended_s.values()) == pytest.approx(10.0 + 200.0)  # the first round comes at 10 s


def test_it_asks_at_rounds_and_refuses_wrong_parameters() -> None:
    assert Shockwave().triggers == every(360.0)
    with pytest.raises(InputError, match="window must be >= 1, got 0"):
        load_policy("shockwave", window="0")
    with pytest.raises(InputError, match="lateness_cost must be >= 0, got -1"):
        load_policy("shockwave", lateness_cost="-1")


@pytest.mark.parametrize("promise", PROMISES)
@settings(max_examples=10, deadline=None)
@given(situation=situations())
def test_its_variants_keep_every_promise(promise: str, situation: Situation) -> None:
    for policy in [
        Shockwave(window=3, most_jobs=2),
        Shockwave(round_s=120.0, lateness_cost=0.0, unfair_power=12.0),
    ]:
        PROMISES[promise](policy, situation)
