from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.solve.integer import maximise_whole


@settings(max_examples=scaled(40), deadline=None)
@given(data=st.data(), variables=st.integers(1, 4), rows=st.integers(1, 3))
def test_no_whole_numbers_within_the_limits_are_worth_more(
    data: st.DataObject, variables: int, rows: int
) -> None:
    def drawn(low: int, high: int, count: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    gain, matrix = drawn(-5, 9, variables), drawn(-2, 5, rows * variables).reshape(rows, variables)
    limit, upper = drawn(0, 9, rows), drawn(0, 3, variables)
    found = maximise_whole(gain, matrix, limit, upper, nodes=1_000)
    assert found is not None
    assert (matrix @ found.x <= limit).all()
    every = product(*(range(most + 1) for most in upper))
    assert found.value == max(gain @ x for x in map(np.array, every) if (matrix @ x <= limit).all())
    assert found.proven
    assert found.bound == pytest.approx(found.value)


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e9, 1e300])
def test_the_unit_of_gains_does_not_change_the_optimum(scale: float) -> None:
    found = maximise_whole(np.array([5.0, 4.0]) * scale, np.array([[6, 5]]), [11.5], [9, 9], nodes=100)
    assert found is not None
    assert (found.x.tolist(), found.proven) == ([1, 1], True)
    assert (found.value / scale, found.bound / scale) == pytest.approx((9, 9))


def test_what_nothing_satisfies_has_no_solution() -> None:
    assert maximise_whole([1.0], np.array([[1.0]]), [-1.0], [5.0], nodes=10) is None


def test_nothing_to_choose_is_worth_nothing() -> None:
    found = maximise_whole([], np.zeros((1, 0)), [1.0], [], nodes=10)
    assert found is not None
    assert (found.x.tolist(), found.value, found.proven) == ([], 0.0, True)


def test_a_matrix_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="one column per variable"):
        maximise_whole([1.0, 2.0], np.ones((1, 3)), [1.0], [1.0], nodes=1)
