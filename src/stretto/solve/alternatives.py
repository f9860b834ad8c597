"""What deviating from the relaxation costs: the alternatives of all rows, nearest first.

At prices p each row has a pick of its own (`base`), and any other column c loses it

    loss = (worth - p * units at the base) - (worth - p * units at c)  >= 0.

For every choice within the capacities, L(p) - total worth = sum of its losses + p * units left unused, so the
best choice is the one that loses least, and whoever uses an alternative has lost at least its loss. That
is reduced-cost fixing, and the order in which the exact methods look at alternatives.
"""

from dataclasses import dataclass

import numpy as np

from stretto.solve.arrays import BoolArray, FloatArray, IntArray
from stretto.solve.lagrangian import Priced
from stretto.solve.program import Program

MOST_KEPT = 60_000  # chosen: beyond it an alternative never mattered at 20,000 rows


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Columns other than each row's own, by loss; equal losses by row, then column."""

    base: IntArray  # (rows,) what each row picks at the prices
    row: IntArray  # (alternatives,)
    column: IntArray  # (alternatives,)
    loss: FloatArray  # (alternatives,) ascending
    beyond: float  # every alternative left out loses at least this; inf where none is


def alternatives(program: Program, priced: Priced) -> Alternatives:
    """All alternatives to what the rows pick at these prices, or the nearest `MOST_KEPT`."""
    rows, columns = program.worth.shape
    reduced = program.worth - priced.prices[program.kind] * program.units
    base = reduced.argmax(axis=1)
    each = np.arange(rows)
    loss = reduced[each, base][:, None] - reduced
    if program.units.shape[0] == 1:
        loss[_dominated(program)] = np.inf
    loss[each, base] = np.inf
    flat = loss.ravel()
    beyond = np.inf
    kept = np.flatnonzero(flat < np.inf)
    if kept.size > MOST_KEPT:
        near = np.argpartition(flat[kept], MOST_KEPT)
        beyond = float(flat[kept[near[MOST_KEPT]]])
        kept = kept[np.sort(near[:MOST_KEPT])]
    kept = kept[np.argsort(flat[kept], kind="stable")]
    return Alternatives(base, kept // columns, kept % columns, flat[kept], beyond)


def _dominated(program: Program) -> BoolArray:
    """Cells for which the same row has one of the same kind with no more units and no less worth."""
    dominated = np.zeros(program.worth.shape, dtype=np.bool_)
    for kind in range(program.capacity.size):
        columns = np.flatnonzero(program.kind == kind)
        columns = columns[columns > 0]  # "none" costs nothing and dominates nothing of worth
        worth = program.worth[:, columns]  # by units, ascending
        dominated[:, columns[1:]] = worth[:, 1:] <= np.maximum.accumulate(worth, axis=1)[:, :-1]
    return dominated
