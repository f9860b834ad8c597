"""A choice that goes on reads the core of its problem alone, and comes to what the whole comes to."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.experiments.bench import instance
from stretto.solve import SparseKnapsack, assign
from stretto.solve.arrays import BoolArray, FloatArray, IntArray
from stretto.solve.core_problem import core_of
from stretto.solve.mckp import MOST_REPAIRED
from stretto.solve.program import Limits, cells_of

LIMITS = Limits(kept_gap=0.05)
ROWS = 2_000


def problem_of(seed: int) -> tuple[SparseKnapsack, FloatArray, BoolArray]:
    """Rows of which some are forced and some prefer; prices of a round before, and what rows have since."""
    rng = np.random.default_rng(seed)
    before = replace(cells_of(instance(ROWS, 8_192, 3, seed)), shares_units=False)
    first = assign(before)
    held = np.zeros(before.row.size, dtype=np.bool_)
    held[first.cell[first.cell >= 0]] = rng.random((first.cell >= 0).sum()) < 0.9
    forced = np.where((first.cell >= 0) & (rng.random(ROWS) < 0.01), first.cell, -1)
    now = replace(
        before,
        value=before.value * rng.uniform(0.97, 1.03, before.row.size),
        forced=forced,
        prefer=np.where(held, 1e-6, 0.0),
    )
    return now, first.prices, held


def whole(problem: SparseKnapsack, *others: object) -> tuple[SparseKnapsack, IntArray]:
    """Every cell."""
    return problem, np.arange(problem.row.size)


@pytest.mark.parametrize("seed", range(6))
def test_the_core_of_a_problem_comes_to_the_choice_of_the_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, prices, held = problem_of(seed)
    assert core_of(problem, prices, held, MOST_REPAIRED)[1].size < problem.row.size
    by_core = assign(problem, LIMITS, prices, held)
    monkeypatch.setattr("stretto.solve.mckp.core_of", whole)
    by_whole = assign(problem, LIMITS, prices, held)
    assert by_whole.prices.tolist() == prices.tolist(), "it went on"
    assert by_core.cell.tolist() == by_whole.cell.tolist()
    assert by_core.column.tolist() == by_whole.column.tolist()
    assert (by_core.value, by_core.bound) == (by_whole.value, by_whole.bound)


@pytest.mark.parametrize("nearest", [0, 10, 1_000])
def test_the_core_has_what_is_best_held_and_forced_and_the_nearest_others(nearest: int) -> None:
    problem, prices, held = problem_of(3)
    core, cells = core_of(problem, prices, held, nearest)
    assert cells.size < problem.row.size / 2
    assert set(np.flatnonzero(held)) | set(problem.forced[problem.forced >= 0]) <= set(cells)
    assert cells[core.forced[core.forced >= 0]].tolist() == problem.forced[problem.forced >= 0].tolist()
    # Beside the best cell of each row, those that lose least.
    reduced = np.where(problem.allowed, problem.value - prices[problem.kind] * problem.units, -np.inf)
    reduced[np.isin(problem.row, np.flatnonzero(problem.forced >= 0))] = -np.inf
    best = np.zeros(ROWS)
    np.maximum.at(best, problem.row, reduced)
    loss = best[problem.row] - reduced
    assert set(np.argsort(loss, kind="stable")[: nearest + (loss == 0).sum()]) <= set(cells)


def test_of_a_small_problem_the_core_is_all_of_it() -> None:
    problem, prices, held = problem_of(3)
    assert core_of(problem, prices, held, problem.row.size)[1].size == problem.row.size
