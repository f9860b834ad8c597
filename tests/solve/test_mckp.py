"""All methods against every choice of small problems, and against each other on larger ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from stretto.experiments.bench import instance
from stretto.solve import (
    Assignment,
    Limits,
    NoSolution,
    assign,
    assign_by_prices,
    assign_exactly,
)
from stretto.solve.arrays import IntArray
from stretto.solve.program import MultipleChoiceKnapsack as Knapsack

Method = Callable[..., Assignment]
METHODS = [assign, assign_by_prices, assign_exactly]
SOLVER = 1e-5  # what HiGHS may be off by; our own sums agree to 1e-9
STINGY = Limits(price_steps=4, updates=20, nodes=1, branch_gap=0.0)


@st.composite
def problems(draw: st.DrawFn, most_rows: int = 5, most_columns: int = 4) -> Knapsack:
    """Small problems, rich in ties, equal rows, zeros, negative values and columns that never fit."""
    rows, cols = draw(st.integers(0, most_rows)), draw(st.integers(1, most_columns))
    kinds = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    distinct = draw(st.integers(1, max(rows, 1)))  # fewer than rows: equal jobs
    like = rng.integers(0, distinct, rows)
    decimals = draw(st.sampled_from([0, 1, 6]))  # few decimals, many ties
    value = rng.uniform(-0.4, 3.0, (distinct, cols)).round(decimals)[like]
    allowed = (rng.random((distinct, cols)) < 0.8)[like]
    gpus = rng.integers(0, 6, (distinct, cols))[like] if draw(st.booleans()) else rng.integers(0, 6, cols)
    kind = rng.integers(0, kinds, cols)
    capacity = rng.integers(0, draw(st.sampled_from([1, 8, 20])), kinds)
    is_forced = rng.random(rows) < draw(st.sampled_from([0.0, 0.2]))
    return Knapsack(
        value, allowed, gpus, kind, capacity, np.where(is_forced, rng.integers(0, cols, rows), -1)
    )


def solved(method: Method, problem: Knapsack, **named: object) -> Assignment:
    return method(problem, **named)


def a_problem(
    value: ArrayLike,
    allowed: ArrayLike,
    units: ArrayLike,
    kind: ArrayLike,
    capacity: ArrayLike,
    forced: ArrayLike = (),
    prefer: ArrayLike | None = None,
) -> Knapsack:
    """A problem from lists."""
    return Knapsack(
        np.asarray(value, dtype=np.float64),
        np.asarray(allowed, dtype=np.bool_),
        np.asarray(units, dtype=np.int64),
        np.asarray(kind, dtype=np.int64),
        np.asarray(capacity, dtype=np.int64),
        np.asarray(forced, dtype=np.int64),
        None if prefer is None else np.asarray(prefer, dtype=np.float64),
    )


def taken(problem: Knapsack, column: IntArray) -> IntArray:
    rows = np.flatnonzero(column >= 0)
    counted = np.zeros(problem.capacity.size, dtype=np.int64)
    units = np.broadcast_to(problem.units, problem.value.shape)
    np.add.at(counted, problem.kind[column[rows]], units[rows, column[rows]])
    return counted


def worth(problem: Knapsack, column: IntArray) -> float:
    rows = np.flatnonzero(column >= 0)
    return float(problem.value[rows, column[rows]].sum())


def every_choice(problem: Knapsack) -> Iterator[IntArray]:
    """All choices that keep within the capacities and make the forced picks."""
    columns = [
        [forced] if forced >= 0 else [-1, *np.flatnonzero(problem.allowed[row]).tolist()]
        for row, forced in enumerate(problem.forced.tolist())
    ]
    for choice in product(*columns):
        column = np.array(choice, dtype=np.int64)
        if (taken(problem, column) <= problem.capacity).all():
            yield column


def check_is_possible(problem: Knapsack, found: Assignment) -> None:
    assert found.column.shape == (problem.value.shape[0],)
    assert (taken(problem, found.column) <= problem.capacity).all()
    free = np.flatnonzero((problem.forced < 0) & (found.column >= 0))
    assert problem.allowed[free, found.column[free]].all()
    is_forced = problem.forced >= 0
    assert (found.column[is_forced] == problem.forced[is_forced]).all()
    assert found.value == pytest.approx(worth(problem, found.column), abs=1e-9)
    assert found.prices.shape == problem.capacity.shape
    assert (found.prices >= 0).all()


@given(problem=problems())
def test_assign_finds_what_looking_at_every_choice_finds(problem: Knapsack) -> None:
    best = max((worth(problem, column) for column in every_choice(problem)), default=None)
    assume(best is not None)
    assert best is not None
    found = solved(assign, problem)
    check_is_possible(problem, found)
    assert found.proof != "relaxed"
    assert found.value == pytest.approx(best, abs=1e-8)
    assert found.gap == 0.0


@given(problem=problems())
def test_branch_and_bound_finds_what_looking_at_every_choice_finds(problem: Knapsack) -> None:
    best = max((worth(problem, column) for column in every_choice(problem)), default=None)
    assume(best is not None)
    assert best is not None
    found = solved(assign_exactly, problem)
    check_is_possible(problem, found)
    assert found.proof == "exact"
    assert found.value == pytest.approx(best, abs=SOLVER)


# Where the loss of the choice known and the loss of the alternative that it uses differ by rounding.
AT_THE_EDGE = Knapsack(
    np.array(
        [
            [0.672413, -0.144849, 0.800309],
            [1.798232, 1.616516, 0.044789],
            [1.798232, 1.616516, 0.044789],
            [1.993394, 1.633436, 2.72299],
        ]
    ),
    np.array([[True, False, True]] * 3 + [[True, True, True]]),
    np.array([3, 0, 0]),
    np.zeros(3, dtype=np.int64),
    np.array([3]),
    np.full(4, -1),
)


@pytest.mark.parametrize("method", METHODS)
@given(problem=problems(), limits=st.sampled_from([Limits(), STINGY]))
@example(problem=AT_THE_EDGE, limits=STINGY)
def test_value_and_bound_enclose_the_best_value(method: Method, problem: Knapsack, limits: Limits) -> None:
    best = max((worth(problem, column) for column in every_choice(problem)), default=None)
    assume(best is not None)
    assert best is not None
    found = solved(method, problem, limits=limits)
    check_is_possible(problem, found)
    assert found.value <= best + 1e-8
    assert found.bound >= best - SOLVER


@pytest.mark.parametrize("method", METHODS)
@given(problem=problems(), seed=st.integers(0, 99))
def test_the_order_of_rows_does_not_change_the_value(method: Method, problem: Knapsack, seed: int) -> None:
    assume(any(True for _ in every_choice(problem)))
    order = np.random.default_rng(seed).permutation(problem.value.shape[0])
    gpus = problem.units if problem.units.ndim == 1 else problem.units[order]
    shuffled = Knapsack(
        problem.value[order],
        problem.allowed[order],
        gpus,
        problem.kind,
        problem.capacity,
        problem.forced[order],
    )
    before, after = solved(method, problem), solved(method, shuffled)
    if before.proof != "relaxed" and after.proof != "relaxed":
        assert after.value == pytest.approx(before.value, abs=SOLVER)
    assert after.bound >= before.value - SOLVER
    assert before.bound >= after.value - SOLVER


@pytest.mark.parametrize("method", METHODS)
def test_the_same_arrays_give_the_same_choice(method: Method) -> None:
    problem = instance(24, 64, 3, seed=3)
    first, second = solved(method, problem), solved(method, problem)
    assert first.column.tolist() == second.column.tolist()
    assert (first.value, first.bound, first.nodes) == (second.value, second.bound, second.nodes)
    assert first.prices.tolist() == second.prices.tolist()


@pytest.mark.parametrize("method", METHODS)
def test_forced_picks_that_exceed_a_capacity_have_no_solution(method: Method) -> None:
    with pytest.raises(NoSolution, match="forced picks take 6 of kind 0, capacity=5"):
        method(a_problem([[1.0], [1.0]], [[True], [True]], [3], [0], [5], forced=[0, 0]))


@pytest.mark.parametrize("method", METHODS)
def test_a_forced_pick_stands_even_if_it_is_not_allowed_and_costs(method: Method) -> None:
    problem = a_problem(
        [[-1.0, 4.0], [3.0, 2.0]], [[False, True], [True, True]], [2, 1], [0, 0], [3], forced=[0, -1]
    )
    found = method(problem)
    assert found.column.tolist() == [0, 1]
    assert found.value == pytest.approx(1.0)
    assert found.bound == pytest.approx(1.0, abs=SOLVER)


@pytest.mark.parametrize("method", METHODS)
def test_without_rows_columns_or_capacity_nothing_is_picked(method: Method) -> None:
    ones = np.ones((3, 2))
    for value, capacity in ((ones[:0], [4]), (ones[:, :0], [4]), (ones, [0])):
        cols = value.shape[1]
        found = method(a_problem(value, value > 0, np.ones(cols), np.zeros(cols), capacity))
        assert found.column.tolist() == [-1] * value.shape[0]
        assert (found.value, found.gap) == (0.0, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_columns_that_take_nothing_are_picked_even_without_capacity(method: Method) -> None:
    found = method(a_problem([[2.0, 5.0]], [[True, True]], [0, 1], [0, 0], [0]))
    assert found.column.tolist() == [0]


def test_nothing_is_solved_where_every_best_column_fits() -> None:
    found = assign(a_problem([[1.0, 3.0], [2.0, 1.0]], np.full((2, 2), True), [1, 4], [0, 1], [1, 4]))
    assert found.column.tolist() == [1, 0]
    assert (found.proof, found.nodes, found.prices.tolist()) == ("unconstrained", 0, [0.0, 0.0])


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_scale_of_values_does_not_matter(scale: float) -> None:
    problem = instance(40, 64, 3, seed=2)
    usual, scaled = solved(assign, problem), solved(assign, replace(problem, value=problem.value * scale))
    assert scaled.column.tolist() == usual.column.tolist()
    assert scaled.prices == pytest.approx(usual.prices * scale)
    assert (scaled.proof, scaled.gap) == ("exact", 0.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("largest", [1.7e308, 5e-324])
def test_values_may_be_as_large_or_small_as_numbers_are(method: Method, largest: float) -> None:
    found = method(a_problem([[largest], [largest / 2], [0.0]], np.full((3, 1), True), [2], [0], [3]))
    assert (found.column.tolist(), found.value) == ([0, -1, -1], largest)


def test_equal_values_go_to_fewer_units() -> None:
    found = assign(a_problem([[2.0, 2.0, 2.0]], [[True, True, True]], [4, 1, 2], [0, 0, 0], [8]))
    assert found.column.tolist() == [1]


@given(rows=st.integers(2, 6), keeps=st.sets(st.integers(0, 5), min_size=1))
def test_among_equal_choices_the_preferred_one_is_taken(rows: int, keeps: set[int]) -> None:
    """All rows are alike and half of them fit: preference alone says which."""
    kept = sorted(row for row in keeps if row < rows)[: rows // 2]
    prefer = np.zeros((rows, 1))
    prefer[kept] = 1.0
    found = assign(
        a_problem(np.ones((rows, 1)), np.full((rows, 1), True), [2], [0], [2 * (rows // 2)], prefer=prefer)
    )
    assert found.value == rows // 2
    assert set(kept) <= set(np.flatnonzero(found.column == 0).tolist())


@pytest.mark.parametrize("method", METHODS)
def test_of_many_alike_rows_the_preferred_keep_what_they_have(method: Method) -> None:
    """One column fits for 300 of 400 equal rows; which 300 is all the same, but for the preferences."""
    keeps = np.sort(np.random.default_rng(0).permutation(400)[:300])
    value, prefer = np.tile([1.0, 1.5], (400, 1)), np.zeros((400, 2))
    prefer[keeps, 1] = 1.0
    found = method(a_problem(value, value > 0, [2, 4], [0, 0], [4 * 300], prefer=prefer))
    kept = int((found.column[keeps] == 1).sum())
    assert kept == (found.column == 1).sum()
    assert found.value == pytest.approx(assign(a_problem(value, value > 0, [2, 4], [0, 0], [4 * 300])).value)


@given(problem=problems(), seed=st.integers(0, 99))
def test_a_preference_never_costs_value(problem: Knapsack, seed: int) -> None:
    assume(any(True for _ in every_choice(problem)))
    prefer = np.random.default_rng(seed).uniform(-50, 50, problem.value.shape)
    with_preference, without = solved(assign, replace(problem, prefer=prefer)), solved(assign, problem)
    assert with_preference.value == pytest.approx(without.value, abs=1e-7)


@pytest.mark.parametrize("copies", [40, 400])
def test_many_equal_rows_are_solved_almost_without_branching(copies: int) -> None:
    """Equal jobs give every choice an astronomic number of twins, which must not be looked at singly."""
    value = np.tile([1.0, 1.9, 3.4, 5.5], (copies, 1))
    problem = Knapsack(
        value,
        np.full(value.shape, True),
        np.array([1, 2, 4, 8]),
        np.zeros(4, dtype=np.int64),
        np.array([2 * copies + 3]),
        np.full(copies, -1),
    )
    found = solved(assign, problem)
    check_is_possible(problem, found)
    assert found.proof == "exact"
    assert found.nodes <= 1
    assert found.value == pytest.approx(solved(assign_exactly, problem).value, abs=SOLVER * copies)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("jobs", "gpus"), [(16, 64), (40, 64), (64, 64)])
def test_lumpy_problems_are_solved_exactly(jobs: int, gpus: int, seed: int) -> None:
    problem = instance(jobs, gpus, 3, seed)
    found = solved(assign, problem)
    check_is_possible(problem, found)
    assert found.gap == 0.0
    assert found.value == pytest.approx(solved(assign_exactly, problem).value, rel=SOLVER)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", [assign, assign_by_prices])
def test_on_larger_problems_the_certificate_holds_and_the_gap_is_small(method: Method, seed: int) -> None:
    problem = instance(300, 320, 4, seed)
    found = solved(method, problem)
    check_is_possible(problem, found)
    best = solved(assign_exactly, problem, limits=Limits(nodes=50))
    assert found.bound >= best.value * (1 - SOLVER)
    assert found.value <= best.bound * (1 + SOLVER)
    assert found.gap < 0.01


def test_a_price_is_about_what_one_more_unit_is_worth() -> None:
    problem = instance(400, 256, 3, seed=1, large_minimum_share=0.0, forced_share=0.0)
    found = solved(assign, problem)
    for kind in range(3):
        more = problem.capacity + 8 * (np.arange(3) == kind)
        larger = replace(problem, capacity=more)
        assert (assign(larger).value - found.value) / 8 == pytest.approx(found.prices[kind], rel=0.05)


def test_prices_to_begin_with_change_the_work_and_not_the_choice() -> None:
    problem = instance(48, 64, 3, seed=5)
    cold = solved(assign, problem)
    for start in (cold.prices, np.zeros(3), np.full(3, 1e6)):
        assert solved(assign, problem, start=start).value == pytest.approx(cold.value, rel=1e-9)


def test_branching_closes_what_the_lattice_has_no_budget_for() -> None:
    problem = instance(16, 64, 3, seed=1)
    found = solved(assign, problem, limits=Limits(updates=50, branch_gap=0.0, nodes=10_000))
    assert (found.proof, found.gap) == ("exact", 0.0)
    assert found.nodes > 0
    assert found.value == pytest.approx(solved(assign, problem).value, rel=SOLVER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"value": [[np.nan, 1.0]]}, "value must be a number or -inf", id="NaN"),
        pytest.param({"value": [[np.inf, 1.0]]}, "value must be a number or -inf", id="infinity"),
        pytest.param({"allowed": [[True]]}, r"value and allowed must be \(rows, cols\)", id="other shape"),
        pytest.param({"units": [1]}, "units and kind must have 2 columns", id="too few columns"),
        pytest.param({"units": [-1, 1]}, "units and capacity must be >= 0", id="negative units"),
        pytest.param({"kind": [0, 3]}, r"kind must be 0..0, got 0..3", id="unknown kind"),
        pytest.param({"forced": [2]}, "forced must be 1 columns below 2", id="forced beyond the columns"),
        pytest.param({"start": [1.0, 1.0]}, "start must be 1 prices", id="too many prices"),
        pytest.param({"prefer": [[1.0]]}, "prefer must be", id="preferences of other shape"),
        pytest.param({"forced": [1], "value": [[1.0, -np.inf]]}, "row=0 column=1", id="forced without value"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    named = {
        "value": [[1.0, 1.0]],
        "allowed": [[True, True]],
        "units": [1, 1],
        "kind": [0, 0],
        "capacity": [3],
    }
    start = change.pop("start", None)
    with pytest.raises(ValueError, match=message):
        assign(a_problem(**{**named, **change}), start=start)  # type: ignore[arg-type]


def test_a_value_that_is_not_allowed_may_be_anything() -> None:
    found = assign(a_problem([[np.nan, 1.0]], [[False, True]], [1, 1], [0, 0], [3]))
    assert found.column.tolist() == [1]
