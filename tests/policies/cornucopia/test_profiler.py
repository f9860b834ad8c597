import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.model import MeasuredSpeeds
from stretto.policies.cornucopia.profiler import (
    extrapolated,
    factor_of_last_gpu,
    is_linear,
    profiled_factors,
    scaling_factors,
)

PROFILE = [0.0, 100.0, 190.0, 270.0, 340.0, 400.0, 440.0, 460.0, 470.0]


def test_scaling_factors_of_a_profile_on_one_to_eight_gpus() -> None:
    gains = scaling_factors(np.array(PROFILE), asked=4)
    expected = [1.0, 1.0, 0.8889, 0.7778, 0.6667, 0.4444, 0.2222, 0.1111, 0.0]
    assert gains == pytest.approx(expected, abs=5e-5)


def test_what_is_lost_with_a_gpu_is_what_that_gpu_brought() -> None:
    gains = tuple(scaling_factors(np.array(PROFILE), asked=4).tolist())
    assert factor_of_last_gpu(gains, 4) == pytest.approx(0.7778, abs=5e-5)
    assert factor_of_last_gpu(gains, 1) == 1.0
    assert not is_linear(factor_of_last_gpu(gains, 4))
    assert is_linear(factor_of_last_gpu(gains, 2))


def test_where_the_second_gpu_brings_nothing_no_further_one_is_worth_anything() -> None:
    assert scaling_factors(np.array([0.0, 100.0, 100.0, 150.0, 150.0]), asked=2).tolist() == [1, 0, 0, 0, 0]


def test_a_gpu_that_slows_a_job_down_is_worth_nothing() -> None:
    assert scaling_factors(np.array([0.0, 10.0, 20.0, 15.0, 25.0]), asked=2).tolist() == [1, 1, 0, 1, 0]


def test_a_job_of_one_gpu_is_profiled_on_two() -> None:
    assert scaling_factors(np.array(PROFILE), asked=1).tolist() == [1, 1, 0]


def test_a_job_that_cannot_run_on_one_gpu_is_measured_by_its_average_at_its_smallest_size() -> None:
    gains = scaling_factors(np.array([0.0, np.nan, 200.0, 280.0, 320.0]), asked=2)
    assert gains.tolist() == pytest.approx([1, 0, 0.8, 0.4, 0])


def test_a_short_profile_is_worth_nothing_beyond_its_end() -> None:
    assert scaling_factors(np.array([0.0, 10.0, 20.0]), asked=4).tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_what_is_not_profiled_yet_repeats_the_last_step_but_no_larger_one_than_before_it() -> None:
    assert extrapolated(np.array(PROFILE), 3, 5).tolist() == [0, 100, 190, 270, 350, 430]
    rising = np.array([0.0, 100.0, 110.0, 160.0, 400.0])
    assert extrapolated(rising, 3, 4).tolist() == [0, 100, 110, 160, 170]


@pytest.mark.parametrize("upto", [0, 1])
def test_a_job_that_has_not_been_seen_on_two_gpus_is_taken_for_linear(upto: int) -> None:
    table = MeasuredSpeeds(np.array([PROFILE]), np.array([PROFILE]))
    assert profiled_factors(table, 0, 2, upto) == (1, 1, 1, 1, 0)


@given(upto=st.integers(0, 12), steps=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=10))
def test_a_continued_profile_agrees_with_what_is_known_of_it(upto: int, steps: list[float]) -> None:
    profile = np.concatenate(([0.0], np.cumsum([1.0, *steps])))
    most = len(profile) - 1
    continued = extrapolated(profile, upto, most)
    known = min(upto, most)
    if known:
        assert np.allclose(continued[: known + 1], profile[: known + 1])
    assert (np.diff(continued) >= -1e-9).all()
