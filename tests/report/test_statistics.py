"""How sure a figure is: against scipy where it has the same test, else against first principles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stretto.report.statistics import (
    binned_mean,
    bootstrap_mean,
    bootstrap_ratio,
    paired,
    resampled_means,
    signed_rank_p,
    student,
    student_ratio,
)

STEPS = st.lists(st.tuples(st.floats(0.1, 50), st.integers(0, 9)), min_size=2, max_size=12)


def test_a_mean_over_runs_has_students_interval() -> None:
    values = np.array([3.0, 4.0, 8.0, 5.5])
    found = student(values, "traces")
    expected = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    assert (found.value, found.count) == (values.mean(), 4)
    assert (found.low, found.high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [2.0], [2.0, np.nan]])
def test_below_two_known_values_there_is_no_interval(values: list[float]) -> None:
    found = student(np.array(values), "seeds")
    assert np.isnan([found.low, found.high]).all()
    assert found.basis == "none"


def test_a_ratio_that_is_the_same_everywhere_is_certain_however_much_workloads_differ() -> None:
    below = np.array([1.0, 10.0, 100.0])
    found = student_ratio(1.5 * below, below, "traces")
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_the_ratio_is_that_of_the_two_means() -> None:
    above, below = np.array([2.0, 3.0, 9.0]), np.array([1.0, 2.0, 4.0])
    found = student_ratio(above, below, "traces")
    assert found.value == pytest.approx(above.mean() / below.mean())
    assert found.low < found.value < found.high


def test_the_ratios_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        below = rng.uniform(1, 3, 10)
        found = student_ratio(1.3 * below * rng.normal(1, 0.1, 10), below, "traces")
        covered += found.low < 1.3 < found.high
    assert 0.90 < covered / 400 < 0.99


def test_a_bootstrap_interval_holds_the_mean_and_is_about_two_standard_errors_wide() -> None:
    values = np.random.default_rng(0).normal(100, 10, 400)
    found = bootstrap_mean(values)
    assert found.low < values.mean() < found.high
    assert found.half_width == pytest.approx(1.96 * stats.sem(values), rel=0.15)


def test_pairing_makes_the_bootstrap_of_a_ratio_narrow() -> None:
    rng = np.random.default_rng(1)
    below = rng.lognormal(0, 1.5, 300)
    noise = rng.normal(1, 0.05, 300)
    together = bootstrap_ratio(1.2 * below * noise, below)
    apart = bootstrap_ratio(1.2 * rng.permutation(below * noise), below)
    assert together.half_width < apart.half_width / 4
    assert together.low < together.value < together.high


def test_the_same_jobs_always_give_the_same_interval() -> None:
    columns = np.arange(20.0).reshape(10, 2)
    assert np.array_equal(resampled_means(columns), resampled_means(columns))


@given(st.lists(st.integers(-6, 6), min_size=8, max_size=40))
def test_the_signed_rank_test_is_scipys(differences: list[int]) -> None:
    moved = np.array(differences, dtype=np.float64)
    if not moved.any():
        assert np.isnan(signed_rank_p(moved))
        return
    expected = stats.wilcoxon(moved, alternative="less", method="approx", correction=False).pvalue
    assert signed_rank_p(moved) == pytest.approx(expected)


def test_pairs_count_jobs_sooner_later_and_alike_and_leave_out_the_unfinished() -> None:
    ours = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    other = np.array([2.0, 1.0, 3.0, 8.0, 1.0])
    found = paired(ours, other)
    assert (found.jobs, found.faster, found.slower) == (4, 0.5, 0.25)
    assert found.median_ratio == pytest.approx(1.5)


@given(STEPS, st.integers(1, 9))
def test_bins_keep_the_area_under_a_step_series(steps: list[tuple[float, int]], bins: int) -> None:
    times_s = np.cumsum([0.0, *(width for width, _ in steps)])
    values = np.array([*(value for _, value in steps), 0], dtype=np.float64)[:, None]
    edges = np.linspace(0, times_s[-1], bins + 1)
    area = (binned_mean(times_s, values, edges)[:, 0] * np.diff(edges)).sum()
    assert area == pytest.approx(sum(width * value for width, value in steps))


def test_outside_its_times_a_step_series_is_zero() -> None:
    means = binned_mean(np.array([10.0, 20.0]), np.array([[4.0], [0.0]]), np.array([0.0, 10, 15, 20, 40]))
    assert means[:, 0].tolist() == [0, 4, 4, 0]
