from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import Durations, Goal, InputError, Job, Learning, Reward, every, no_speeds
from stretto.policies import load_policy
from stretto.policies.chronus.lease_plan import (
    choose_deadlines,
    fit_backward,
    fit_one,
    leases_before,
    leases_needed,
    rounded_up,
    safe_s,
)
from stretto.policies.chronus.policy import Chronus
from stretto.policies.common.admission import NO_CONFIGURATIONS
from stretto.testing.builders import a_cluster, a_job, a_snapshot
from stretto.testing.play import play
from stretto.traces.learning import LearningCurve

PLAIN = Chronus(profiling_s=0.0, margin=False, lease_s=600.0, be_lease_s=300.0)


def test_the_margin_grows_with_the_gpus_and_shrinks_with_the_lease() -> None:
    """One GPU, leases of 10 min: 1 + 0.05, times 1.1; 8 GPUs: 1 + 4 · 0.05, times 1.1."""
    assert safe_s(np.array([600.0, 600.0]), np.array([1, 8]), 600.0) == pytest.approx([693.0, 792.0])
    assert safe_s(np.array([600.0]), np.array([1]), 3_600.0) == pytest.approx([600.0 * (1 + 0.5 / 60) * 1.1])


def test_leases_are_counted_up_for_work_and_down_for_deadlines() -> None:
    assert leases_needed(np.array([0.0, 600.0, 601.0]), 600.0).tolist() == [1, 1, 2]
    assert leases_before(np.array([1_799.0, 1_800.0, 0.0]), 1, 600.0).tolist() == [1, 2, 0]


def test_requests_are_rounded_up_to_cells_that_consolidate() -> None:
    assert rounded_up(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 20]), 8).tolist() == [
        1, 2, 4, 4, 8, 8, 8, 8, 16, 24,
    ]  # fmt: skip


def test_backward_fit_takes_the_latest_leases_and_larger_jobs_first() -> None:
    """8 GPUs, 4 leases. The job of 8 takes leases 2 and 3; that of 4, due after 3, is left 0 and 1."""
    fitted = fit_backward(np.full(4, 8), np.array([4, 8]), np.array([1, 2]), np.array([3, 4]))
    assert (fitted.fits.tolist(), fitted.now.tolist()) == ([True, True], [False, False])
    assert fitted.free.tolist() == [8, 4, 0, 0]


def test_what_has_no_room_before_its_deadline_does_not_fit() -> None:
    fitted = fit_backward(np.full(2, 8), np.array([8, 8]), np.array([2, 1]), np.array([2, 2]))
    assert fitted.fits.tolist() == [False, True] or fitted.fits.tolist() == [True, False]
    assert fit_one(np.array([0, 8]), 8, 2, 2) is None
    left = fit_one(np.array([8, 8]), 4, 1, 2)
    assert left is not None
    assert left.tolist() == [8, 4]


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_programme_keeps_the_deadlines_that_are_worth_most(unit: float) -> None:
    """One node of 8. A: 8 GPUs, 2 leases of 2, strict. B: 8 GPUs, 1 lease; soft: 2 → 100, 3 → 80."""
    found = choose_deadlines(
        free=np.full(3, 8),
        gpus=np.array([8, 8]),
        needs=np.array([2, 1]),
        before=np.array([[2, 0], [2, 3]]),
        reward=unit * np.array([[100.0, 0.0], [100.0, 80.0]]),
        periods=12,
        nodes=100,
    )
    assert found is not None
    assert (found.step.tolist(), found.now.tolist()) == ([0, 1], [True, False])
    assert found.value / unit == pytest.approx(180.0)
    assert found.proven


@settings(max_examples=scaled(40), deadline=None)
@given(data=st.data(), jobs=st.integers(1, 5), leases=st.integers(2, 6))
def test_the_programme_is_worth_no_less_than_the_greedy_plan(
    data: st.DataObject, jobs: int, leases: int
) -> None:
    """With a period for every deadline, nothing that leases can hold is out of the programme's reach."""

    def drawn(most: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(1, most), min_size=jobs, max_size=jobs)))

    gpus, needs, before, free = 2 ** (drawn(4) - 1), drawn(leases), drawn(leases), np.full(leases, 8)
    greedy = fit_backward(free, gpus, needs, before)
    reward = np.where(needs <= before, 100.0, 0.0)[:, None]
    found = choose_deadlines(free, gpus, needs, before[:, None], reward, periods=leases + 2, nodes=1_000)
    assert found is not None
    assert found.value >= 100.0 * greedy.fits.sum()


# The first lease of these begins at 600 s: a world without physics first asks at the next multiple of 300 s.
AT_S = 301.0


def due(name: str, gpus: int, *after_s: float) -> Job:
    """A job with deadlines counted from its first lease, worth 100, 80, …"""
    rewards = tuple(Reward(600.0 + seconds, 100.0 - 20.0 * step) for step, seconds in enumerate(after_s))
    return a_job(name, gpus, AT_S, rewards=rewards)


def ends(
    duration_s: dict[str, float], *jobs: Job, policy: Chronus = PLAIN, gpus: int = 8
) -> dict[str, float]:
    """When each job ends, seconds from the first lease."""
    played = play(policy, duration_s, jobs, a_cluster(gpus))
    return {job: end_s - 600.0 for job, end_s in played.ended_s.items()}


def test_a_promised_job_runs_ahead_of_its_lease_where_nobody_is_without_a_promise() -> None:
    found = ends({"slo": 500.0, "be": 250.0}, due("slo", 8, 1_800.0), a_job("be", 8, AT_S))
    assert found == {"slo": 500.0, "be": 850.0}


def test_where_somebody_is_promised_jobs_wait_for_their_lease_and_the_gap_is_used() -> None:
    """`late` needs two leases before 1,190 s, which holds one: no promise, but it is in time in the gap."""
    found = ends({"slo": 500.0, "late": 1_100.0}, due("slo", 8, 3_000.0), due("late", 8, 1_190.0))
    assert found["late"] == 1_100.0
    assert 1_100.0 < found["slo"] <= 3_000.0


def test_best_effort_gets_the_gap_before_promised_jobs_while_somebody_is_without_a_promise() -> None:
    jobs = (due("slo", 8, 3_000.0), due("narrow", 1, 590.0), a_job("be", 4, AT_S))
    found = ends({"slo": 500.0, "narrow": 580.0, "be": 250.0}, *jobs)
    assert (found["narrow"], found["be"]) == (580.0, 250.0)
    assert found["slo"] <= 3_000.0


def test_a_soft_job_is_promised_a_later_deadline_where_the_first_is_taken() -> None:
    jobs = (due("a-strict", 8, 1_200.0), due("b-soft", 8, 1_200.0, 2_400.0))
    found = ends({"a-strict": 1_200.0, "b-soft": 1_100.0}, *jobs)
    assert found["a-strict"] == 1_200.0
    assert 1_200.0 < found["b-soft"] <= 2_400.0


def test_a_promise_is_kept_against_jobs_that_come_later() -> None:
    """`early` was promised its leases; `later` is due sooner, but does not fit beside it."""
    later = a_job("later", 8, AT_S + 1, rewards=(Reward(1_800.0, 100.0),))
    found = ends({"early": 1_200.0, "later": 600.0}, due("early", 8, 1_250.0), later)
    assert found["early"] <= 1_250.0


def test_without_deadlines_it_is_smallest_remaining_service_first_by_leases() -> None:
    jobs = (a_job("long", 1, AT_S), a_job("short", 1, AT_S + 300))
    assert ends({"long": 1_000.0, "short": 100.0}, *jobs, gpus=1) == {"short": 400.0, "long": 1_300.0}


def test_new_jobs_take_turns_on_the_gpus_for_profiling() -> None:
    """16 GPUs, an eighth set aside: two jobs of one GPU at a time, 300 s each; the third waits for a turn."""
    policy = Chronus(margin=False)
    jobs = [a_job(name, at_s=float(at)) for at, name in enumerate("abc")]
    played = play(policy, dict.fromkeys("abc", 100.0), jobs, a_cluster(2, 2, 4, 4, 4))
    started: dict[str, float] = {}
    for at_s, held in played.decisions:
        started |= {job: at_s for job in held if job not in started}
    assert started == {"a": 300.0, "b": 600.0, "c": 600.0}  # ready at 300, 301 and 600 s


def test_a_job_that_needs_the_gpus_for_profiling_gets_them() -> None:
    played = play(Chronus(), {"all": 100.0}, [a_job("all", 16)], a_cluster(2, 2, 4, 4, 4))
    assert played.ended_s["all"] < inf


def test_a_goal_is_believed_to_take_all_epochs_allowed_unless_the_curve_says_otherwise() -> None:
    """8 of 40 epochs took 800 s; the metric nears 0.9 and the goal of 0.85 is near. Due in 2,000 s."""
    curve = LearningCurve(epochs=40, dataset_samples=1.0, knee=1.0, pace=2.0)
    goal = Goal(metric=float(curve.metrics[9]), most_epochs=40)
    job = a_job("a", 8, goal=goal, rewards=(Reward(2_000.0, 100.0),))
    reported = Learning(
        samples=np.array([8.0]),
        dataset_samples=np.ones(1),
        initial_loss=np.array([2.3]),
        loss=np.array([0.3]),
        metric=curve.metrics[7:8],
        history=[curve.metrics[:8]],
    )
    snapshot = a_snapshot(
        job,
        cluster=a_cluster(8),
        known_estimates=Durations(np.array([1_000.0]), np.array([200.0])),
        known_learning=reported,
    )

    def promised(policy: Chronus) -> bool:
        shares = policy.allocate(snapshot, no_speeds(1, 1, NO_CONFIGURATIONS))
        return bool(shares.memory.step[0] >= 0)

    assert not promised(replace(PLAIN, estimator=False))
    assert promised(replace(PLAIN, estimator=True))


def test_it_is_asked_at_the_end_of_every_best_effort_lease() -> None:
    triggers = load_policy("chronus").triggers
    assert triggers == every(300.0)


@pytest.mark.parametrize(
    "wrong",
    [{"lease_s": 700.0}, {"be_lease_s": 0.0}, {"profiling_s": -1.0}, {"periods": 2}, {"nodes": 0}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        load_policy("chronus", **wrong)
