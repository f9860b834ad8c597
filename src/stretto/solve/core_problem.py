"""The core of a problem at given prices: of each row only cells that may be part of a choice near the best.

A cell loses, at these prices, what it is worth less of than the best cell of its row. A choice that goes on
from what rows have uses best cells, what rows have, and few others, which lose little. So the rest need not
be brought into the form that the methods work on.
"""

import numpy as np

from stretto.solve.arrays import BoolArray, FloatArray, IntArray
from stretto.solve.program import SparseKnapsack, cells_of_forced_rows, without_forced

SAMPLED = 16  # every so many-th cell says how much the nearest ones lose; chosen
MARGIN = 2.0  # so many times as many cells as are wanted, as the sample has it; chosen
NEGLIGIBLE = 1e-7  # part of the largest value: more than preferences and rounding come to


def core_of(
    problem: SparseKnapsack, prices: FloatArray, is_held: BoolArray, nearest: int
) -> tuple[SparseKnapsack, IntArray]:
    """The problem with some of its cells, and which those are (cells of the core,), ascending.

    prices: (kinds,) for each unit; is_held: (cells,) what rows have. Of each row there are its best cell,
    what it has and what is forced. Of all others there are the `nearest` ones, which lose least, and more.
    Values keep their scale: the largest value and the largest preference are there, too.
    """
    value, row = problem.value, problem.row
    capacity, _ = without_forced(problem)
    useful = problem.allowed & (problem.units <= capacity[problem.kind])
    useful[cells_of_forced_rows(problem)] = False
    reduced = np.where(useful, value - prices[problem.kind] * problem.units, -np.inf)
    largest = int(np.where(useful, value, -np.inf).argmax())  # of NaN the first
    # What each cell loses beside the best one of its row, or beside no pick.
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    best = np.maximum(np.maximum.reduceat(reduced, begins), 0.0)
    loss = np.repeat(best, np.diff(begins, append=row.size)) - reduced
    # As many as are wanted beside the best ones, which lose nothing.
    sample = loss[::SAMPLED]
    wanted = int(MARGIN * (nearest + problem.rows)) // SAMPLED
    cut = float(np.partition(sample, wanted)[wanted]) if wanted < sample.size else np.inf
    is_near = loss <= cut + NEGLIGIBLE * abs(float(value[largest]))
    if np.count_nonzero(is_near) < nearest + problem.rows:
        is_near[:] = True
    is_near |= is_held
    is_near[largest] = True
    is_near[problem.forced[problem.forced >= 0]] = True
    if problem.prefer is not None:
        size = np.abs(problem.prefer)
        size[cells_of_forced_rows(problem)] = 0.0
        is_near[size.argmax()] = True
    cells = np.flatnonzero(is_near)
    return _with_cells(problem, cells), cells


def _with_cells(problem: SparseKnapsack, cells: IntArray) -> SparseKnapsack:
    """The problem without all other cells; those that are forced are among them."""
    place = np.searchsorted(cells, problem.forced)
    return SparseKnapsack(
        rows=problem.rows,
        cols=problem.cols,
        row=problem.row[cells],
        column=problem.column[cells],
        value=problem.value[cells],
        allowed=problem.allowed[cells],
        units=problem.units[cells],
        kind=problem.kind[cells],
        capacity=problem.capacity,
        forced=np.where(problem.forced >= 0, place, -1),
        prefer=None if problem.prefer is None else problem.prefer[cells],
        sort=problem.sort,
        shares_units=problem.shares_units,
    )
