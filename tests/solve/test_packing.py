from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from tests.drawn import scaled

from stretto.solve.packing import most_valuable

COLUMNS, ROWS = 6, 3
whole = st.integers(0, 9)


@settings(max_examples=scaled(150), deadline=None)
@given(
    value=st.lists(whole, min_size=COLUMNS, max_size=COLUMNS),
    rows=st.lists(st.lists(whole, min_size=COLUMNS, max_size=COLUMNS), min_size=ROWS, max_size=ROWS),
    limits=st.lists(st.integers(0, 25), min_size=ROWS, max_size=ROWS),
    upper=st.lists(st.integers(1, 2), min_size=COLUMNS, max_size=COLUMNS),
    scale=st.sampled_from([1.0, 0.37]),
    most_nodes=st.sampled_from([0, 1_000]),
)
def test_the_value_is_the_best_of_all_or_within_its_bound(
    value: list[int],
    rows: list[list[int]],
    limits: list[int],
    upper: list[int],
    scale: float,
    most_nodes: int,
) -> None:
    worth, table = scale * np.array(value, dtype=np.float64), np.array(rows, dtype=np.float64)
    found = most_valuable(
        worth,
        sparse.csr_array(table),
        np.array(limits, dtype=np.float64),
        np.array(upper, dtype=np.float64),
        most_nodes,
    )
    assert found is not None
    assert (table @ found.x <= np.array(limits) + 1e-6).all()
    assert ((found.x >= 0) & (found.x <= upper)).all()
    assert found.value == pytest.approx(float(worth @ found.x))
    best = max(
        float(worth @ x)
        for x in map(np.array, product(*(range(most + 1) for most in upper)))
        if (table @ x <= limits).all()
    )
    assert found.value <= best + 1e-6
    assert best <= found.bound + 1e-5
    if most_nodes:
        assert found.value == pytest.approx(best, abs=1e-5)
        assert found.bound == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1.0, 1e12, 1e200])
def test_the_unit_of_values_does_not_change_what_is_best(scale: float) -> None:
    rows, limits = sparse.csr_array(np.array([[3.0, 4.0, 2.0]])), np.array([6.0])
    found = most_valuable(np.array([3.5, 4.6, 2.2]) * scale, rows, limits, np.ones(3), most_nodes=100)
    assert found is not None
    assert found.x.tolist() == [0, 1, 1]
    assert (found.value / scale, found.bound / scale) == pytest.approx((6.8, 6.8))


def test_whole_values_round_the_bound_down() -> None:
    """The relaxation is worth 14.5, so 14 is proved best without a search."""
    found = most_valuable(
        np.array([5.0, 5.0, 4.0, 1.0]),
        sparse.csr_array(np.array([[2.0, 2.0, 2.0, 2.0]])),
        np.array([7.0]),
        np.ones(4),
        most_nodes=0,
    )
    assert found is not None
    assert (found.value, found.bound) == (14.0, 14.0)
