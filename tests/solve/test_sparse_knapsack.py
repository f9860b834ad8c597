"""A knapsack told by its cells is solved like the same one told as a whole table."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.experiments.bench import instance
from stretto.solve import Assignment, MultipleChoiceKnapsack, SparseKnapsack, assign, assign_by_prices
from stretto.solve.lagrangian import FewCells, ManyCells, search_prices
from stretto.solve.program import Limits, Program, cells_of, read


def told_by_cells(problem: MultipleChoiceKnapsack) -> SparseKnapsack:
    """By hand: the cells that are allowed or forced, one after the other."""
    rows, cols = problem.value.shape
    units = np.broadcast_to(problem.units, (rows, cols))
    cells = [
        (row, column)
        for row in range(rows)
        for column in range(cols)
        if problem.allowed[row, column] or problem.forced[row] == column
    ]
    row, column = np.array(cells, dtype=np.int64).reshape(-1, 2).T
    forced = [
        cells.index((row, pick)) if pick >= 0 else -1 for row, pick in enumerate(problem.forced.tolist())
    ]
    return SparseKnapsack(
        rows=rows,
        cols=cols,
        row=row,
        column=column,
        value=problem.value[row, column],
        allowed=problem.allowed[row, column],
        units=units[row, column],
        kind=problem.kind[column],
        capacity=problem.capacity,
        forced=np.array(forced, dtype=np.int64),
    )


@pytest.mark.parametrize("method", [assign, assign_by_prices])
@pytest.mark.parametrize("seed", range(4))
def test_both_ways_of_telling_give_the_same_choice(method: Callable[..., Assignment], seed: int) -> None:
    whole = instance(40, 64, 3, seed)
    units = np.broadcast_to(whole.units, whole.value.shape).copy()  # as if rows differed
    whole = MultipleChoiceKnapsack(
        whole.value, whole.allowed, units, whole.kind, whole.capacity, whole.forced
    )
    one, other = method(whole), method(told_by_cells(whole))
    assert one.column.tolist() == other.column.tolist()
    assert (one.value, one.bound, one.proof) == (other.value, other.bound, other.proof)


@given(
    rows=st.integers(0, 9),
    cols=st.integers(1, 9),
    decimals=st.sampled_from([0, 1, 9]),  # few decimals, many ties
    seed=st.integers(0, 10_000),
)
def test_few_cells_and_many_are_chosen_from_alike(rows: int, cols: int, decimals: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, allowed = rng.uniform(-1, 2, (rows, cols)).round(decimals), rng.random((rows, cols)) < 0.7
    units, kind = rng.integers(0, 5, cols), rng.integers(0, 3, cols)
    program, _ = read(MultipleChoiceKnapsack(value, allowed, units, kind, np.array([4, 7, 0])))
    prices = rng.uniform(0, 1, 3).round(decimals)
    one, other = FewCells(program)(prices), ManyCells(program)(prices)
    assert [each.tolist() for each in one[:2]] == [each.tolist() for each in other[:2]]
    assert one[2] == other[2]


@given(seed=st.integers(0, 10_000))
def test_the_cells_that_are_picked_are_those_of_the_columns(seed: int) -> None:
    problem = told_by_cells(instance(12, 24, 2, seed))
    chosen = assign(problem)
    picked = chosen.cell[chosen.cell >= 0]
    assert problem.row[picked].tolist() == np.flatnonzero(chosen.column >= 0).tolist()
    assert problem.column[picked].tolist() == chosen.column[chosen.column >= 0].tolist()


def test_columns_that_no_row_may_pick_cost_nothing() -> None:
    """The work is counted: cells that the methods go through, whatever the number of columns."""
    few = instance(50, 64, 3, 1)
    rows, cols = few.value.shape
    more = 40
    many = MultipleChoiceKnapsack(
        np.concatenate([few.value, np.zeros((rows, more * cols))], axis=1),
        np.concatenate([few.allowed, np.zeros((rows, more * cols), dtype=np.bool_)], axis=1),
        np.tile(few.units, 1 + more),
        np.tile(few.kind, 1 + more),
        few.capacity,
        few.forced,
    )
    programs: list[Program] = [read(problem)[0] for problem in (few, many)]
    assert programs[0].row.size == programs[1].row.size < rows * cols
    assert assign(few).value == assign(many).value


def test_places_within_rows_find_what_a_look_at_every_cell_finds() -> None:
    program, _ = read(instance(300, 320, 4, 2))
    priced = search_prices(program, Limits())
    reduced = program.worth - priced.prices[program.kind] * program.units
    by_row = [reduced[start:end] for start, end in zip(program.start, program.end, strict=True)]
    assert program.best(reduced).tolist() == [
        int(start) + int(values.argmax()) for start, values in zip(program.start, by_row, strict=True)
    ]
    bound = sum(float(values.max()) for values in by_row) + float(priced.prices @ program.capacity)
    assert priced.bound == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column": [1, 0]}, "cells must stand by row and column, each once, in 2 by 3"),
        ({"row": [0, 2]}, "cells must stand by row and column"),
        ({"column": [0, 3]}, "cells must stand by row and column"),
        ({"value": [1.0]}, r"value must have one entry for each of \(2,\) cells"),
        ({"units": [-1, 1]}, "units and capacity must be >= 0"),
        ({"kind": [0, 1]}, "kind must be 0..0, got 0..1"),
        ({"forced": [0, 2]}, "forced must be 2 cells below 2 or -1"),
        ({"prefer": [np.nan, 0.0]}, "prefer must be"),
    ],
)
def test_cells_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    named: dict[str, Any] = {
        "row": [0, 0],
        "column": [0, 1],
        "value": [1.0, 2.0],
        "allowed": [True, True],
        "units": [1, 2],
        "kind": [0, 0],
        "capacity": [2],
    }
    with pytest.raises(ValueError, match=message):
        SparseKnapsack(rows=2, cols=3, **(named | change))


def test_a_table_keeps_the_cells_that_are_forced_or_preferred_though_not_allowed() -> None:
    told = cells_of(
        MultipleChoiceKnapsack(
            np.ones((2, 3)),
            np.array([[True, False, False], [False, False, False]]),
            np.array([1, 2, 3]),
            np.zeros(3, dtype=np.int64),
            np.array([5]),
            np.array([-1, 2]),
            np.array([[0.0, 0.5, 0.0], [0.0, 0.0, 0.0]]),
        )
    )
    assert list(zip(told.row.tolist(), told.column.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 2)]
    assert told.forced.tolist() == [-1, 2]
