import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.estimate.placement_runtime import (
    TwoGpuProfile,
    best_effort_suspensions,
    iteration_s,
    relative_speed,
    suspension_probabilities,
    suspensions,
    two_gpu_profile,
)
from stretto.model import MeasuredSpeeds


@pytest.mark.parametrize(
    ("gpus", "one_node", "expected_s"),
    [
        pytest.param(1, True, 0.10, id="one GPU only computes"),
        pytest.param(8, True, 0.17, id="seven exchanges within a node"),
        pytest.param(16, False, 0.55, id="fifteen exchanges between nodes"),
    ],
)
def test_iteration_time_grows_with_gpus_and_with_distance(
    gpus: int, one_node: bool, expected_s: float
) -> None:
    took_s = iteration_s(np.array(0.10), np.array(0.01), np.array(0.03), np.array(gpus), np.array(one_node))
    assert took_s == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("needed", "available", "expected", "by_count"),
    [
        (2, 3, 1 / 3, None),
        (2, 4, 0.5, None),
        (3, 5, 0.8, [0.3, 0.6, 0.1]),
        (3, 6, 1.0, [0.2, 0.6, 0.2]),
        (4, 8, 1.5, [0.0714, 0.4286, 0.4286, 0.0714]),
        (5, 10, 2.0, None),
        (1, 7, 0.0, [1.0]),
        (6, 6, 0.0, [1.0]),
    ],
)
def test_expected_suspensions_follow_equation_3(
    needed: int, available: int, expected: float, by_count: list[float] | None
) -> None:
    assert suspensions(np.array(needed), np.array(available)) == pytest.approx(expected)
    if by_count is not None:
        assert suspension_probabilities(needed, available) == pytest.approx(by_count, abs=5e-5)


def test_a_best_effort_job_is_suspended_after_every_other_lease() -> None:
    assert best_effort_suspensions(np.array(6)) * 20.0 == pytest.approx(60.0)


@given(st.integers(1, 30), st.integers(0, 30))
def test_the_closed_form_is_the_sum_of_equation_3(needed: int, spare: int) -> None:
    chance = suspension_probabilities(needed, needed + spare)
    assert chance.sum() == pytest.approx(1.0)
    mean = float(chance @ np.arange(len(chance)))
    assert suspensions(np.array(needed), np.array(needed + spare)) == pytest.approx(mean)


def test_a_job_that_cannot_make_it_is_expected_to_run_through() -> None:
    assert suspensions(np.array([5, 5, 1]), np.array([4, 0, 0])).tolist() == [0.0, 0.0, 0.0]


def table_of(step_s: float, near_s: float, far_s: float) -> MeasuredSpeeds:
    """Speeds that follow equation 2 up to two GPUs; what comes after must not be looked at."""
    near = [np.nan, 1 / step_s, 1 / (step_s / 2 + near_s), np.inf]
    far = [np.nan, 1 / step_s, 1 / (step_s / 2 + far_s), np.inf]
    return MeasuredSpeeds(np.array([near]), np.array([far]))


def test_a_profile_reads_only_one_and_two_gpus() -> None:
    found = two_gpu_profile(table_of(0.4, 0.01, 0.03), kind=0)
    assert (found.step_s, found.near_s, found.far_s) == pytest.approx((0.4, 0.01, 0.03))


def test_a_table_that_ends_at_one_gpu_tells_of_no_communication() -> None:
    found = two_gpu_profile(MeasuredSpeeds(np.array([[np.nan, 2.0]]), np.array([[np.nan, 2.0]])), kind=0)
    assert (found.step_s, found.near_s, found.far_s) == (0.5, 0.0, 0.0)


def test_spreading_a_job_slows_it_by_what_it_exchanges() -> None:
    profile = TwoGpuProfile(step_s=0.8, near_s=0.01, far_s=0.03)  # 0.1 s of computing on each of 8 GPUs
    speed = relative_speed(profile, np.array([8, 8]), np.array([True, False]), best_one_node=True)
    assert speed == pytest.approx([1.0, 0.17 / 0.31])


def test_a_job_of_which_nothing_is_known_counts_as_fast_everywhere() -> None:
    speed = relative_speed(TwoGpuProfile(np.nan, 0.0, 0.0), np.array([4]), np.array([False]), True)
    assert speed.tolist() == [1.0]
