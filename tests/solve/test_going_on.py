"""A choice that goes on from what rows have: nearly all keep it, and the whole is certified."""

import numpy as np
import pytest

from stretto.experiments.bench import instance
from stretto.solve import Assignment, SparseKnapsack, assign
from stretto.solve.arrays import BoolArray
from stretto.solve.program import Limits, cells_of

LIMITS = Limits(kept_gap=0.01)  # of so few rows one is worth more than a thousandth of all


def problem_of(seed: int) -> SparseKnapsack:
    """1,000 rows that compete for 4,096 units."""
    return cells_of(instance(1_000, 4_096, 3, seed))


def held_by(problem: SparseKnapsack, choice: Assignment) -> BoolArray:
    """(cells,) what rows have once the choice is made."""
    held = np.zeros(problem.row.size, dtype=np.bool_)
    held[choice.cell[choice.cell >= 0]] = True
    return held


def drifted(problem: SparseKnapsack, seed: int, by: float) -> SparseKnapsack:
    """The same with every value a little different."""
    factor = np.random.default_rng(seed).uniform(1 - by, 1 + by, problem.row.size)
    return SparseKnapsack(
        rows=problem.rows,
        cols=problem.cols,
        row=problem.row,
        column=problem.column,
        value=problem.value * factor,
        allowed=problem.allowed,
        units=problem.units,
        kind=problem.kind,
        capacity=problem.capacity,
        forced=problem.forced,
        shares_units=problem.shares_units,
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_choice_that_goes_on_is_valid_and_within_the_gap(seed: int) -> None:
    before = problem_of(seed)
    first = assign(before)
    now = drifted(before, seed, 0.01)
    choice = assign(now, LIMITS, first.prices, held_by(before, first))
    picked = choice.cell[choice.cell >= 0]
    taken = np.bincount(now.kind[picked], now.units[picked], now.capacity.size)
    assert (taken <= now.capacity).all()
    assert now.allowed[picked[now.forced[now.row[picked]] < 0]].all()
    assert choice.prices == pytest.approx(first.prices), "it went on"
    assert choice.gap <= 0.01 + 1e-6
    assert assign(now).value <= choice.bound


@pytest.mark.parametrize("seed", range(4))
def test_rows_keep_what_they_have_where_little_is_lost_by_it(seed: int) -> None:
    before = problem_of(seed)
    first = assign(before)
    now = drifted(before, seed, 0.01)
    anew = int((assign(now).cell != first.cell).sum())
    kept = int((assign(now, LIMITS, first.prices, held_by(before, first)).cell != first.cell).sum())
    assert kept < anew


@pytest.mark.parametrize("seed", range(4))
def test_what_is_too_far_from_the_best_is_solved_anew(seed: int) -> None:
    before = problem_of(seed)
    first = assign(before)
    now = drifted(before, seed, 0.9)
    strict = Limits(kept_gap=1e-7)
    choice = assign(now, strict, first.prices, held_by(before, first))
    assert choice.gap == assign(now, strict, first.prices).gap
    assert not np.array_equal(choice.prices, first.prices)
