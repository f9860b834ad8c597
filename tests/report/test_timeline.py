"""Rows of the allocation timeline: what is joined, what is sampled."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.model.arrays import floats, ints
from stretto.report.charts.timeline import FINEST, evenly_chosen, merged


@given(st.integers(1, 90_000), st.integers(2, 300))
def test_sampled_rows_are_spread_over_all_jobs(count: int, most: int) -> None:
    rows = evenly_chosen(count, most)
    assert rows.size == min(count, most)
    assert (rows[0], rows[-1]) == (0, count - 1)
    gaps = np.diff(rows)
    assert gaps.max(initial=0) - gaps.min(initial=count) <= 1


def test_stretches_that_touch_with_the_same_count_are_one() -> None:
    start, end, gpus = merged(floats([10, 0, 20]), floats([20, 10, 30]), ints([4, 4, 2]))
    assert list(zip(start, end, gpus, strict=True)) == [(0, 20, 4), (20, 30, 2)]


def test_a_pause_keeps_stretches_apart() -> None:
    start, end, _ = merged(floats([0, 15]), floats([10, 20]), ints([4, 4]))
    assert (start.tolist(), end.tolist()) == ([0, 15], [10, 20])


def test_a_crowded_row_is_drawn_with_one_stretch_per_pixel_and_without_gaps() -> None:
    edges = np.linspace(0, 300, 6_001)
    start, end, gpus = merged(edges[:-1], edges[1:], ints(np.arange(6_000) % 2 + 1))
    assert FINEST < start.size <= 301
    assert (start[1:] - end[:-1] < 0.5).all()
    assert set(gpus.tolist()) <= {1, 2}
