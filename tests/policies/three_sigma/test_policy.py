from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import InputError, Job, Reward
from stretto.policies import load_policy
from stretto.policies.three_sigma.options import (
    StartOptions,
    Utility,
    expected_utility,
    plan_starts,
    survival,
)
from stretto.policies.three_sigma.policy import (
    Histogram,
    ThreeSigma,
    best_known,
    given_elapsed,
    learned,
)
from stretto.testing.builders import a_cluster, a_job
from stretto.testing.play import Played, play

SUPPORT_S, HALF = np.array([[5.0, 15.0]]), np.array([[0.5, 0.5]])


def strict(due_s: float, value: float = 1.0) -> Utility:
    """Worth `value` until a deadline, and nearly nothing after it."""
    return Utility(np.array([[due_s]]), np.array([[value]]), np.zeros(1), np.full(1, 1e9), 0.0)


def test_expected_utility_is_the_chance_to_be_in_time() -> None:
    worth = expected_utility(SUPPORT_S, HALF, np.array([0.0, 6.0]), strict(10.0))
    assert worth.tolist() == [[0.5, 0.0]]


def test_a_job_is_expected_to_hold_its_gpus_with_the_chance_that_it_still_runs() -> None:
    assert survival(SUPPORT_S, HALF, np.array([0.0, 7.0, 20.0])).tolist() == [[1.0, 0.5, 0.0]]


def test_runtimes_that_a_job_has_outrun_are_left_out() -> None:
    """Of two jobs alike, one has run for 6 s, which is more than 5."""
    support_s = np.repeat(SUPPORT_S, 2, axis=0)
    left_s, probability = given_elapsed(support_s, HALF[0], np.array([6.0, 0.0]), 60.0)
    assert left_s.tolist() == [[0.0, 9.0], [5.0, 15.0]]
    assert probability.tolist() == [[0.0, 1.0], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("elapsed_s", "expected_s"), [(15.0, 75.0), (74.0, 75.0), (75.0, 195.0), (195.0, 435.0)]
)
def test_a_job_that_has_outrun_everything_is_given_twice_as_many_cycles_each_time(
    elapsed_s: float, expected_s: float
) -> None:
    """Longest 15 s, cycles of 60 s: 15 + 60, + 120 more, + 240 more."""
    left_s, probability = given_elapsed(SUPPORT_S, HALF[0], np.array([elapsed_s]), 60.0)
    assert left_s.tolist() == [[expected_s - elapsed_s, 0.0]]
    assert probability.tolist() == [[1.0, 0.0]]


def test_a_job_that_cannot_be_in_time_loses_its_worth_over_one_more_runtime() -> None:
    """Shortest 5 s, due at 2: its mean runtime is 10 s, so at 5 it has lost 0.3, at 15 all."""
    worth = expected_utility(SUPPORT_S, HALF, np.array([0.0]), strict(2.0))
    assert worth[0, 0] == pytest.approx(0.5 * 0.7)


def test_best_effort_loses_worth_the_later_it_ends_but_never_all() -> None:
    utility = Utility(np.zeros((1, 0)), np.zeros((1, 0)), np.array([-40.0]), np.array([100.0]), 2.0)
    point = np.ones((1, 1))
    worth = expected_utility(10.0 * point, point, np.array([0.0, 20.0, 1e6]), utility)
    assert worth[0] == pytest.approx([2 * 0.5, 2 * 0.3, 2 * 0.01])


def test_the_feature_that_has_erred_least_is_asked() -> None:
    """User u runs twice as long as estimated with any model; model m once as long, once four times."""
    history = learned({}, a_job("a", user="u", model="m"), 2.0)
    history = learned(history, a_job("b", user="u", model="x"), 2.0)
    history = learned(history, a_job("c", user="v", model="m"), 4.0)
    history = learned(history, a_job("d", user="v", model="m"), 1.0)
    best = best_known(history, a_job("e", user="u", model="m"))
    assert best.seen == pytest.approx([2.0], rel=0.05)
    assert best.probability == pytest.approx([1.0])


def test_estimates_are_believed_before_any_job_has_ended() -> None:
    best = best_known({}, a_job("a"))
    assert (best.seen.tolist(), best.probability.tolist()) == ([1.0], [1.0])


def test_a_histogram_knows_how_wrong_its_mean_was() -> None:
    seen = Histogram().with_ratio(1.0).with_ratio(2.0)
    assert seen.mean_error == pytest.approx((0.0 + 0.5) / 2)
    assert seen.mean == pytest.approx(1.5, rel=0.05)


@settings(max_examples=scaled(30), deadline=None)
@given(data=st.data(), jobs=st.integers(1, 4))
def test_no_choice_of_starts_is_worth_more_than_the_plan(data: st.DataObject, jobs: int) -> None:
    def drawn(low: int, high: int, count: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    slots = 3
    gpus, room = drawn(1, 3, jobs), np.sort(drawn(0, 5, slots)).astype(float)
    worth = np.sort(drawn(0, 9, jobs * slots).reshape(jobs, slots).astype(float), axis=1)[:, ::-1].copy()
    held = np.tile([1.0, 0.5, 0.25], (jobs, 1))
    options = StartOptions(worth, held, gpus, room, cost=np.array([2.0]), frees=np.ones((1, slots)))
    plan = plan_starts(options, nodes=1_000, gap=0.0)
    assert plan is not None

    def value(starts: tuple[int, ...], stop: bool) -> float | None:
        use = np.zeros(slots)
        for job, start in enumerate(starts):
            if start < slots:
                use[start:] += gpus[job] * held[job, : slots - start]
        if (use > room + stop + 1e-9).any():
            return None
        earned = sum(worth[job, start] for job, start in enumerate(starts) if start < slots)
        return float(earned - 2.0 * stop)

    best = max(
        found
        for starts in product(range(slots + 1), repeat=jobs)
        for stop in (False, True)
        if (found := value(starts, stop)) is not None
    )
    ours = value(tuple(int(slot) if slot >= 0 else slots for slot in plan.slot), bool(plan.stopped[0]))
    assert ours == pytest.approx(best)


def due(name: str, deadline_s: float, at_s: float = 0.0, gpus: int = 1) -> Job:
    return a_job(name, gpus, at_s, rewards=(Reward(deadline_s, 100.0),))


def played(duration_s: dict[str, float], *jobs: Job, gpus: int = 1) -> Played:
    return play(ThreeSigma(), duration_s, jobs, a_cluster(gpus))


def test_a_deadline_job_stops_best_effort_and_not_the_other_way_round() -> None:
    found = played({"be": 1_000.0, "slo": 300.0}, a_job("be"), due("slo", 500.0, at_s=61.0))
    assert found.ended_s == {"slo": 420.0, "be": 1_360.0}
    found = played({"slo": 1_000.0, "be": 60.0}, due("slo", 9_000.0), a_job("be", at_s=61.0))
    assert found.ended_s["slo"] == 1_060.0


def test_a_deadline_job_does_not_stop_another() -> None:
    found = played({"a": 1_000.0, "b": 100.0}, due("a", 9_000.0), due("b", 400.0, at_s=61.0))
    assert found.ended_s["a"] == 1_060.0


def test_of_two_deadline_jobs_the_plan_starts_the_one_that_cannot_wait() -> None:
    found = played({"a": 600.0, "b": 600.0}, due("a", 5_000.0), due("b", 700.0))
    assert found.ended_s == {"b": 660.0, "a": 1_260.0}


@pytest.mark.parametrize(
    "wrong", [{"cycle_s": 0.0}, {"slots": 0}, {"nodes": 0}, {"gap": -1.0}, {"most_jobs": 0}]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be"):
        load_policy("3sigma", **wrong)
