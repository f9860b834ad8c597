"""Preferences among rows that are alike: who of them gets which of the columns that were picked for them."""

from collections import Counter

import numpy as np

from stretto.solve.arrays import FloatArray, IntArray
from stretto.solve.program import Program


def settled(program: Program, pick: IntArray) -> IntArray:
    """The same columns dealt out anew within each group of alike rows, the greatest wishes first.

    Value and units taken stay as they are. What the dynamic programme proves has its preferences weighed
    already; this is for choices that were only found, or by branching, which does not see them.
    """
    if program.plain is program.worth:
        return pick
    is_open = program.plain > -np.inf
    wish = np.where(is_open, program.worth, 0.0) - np.where(is_open, program.plain, 0.0)
    pick = pick.copy()
    for rows in _alike(program):
        columns = pick[rows]
        if (columns == columns[0]).all():
            continue
        dealt = _dealt(wish[rows], columns)
        each = np.arange(rows.size)
        if wish[rows][each, dealt].sum() > wish[rows][each, columns].sum():
            pick[rows] = dealt
    return pick


def _alike(program: Program) -> list[IntArray]:
    """Groups of two or more rows with the same worth and units in every column."""
    groups: dict[bytes, list[int]] = {}
    per_row = program.units.shape[0] > 1
    for row in range(program.plain.shape[0]):
        key = program.plain[row].tobytes() + (program.units[row].tobytes() if per_row else b"")
        groups.setdefault(key, []).append(row)
    return [np.array(rows) for rows in groups.values() if len(rows) > 1]


def _dealt(wish: FloatArray, columns: IntArray) -> IntArray:
    """A column for each row of a group, from those there are: by wish, then by row and column."""
    left = Counter(columns.tolist())
    kinds = np.array(sorted(left))
    row, which = np.nonzero(wish[:, kinds] > 0)
    order = np.argsort(-wish[row, kinds[which]], kind="stable")
    dealt = np.full(columns.size, -1, dtype=np.int64)
    for i in order.tolist():
        column = int(kinds[which[i]])
        if dealt[row[i]] < 0 and left[column]:
            dealt[row[i]] = column
            left[column] -= 1
    dealt[dealt < 0] = sorted(left.elements())
    return dealt
