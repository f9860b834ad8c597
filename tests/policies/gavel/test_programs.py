import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from stretto.model import FloatArray, IntArray, floats, ints
from stretto.policies.gavel.programs import (
    Timeshare,
    finish_time_fairness,
    isolated_per_s,
    max_min_fairness,
    max_sum_throughput,
    shortest_makespan,
)

V_AND_K = ints([1, 1])  # one V and one K GPU
THREE_JOBS = floats([[40, 10], [12, 8], [100, 50]])
TWO_JOBS = floats([[4, 1], [3, 2]])


def throughput(per_s: FloatArray, share: Timeshare) -> FloatArray:
    return np.asarray((per_s * share.fraction).sum(axis=1))


def one_gpu(jobs: int) -> IntArray:
    return np.ones(jobs, dtype=np.int64)


def test_the_largest_sum_runs_each_type_where_it_counts_most() -> None:
    share = max_sum_throughput(THREE_JOBS, one_gpu(3), V_AND_K)
    assert share.value == pytest.approx(110)
    assert share.fraction == pytest.approx(floats([[0, 1], [0, 0], [1, 0]]))
    two = max_sum_throughput(TWO_JOBS, one_gpu(2), V_AND_K)
    assert two.value == pytest.approx(6)
    assert two.fraction == pytest.approx(np.eye(2))


def test_max_min_fairness_compares_with_equal_thirds() -> None:
    share = max_min_fairness(THREE_JOBS, one_gpu(3), V_AND_K, np.ones(3))
    assert share.value == pytest.approx(1.125)
    assert share.fraction == pytest.approx(floats([[0.46875, 0], [0, 0.9375], [0.53125, 0.0625]]))
    assert throughput(THREE_JOBS, share) == pytest.approx(floats([18.75, 7.5, 56.25]))


def test_the_shortest_makespan_lets_both_jobs_end_together() -> None:
    share = shortest_makespan(TWO_JOBS, one_gpu(2), V_AND_K, floats([400, 300]))
    assert 1 / share.value == pytest.approx(130)
    assert share.fraction == pytest.approx(floats([[0.6923, 0.3077], [0.3077, 0.6923]]), abs=5e-5)


def test_prices_are_what_one_more_gpu_adds() -> None:
    share = max_sum_throughput(THREE_JOBS, one_gpu(3), V_AND_K)
    more_k = max_sum_throughput(THREE_JOBS, one_gpu(3), ints([1, 2]))
    assert share.prices is not None
    assert share.prices[1] >= more_k.value - share.value > 0  # concave: the next one adds no more


def test_equal_jobs_get_equal_time_whatever_their_order() -> None:
    per_s = floats([[5, 1], [2, 2], [5, 1], [5, 1]])
    share = max_sum_throughput(per_s, one_gpu(4), V_AND_K)
    assert share.value == pytest.approx(5 + 2)
    assert share.fraction[[0, 2, 3]] == pytest.approx(floats([[1 / 3, 0]] * 3))


def test_weights_are_shares_and_large_jobs_pay_for_their_gpus() -> None:
    per_s, capacity = floats([[1], [1]]), ints([4])
    share = max_min_fairness(per_s, ints([4, 4]), capacity, floats([3, 1]))
    assert share.fraction == pytest.approx(floats([[0.75], [0.25]]))
    sized = max_min_fairness(per_s, ints([4, 1]), capacity, np.ones(2))
    assert sized.fraction == pytest.approx(floats([[0.75], [1.0]]))  # 4 x .75 GPUs beside 1 x 1


def test_an_isolated_share_is_a_part_of_the_cluster_but_never_more_than_all_the_time() -> None:
    assert isolated_per_s(floats([[4, 2]]), ints([1]), ints([8, 8])) == pytest.approx([3.0])
    assert isolated_per_s(floats([[4, 2], [4, 2]]), ints([8, 1]), ints([4, 4])) == pytest.approx([1.5, 3.0])


def test_finish_time_fairness_serves_the_late_one_first() -> None:
    per_s, remaining = floats([[1], [1]]), floats([100, 100])
    isolated_s = remaining / isolated_per_s(per_s, one_gpu(2), ints([1]))
    even = finish_time_fairness(per_s, one_gpu(2), ints([1]), floats([0, 0]), remaining, isolated_s)
    assert even.fraction == pytest.approx(floats([[0.5], [0.5]]), abs=1e-3)
    assert even.value == pytest.approx(1.0, rel=1e-3)
    late = finish_time_fairness(per_s, one_gpu(2), ints([1]), floats([100, 0]), remaining, isolated_s)
    assert late.fraction[0, 0] > late.fraction[1, 0]
    assert late.value > 1


@given(
    per_s=st.lists(st.tuples(*[st.integers(0, 9)] * 2).filter(any), min_size=1, max_size=5),
    sizes=st.lists(st.sampled_from([1, 2, 4]), min_size=5, max_size=5),
    capacity=st.tuples(st.integers(1, 8), st.integers(1, 8)),
)
def test_max_sum_agrees_with_a_solver_that_sees_every_job(
    per_s: list[tuple[int, int]], sizes: list[int], capacity: tuple[int, int]
) -> None:
    rate, gpus, room = floats(per_s), ints(sizes[: len(per_s)]), ints(capacity)
    share = max_sum_throughput(rate, gpus, room)
    jobs = len(rate)
    once = np.kron(np.eye(jobs), np.ones((1, 2)))
    within = np.kron(gpus[None, :], np.eye(2))
    theirs = linprog(-rate.ravel(), np.vstack((once, within)), np.concatenate((np.ones(jobs), room)))
    assert theirs.fun is not None
    assert share.value == pytest.approx(-theirs.fun)
    assert throughput(rate, share).sum() == pytest.approx(share.value)
    check_feasible(share, gpus, room)


@given(
    seed=st.integers(0, 10_000),
    jobs=st.integers(1, 6),
    ages=st.booleans(),
)
def test_no_other_time_shares_make_the_worst_off_better_off(seed: int, jobs: int, ages: bool) -> None:
    rng = np.random.default_rng(seed)
    per_s, gpus, room = rng.uniform(0.1, 5, (jobs, 2)), rng.choice([1, 2], jobs), ints([2, 2])
    remaining = rng.uniform(1, 1_000, jobs)
    age_s = rng.uniform(0, 1_000, jobs) if ages else np.zeros(jobs)
    isolated_s = age_s / 2 + remaining / isolated_per_s(per_s, gpus, room)
    share = finish_time_fairness(per_s, gpus, room, age_s, remaining, isolated_s)
    check_feasible(share, gpus, room)

    def worst(fraction: FloatArray) -> float:
        return float(((age_s + remaining / (per_s * fraction).sum(axis=1)) / isolated_s).max())

    assert worst(share.fraction) == pytest.approx(share.value, rel=1e-3)
    for other in random_shares(rng, gpus, room, 200):
        assert worst(other) >= share.value * (1 - 1e-3)


@pytest.mark.parametrize("step", [0.05])
def test_the_makespan_is_the_best_on_a_grid(step: float) -> None:
    remaining = floats([400, 300])
    share = shortest_makespan(TWO_JOBS, one_gpu(2), V_AND_K, remaining)
    parts = np.arange(0, 1 + step / 2, step)
    best = min(
        float((remaining / np.maximum((TWO_JOBS * floats([[a, b], [1 - a, 1 - b]])).sum(axis=1), 1e-9)).max())
        for a, b in itertools.product(parts, parts)
        if a + b <= 1 + 1e-9 and (1 - a) + (1 - b) <= 1 + 1e-9
    )
    assert 1 / share.value <= best + 1e-9
    assert 1 / share.value == pytest.approx(best, rel=0.05)


def test_a_job_that_needs_next_to_nothing_spoils_no_ratio() -> None:
    per_s, remaining = floats([[1], [1]]), floats([1e6, 1e-9])
    isolated_s = np.maximum(remaining / isolated_per_s(per_s, one_gpu(2), ints([1])), 1.0)
    share = finish_time_fairness(per_s, one_gpu(2), ints([1]), np.zeros(2), remaining, isolated_s)
    assert share.value == pytest.approx(0.5, rel=1e-3)


def test_jobs_without_anything_left_need_nothing() -> None:
    share = shortest_makespan(TWO_JOBS, one_gpu(2), V_AND_K, floats([400, 0]))
    assert 1 / share.value == pytest.approx(100)
    assert shortest_makespan(TWO_JOBS, one_gpu(2), V_AND_K, np.zeros(2)).fraction.any()


def check_feasible(share: Timeshare, gpus: IntArray, capacity: IntArray) -> None:
    assert (share.fraction >= 0).all()
    assert (share.fraction.sum(axis=1) <= 1 + 1e-6).all()
    assert ((share.fraction * gpus[:, None]).sum(axis=0) <= capacity + 1e-6).all()


def random_shares(rng: np.random.Generator, gpus: IntArray, room: IntArray, count: int) -> list[FloatArray]:
    """Feasible time shares: random ones, scaled down to fit."""
    shares = []
    for _ in range(count):
        fraction = rng.dirichlet(np.ones(3), len(gpus))[:, :2] + 1e-9
        used = (fraction * gpus[:, None]).sum(axis=0)
        shares.append(fraction * np.minimum(1, room / used))
    return shares
