import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog

from stretto.solve import NoSolution
from stretto.solve.linear import maximise


def test_the_optimum_is_at_the_vertex_that_a_drawing_shows() -> None:
    # 3x + 2y under x + y <= 4, x + 3y <= 6, x <= 3: the corner (3, 1).
    found = maximise([3, 2], [[1, 1], [1, 3]], [4, 6], bounds=(0, [3, np.inf]))
    assert found.x == pytest.approx([3, 1])
    assert found.value == pytest.approx(11)


def test_a_dual_is_what_one_more_unit_of_a_limit_adds() -> None:
    rows, limits = np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([4.0, 6.0])
    duals = maximise([3, 2], rows, limits).duals
    more = [maximise([3, 2], rows, limits + step).value for step in np.eye(2)]
    assert duals == pytest.approx(np.array(more) - maximise([3, 2], rows, limits).value)


def test_equalities_have_duals_after_those_of_the_inequalities() -> None:
    found = maximise([1, 0], A_ub=[[1, -1]], b_ub=[0], A_eq=[[1, 1]], b_eq=[2])
    assert found.x == pytest.approx([1, 1])
    assert found.duals == pytest.approx([0.5, 0.5])


@given(seed=st.integers(0, 10_000), variables=st.integers(1, 6), rows=st.integers(0, 5))
def test_it_agrees_with_scipy_on_dense_and_sparse_matrices(seed: int, variables: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    gain, matrix = rng.normal(size=variables), rng.normal(size=(rows, variables)).round(1)
    limits = rng.random(rows)  # x = 0 satisfies all of them
    theirs = linprog(-gain, matrix, limits, bounds=(0, 2))
    dense = maximise(gain, matrix, limits, bounds=(0, 2))
    assert dense.value == pytest.approx(-float(theirs.fun or 0.0))
    assert maximise(gain, sparse.csc_array(matrix), limits, bounds=(0, 2)).value == dense.value


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e-8, 1e-5, 1.0, 1e7, 1e9, 1e20, 1e300])
def test_the_unit_of_gains_does_not_change_the_optimum(scale: float) -> None:
    found = maximise(np.array([3, 2]) * scale, [[1, 1], [1, 3]], [4, 6], bounds=(0, [3, np.inf]))
    assert found.x == pytest.approx([3, 1])
    assert found.value / scale == pytest.approx(11)
    assert found.duals / scale == pytest.approx([0, 2 / 3])


def test_limits_that_contradict_each_other_have_no_solution() -> None:
    with pytest.raises(NoSolution, match="1 variables and 2 rows"):
        maximise([1], [[1], [-1]], [1, -2])


def test_a_programme_without_a_limit_has_no_solution() -> None:
    with pytest.raises(NoSolution):
        maximise([1, 1], [[1, 0]], [1])


def test_a_programme_without_variables_is_worth_nothing() -> None:
    assert maximise([]).value == 0.0
    assert maximise([], np.zeros((2, 0)), [0, 1]).duals.tolist() == [0.0, 0.0]
    with pytest.raises(NoSolution):
        maximise([], np.zeros((1, 0)), [-1])


def test_sizes_that_do_not_match_are_named() -> None:
    with pytest.raises(ValueError, match="A_ub must have 2 columns"):
        maximise([1, 1], [[1]], [1])
    with pytest.raises(ValueError, match="b_ub must have 1 entries"):
        maximise([1, 1], [[1, 1]], [1, 2])
