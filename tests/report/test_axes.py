"""Ticks where people expect them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.report.axes import Axis, clock_ticks, even_ticks, log_axis, time_ticks

SPANS = st.tuples(st.floats(1e-4, 1e6), st.floats(1.5, 1e6))


@given(SPANS)
def test_log_ticks_are_within_the_axis_and_apart(span: tuple[float, float]) -> None:
    axis = Axis(span[0], span[0] * span[1], 50, 600, is_log=True)
    at = [axis.px(value) for value, _ in time_ticks(axis)]
    assert all(50 <= px <= 600 for px in at)
    assert all(later - earlier >= 46 for earlier, later in pairwise(at))


@given(st.floats(1, 1e9), st.integers(3, 8))
def test_clock_ticks_are_few_and_even(end_s: float, count: int) -> None:
    values = [value for value, _ in clock_ticks(Axis(0, end_s, 0, 400), count)]
    assert 1 <= len(values) <= count + 1
    assert np.allclose(np.diff(values, 2), 0, atol=1e-6 * end_s)


@given(st.floats(0.01, 1e7))
def test_even_ticks_start_at_zero_and_stay_within(high: float) -> None:
    ticks = even_ticks(0, high)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 6
    assert ticks[-1] <= high * (1 + 1e-9)


def test_log_ticks_are_round_times() -> None:
    axis = Axis(30, 200_000, 50, 600, is_log=True)
    assert [label for _, label in time_ticks(axis)] == [
        "1 min",
        "3 min",
        "10 min",
        "1 h",
        "3 h",
        "10 h",
        "1 d",
    ]


@pytest.mark.parametrize("values", [[], [np.nan], [5.0], [0.0, 0.0]])
def test_a_log_axis_of_little_data_is_still_an_axis(values: list[float]) -> None:
    axis = log_axis(np.array(values, dtype=np.float64), 0, 100)
    assert 0 < axis.low < axis.high
    assert 0 <= axis.px(5.0) <= 100
