"""Figures of a run, by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from stretto.model import FloatArray
from stretto.sim import metrics

INF, NAN = float("inf"), float("nan")


def floats(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float64)


def test_completion_time_is_time_without_gpus_plus_time_with_some() -> None:
    jct_s = metrics.completion_s(floats(0, 10), floats(30, 50))
    assert jct_s.tolist() == [30, 40]
    assert metrics.queuing_s(jct_s, floats(20, 40)).tolist() == [10, 0]
    assert metrics.queuing_s(floats(30), floats(30.0000001)).tolist() == [0]  # a rounding error is no time
    assert metrics.initial_queuing_s(floats(0, 10), floats(5, 10)).tolist() == [5, 0]


def test_inflation_is_relative_to_the_duration_and_leaves_out_jobs_without_one() -> None:
    assert metrics.jct_inflation(floats(30, 40, 7), floats(15, 80, 0)).tolist() == [2, 0.5]


def test_percentiles_interpolate_and_the_published_one_picks_by_index() -> None:
    values = floats(*range(160, 0, -1))
    assert metrics.percentile(values, 99) == pytest.approx(1 + 159 * 0.99)
    assert metrics.index_percentile(values, 0.99) == 159  # of 160 jobs the second longest
    assert metrics.index_percentile(floats(5), 0.99) == 5
    assert metrics.index_percentile(floats(1, 2), 1.0) == 2


def test_of_nothing_every_figure_is_nan() -> None:
    nothing = floats()
    for figure in (
        metrics.mean(nothing),
        metrics.percentile(nothing, 50),
        metrics.index_percentile(nothing, 0.99),
        metrics.makespan_s(nothing, nothing),
        metrics.preemption_ratio(3, 0),
        metrics.deadline_met_ratio(floats(5), floats(INF)),
        metrics.usage(0.0, 0.0),
        metrics.reduction_factor(5.0, 0.0),
        metrics.unfair_fraction(floats(NAN)),
    ):
        assert np.isnan(figure)


def test_makespan_gpu_hours_restarts_and_preemptions() -> None:
    assert metrics.makespan_s(floats(5, 10), floats(60, 30)) == 55
    assert metrics.gpu_hours_per_job(floats(7200, 3600)) == 1.5
    assert metrics.restarts_per_job(np.array([0, 3])) == 1.5
    assert metrics.preemption_ratio(3, 12) == 0.25
    assert metrics.reduction_factor(90.0, 60.0) == 1.5
    assert metrics.usage(30.0, 40.0) == 0.75


def test_deadlines_count_only_where_there_are_any_and_unfinished_jobs_miss_theirs() -> None:
    completed_s, deadline_s = floats(10, 20, 30, NAN), floats(10, 15, INF, 99)
    assert metrics.deadline_met_ratio(completed_s, deadline_s) == pytest.approx(1 / 3)


def test_tardiness_is_how_late_jobs_with_deadlines_end() -> None:
    assert metrics.tardiness_s(floats(10, 20, 30), floats(12, 15, INF)).tolist() == [0, 5]


def test_rewards_of_100_80_and_0_miss_0_4() -> None:
    missed = metrics.weighted_deadline_miss_rate(floats(100, 80, 0))
    assert missed == pytest.approx(0.40)
    assert 1 - missed == pytest.approx(0.60)


def test_fairness_on_three_types_is_weighted_by_their_gpus() -> None:
    """G = 24, 24, 16 and ρ by type .9, .6, 1.2."""
    jct_s = floats(36)
    alone_s = jct_s[:, None] / floats(0.9, 0.6, 1.2)
    weight = floats(24, 24, 16) / 64
    assert metrics.finish_time_fairness(jct_s, alone_s, weight).tolist() == pytest.approx([0.8625])


@pytest.mark.parametrize("impossible", [NAN, INF])
def test_a_type_that_cannot_run_a_job_leaves_its_weight_to_the_others(impossible: float) -> None:
    alone_s = np.array([[10.0, impossible, 20.0], [impossible] * 3])
    fairness = metrics.finish_time_fairness(floats(20, 20), alone_s, floats(24, 24, 16) / 64)
    assert fairness[0] == pytest.approx((24 * 2 + 16 * 1) / 40)
    assert np.isnan(fairness[1])


def test_unfair_is_whoever_was_better_off_alone() -> None:
    assert metrics.unfair_fraction(floats(0.5, 1.0, 1.01, NAN)) == pytest.approx(1 / 3)


def test_collateral_damage_is_what_was_vacated_beyond_the_demand() -> None:
    """Two reclaims: 16 GPUs vacated for 8, and 8 for 8; one without a demand does not count."""
    assert metrics.collateral_damage(floats(16, 8, 8), floats(8, 8, 0)) == 0.5


def test_contention_over_life_is_how_many_jobs_there_were_on_average_while_one_was_there() -> None:
    """Lives 0 to 20, 5 to 15, 10 to the end, which is 20."""
    found = metrics.contention_over_life(floats(0, 5, 10), floats(20, 15, NAN))
    assert found.tolist() == pytest.approx([(20 + 10 + 10) / 20, (10 + 10 + 5) / 10, (10 + 5 + 10) / 10])
    assert metrics.contention_over_life(floats(3, 0), floats(3, 1)).tolist() == [1, 1]  # at least itself


@pytest.mark.parametrize(
    ("from_s", "to_s", "expected"),
    [
        (0, 30, 10 * 4 + 10 * 2 + 10 * 5),
        (5, 15, 5 * 4 + 5 * 2),
        pytest.param(25, 100, 75 * 5, id="the last value stays"),
        pytest.param(12, 12, 0, id="no time"),
    ],
)
def test_the_integral_of_a_step_function(from_s: float, to_s: float, expected: float) -> None:
    assert metrics.integral(floats(0, 10, 20), floats(4, 2, 5), from_s, to_s) == expected


@pytest.mark.parametrize(("system", "small"), [([1, 2, 3, 4, 5, 6], True), ([11, 12, 13, 14, 15, 16], False)])
def test_significance_is_small_where_the_system_is_faster(system: Sequence[float], small: bool) -> None:
    baseline = floats(6, 7.5, 9, 7, 8, 9.5)
    assert (metrics.significance(floats(*system), baseline) < 0.05) is small
    assert metrics.significance(baseline, baseline) == 1.0


def test_finished_is_who_has_an_end() -> None:
    assert metrics.finished(floats(5, NAN)).tolist() == [True, False]
