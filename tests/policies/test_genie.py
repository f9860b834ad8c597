from math import inf
from typing import Any

import numpy as np
import pytest

from stretto.model import (
    Adaptivity,
    Durations,
    InputError,
    Job,
    MeasuredSpeeds,
    Reward,
    Shares,
    Why,
    no_speeds,
)
from stretto.policies import load_policy
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.policies.genie import Genie, laxity
from stretto.testing.builders import a_cluster, a_job, a_snapshot, grant

SCALING = MeasuredSpeeds(  # per second on 0 to 8 GPUs of one node, and of several
    np.array([[np.nan, 1.0, 1.9, 2.7, 3.4, 4.0, 4.5, 4.9, 5.2]]),
    np.array([[np.nan, np.nan, 1.0, 1.4, 1.8, 2.2, 2.5, 2.7, 2.9]]),
)


def decided(
    *jobs: Job, remaining_s: list[float], nodes: tuple[int, ...] = (8,), now_s: float = 0.0, **rest: Any
) -> tuple[Shares, dict[str, int]]:
    """What GENIE decides, by job; jobs in the order of their submission."""
    estimates = Durations(np.array(remaining_s), np.array(remaining_s))
    snapshot = a_snapshot(
        *jobs,
        cluster=a_cluster(*nodes),
        now_s=now_s,
        known_estimates=estimates,
        known_tables=[SCALING] * len(jobs),
        **rest,
    )
    policy = Genie()
    shares = policy.allocate(snapshot.limited_to(policy.views), no_speeds(len(jobs), 1, NO_CONFIGURATIONS))
    return shares, {job: int(gpus) for job, gpus in zip(snapshot.jobs.ids, shares.gpus, strict=True)}


def due(name: str, gpus: int, at_s: float, deadline_s: float, elastic: bool = False) -> Job:
    kind = Adaptivity.STRONG_SCALING if elastic else Adaptivity.RIGID
    return a_job(name, gpus, at_s, rewards=(Reward(deadline_s, 100.0),), adaptivity=kind)


def test_the_job_with_less_laxity_goes_first() -> None:
    assert laxity(np.array([100.0, 80.0]), 0.0, np.array([50.0, 60.0])).tolist() == [50.0, 20.0]
    _, gpus = decided(due("a", 8, 0.0, 100.0), due("b", 8, 0.0, 80.0), remaining_s=[50.0, 60.0])
    assert gpus == {"a": 0, "b": 8}


def test_a_job_gets_the_fewest_gpu_seconds_that_meet_its_deadline() -> None:
    """Remaining 100 s on 2 GPUs are 190 units: 190 s on 1, 100 s on 2, 56 s on 4 (3.4 units a second)."""
    for deadline_s, expected in ((200.0, 1), (120.0, 2), (60.0, 4)):
        _, gpus = decided(due("a", 2, 0.0, deadline_s, elastic=True), remaining_s=[100.0])
        assert gpus == {"a": expected}


def test_where_nothing_meets_the_deadline_the_fastest_within_twice_the_request_is_taken() -> None:
    _, gpus = decided(due("a", 2, 0.0, 10.0, elastic=True), remaining_s=[100.0])
    assert gpus == {"a": 4}


def test_a_job_is_not_spread_where_that_makes_it_late() -> None:
    """5 + 5 GPUs free: 8 spread GPUs take 179 s, 5 on one node 130 s."""
    elastic = due("a", 8, 0.0, 150.0, elastic=True)
    busy = [a_job("x", 3), a_job("y", 3)]
    held = {"x": grant(0, n0=3), "y": grant(0, n1=3)}
    shares, gpus = decided(elastic, *busy, remaining_s=[100.0, 1e6, 1e6], nodes=(8, 8), allocations=held)
    assert gpus["a"] == 5
    assert [len(pin.nodes) for pin in shares.pinned.values()] == [1]


def test_late_jobs_come_behind_punctual_ones_and_best_effort_last() -> None:
    jobs = [
        a_job("best-effort", 8),
        due("late", 8, 1.0, 20.0),
        due("punctual", 8, 2.0, 500.0),
    ]
    for waiting in (jobs, jobs[:2], jobs[:1]):
        _, gpus = decided(*waiting, remaining_s=[100.0] * len(waiting), now_s=10.0)
        assert gpus[waiting[-1].id] == 8


def test_nobody_is_stopped_and_what_does_not_fit_is_passed() -> None:
    jobs = [a_job("runs", 6), due("wide", 4, 1.0, 50.0), due("narrow", 2, 2.0, 900.0)]
    shares, gpus = decided(
        *jobs, remaining_s=[1e4, 40.0, 40.0], allocations={"runs": grant(0, n0=6)}, now_s=3.0
    )
    assert gpus == {"runs": 6, "wide": 0, "narrow": 2}
    assert shares.why.code.tolist() == [Why.RUNS, Why.NO_FREE_GPUS, Why.RUNS]


def test_best_effort_gets_what_it_asked_for() -> None:
    _, gpus = decided(a_job("a", 3, max_gpus=8), remaining_s=[10.0])
    assert gpus == {"a": 3}


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="most_times must be >= 1"):
        load_policy("genie", most_times=0.5)


def test_laxity_of_a_job_without_a_deadline_is_infinite() -> None:
    assert laxity(np.array([inf]), 5.0, np.array([1.0])).tolist() == [inf]
