"""A choice within the capacities from the one that prices suggest: give units back, then hand out the rest.

Both steps move rows along their nearest alternatives, many rows at a time: sort the moves by what they cost
(or gain) per unit, take as many from the front as are needed (or fit), and look again.
"""

from dataclasses import dataclass

import numpy as np

from stretto.solve.alternatives import Alternatives
from stretto.solve.arrays import BoolArray, FloatArray, IntArray
from stretto.solve.program import Program

MOST_PASSES = 40  # chosen: each pass moves at least one row of a kind; 5 to 15 are usual


@dataclass(frozen=True, slots=True)
class _Moves:
    """Cells a row may move to: its alternatives, its base and "none"."""

    row: IntArray
    column: IntArray
    worth: FloatArray
    units: IntArray
    kind: IntArray


def repaired(program: Program, prices: FloatArray, near: Alternatives, pick: IntArray) -> IntArray:
    """A pick for each row (rows,) that keeps within the capacities and that no single move can improve."""
    moves = _moves(program, near)
    return _filled(program, prices, _given_back(program, prices, pick, moves), moves)


def _moves(program: Program, near: Alternatives) -> _Moves:
    rows = np.arange(near.base.size)
    row = np.concatenate((near.row, rows, rows))
    column = np.concatenate((near.column, near.base, np.zeros_like(near.base)))
    units = program.units[row if program.units.shape[0] > 1 else 0, column]
    return _Moves(row, column, program.worth[row, column], units, program.kind[column])


def _given_back(program: Program, prices: FloatArray, pick: IntArray, moves: _Moves) -> IntArray:
    """Move rows to what costs least for each unit it frees, until no kind is over its capacity."""
    pick = pick.copy()
    reduced = moves.worth - prices[moves.kind] * moves.units
    for count in range(MOST_PASSES + 1):
        spare = program.capacity - program.taken(pick)
        over = spare < 0
        if not over.any():
            break
        worth, units, kind = _now(program, pick, moves.row)
        stays = moves.kind == kind
        freed = units - np.where(stays, moves.units, 0)
        useful = over[kind] & (freed > 0) & (stays | (moves.units <= np.maximum(spare, 0)[moves.kind]))
        if count == MOST_PASSES:  # enough of fine moves: "none" always frees and always fits
            useful &= moves.column == 0
        loss = worth - prices[kind] * units - reduced
        needed = np.minimum(freed, -spare[kind])  # what is freed beyond the need pays for nothing
        chosen = _best_per_row(useful, loss / np.maximum(needed, 1), moves.row)
        chosen = chosen[_before_enough(kind[chosen], freed[chosen], -spare)]
        lands = np.where(stays[chosen], 0, moves.units[chosen])
        chosen = chosen[_fitting(moves.kind[chosen], lands, np.maximum(spare, 0))]
        pick[moves.row[chosen]] = moves.column[chosen]
    return pick


def _filled(program: Program, prices: FloatArray, pick: IntArray, moves: _Moves) -> IntArray:
    """Move rows to what gains most for each unit it takes, until nothing that gains fits."""
    pick = pick.copy()
    for _ in range(MOST_PASSES):
        spare = program.capacity - program.taken(pick)
        worth, units, kind = _now(program, pick, moves.row)
        stays = moves.kind == kind
        takes = moves.units - np.where(stays, units, 0)
        useful = (moves.worth > worth) & (takes <= spare[moves.kind])
        if not useful.any():
            break
        gain = moves.worth - worth + np.where(stays, 0.0, prices[kind] * units)
        chosen = _best_per_row(useful, -gain / np.maximum(takes, 0.5), moves.row)
        chosen = chosen[_fitting(moves.kind[chosen], np.maximum(takes[chosen], 0), spare)]
        pick[moves.row[chosen]] = moves.column[chosen]
    return pick


def _now(program: Program, pick: IntArray, row: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Worth, units and kind of the present pick of each move's row: (moves,) each."""
    worth = program.worth[np.arange(pick.size), pick]
    return worth[row], program.units_of(pick)[row], program.kind[pick][row]


def _best_per_row(useful: BoolArray, cost: FloatArray, row: IntArray) -> IntArray:
    """The cheapest useful move of each row that has one, cheapest first; ties by the moves' order."""
    by_cost = np.flatnonzero(useful)
    by_cost = by_cost[np.argsort(cost[by_cost], kind="stable")]
    _, first = np.unique(row[by_cost], return_index=True)
    return by_cost[np.sort(first)]


def _before_enough(kind: IntArray, freed: IntArray, wanted: IntArray) -> BoolArray:
    """Which of the moves come before each kind has what is wanted of it."""
    needed = np.zeros(kind.size, dtype=np.bool_)
    for k in np.flatnonzero(wanted > 0):
        of_kind = np.flatnonzero(kind == k)
        needed[of_kind] = np.cumsum(freed[of_kind]) - freed[of_kind] < wanted[k]
    return needed


def _fitting(kind: IntArray, takes: IntArray, spare: IntArray) -> BoolArray:
    """Which of the moves fit into what is spare of their kind, if all before them are made."""
    fits = np.zeros(kind.size, dtype=np.bool_)
    for k in range(spare.size):
        of_kind = np.flatnonzero(kind == k)
        fits[of_kind] = np.cumsum(takes[of_kind]) <= spare[k]
    return fits
