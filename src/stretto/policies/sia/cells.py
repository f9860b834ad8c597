"""Cells of a matrix of jobs and columns: only those that matter, row by row."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cells there are. Values of cells are arrays (cells,), in this order."""

    rows: int
    row: IntArray  # (cells,) ascending
    column: IntArray  # (cells,) ascending within a row

    @classmethod
    def between(cls, begin: IntArray, end: IntArray) -> "Cells":
        """The columns from `begin` to before `end`, both (rows, stretches), ascending in a row."""
        count = np.maximum(end - begin, 0).ravel()
        starts = np.cumsum(count) - count
        column = np.arange(int(count.sum())) + np.repeat(begin.ravel() - starts, count)
        row = np.repeat(np.arange(len(begin)), count.reshape(begin.shape).sum(axis=1))
        return cls(len(begin), row, column)

    @cached_property
    def begins(self) -> IntArray:
        """The first cell of each row that has one."""
        begins: IntArray = np.flatnonzero(np.diff(self.row, prepend=-1))
        return begins

    def of_rows(self, rows: IntArray) -> IntArray:
        """The cells of some rows, which ascend."""
        begin, end = (np.searchsorted(self.row, rows, side=side) for side in ("left", "right"))
        count = end - begin
        cells: IntArray = np.arange(int(count.sum())) + np.repeat(begin - (count.cumsum() - count), count)
        return cells

    def by_row(self, values: FloatArray) -> list[FloatArray]:
        """The values of each row."""
        ends = np.searchsorted(self.row, np.arange(1, self.rows + 1)).tolist()
        return [values[begin:end] for begin, end in pairwise([0, *ends])]

    def any(self, mask: BoolArray) -> BoolArray:
        """(rows,) whether it holds for some cell of the row."""
        some = np.zeros(self.rows, dtype=np.bool_)
        some[self.row[mask]] = True
        return some

    def first(self, mask: BoolArray) -> IntArray:
        """(rows,) the first cell of each row for which it holds, or -1."""
        place = np.full(self.rows, -1)
        cells = np.flatnonzero(mask)[::-1]
        place[self.row[cells]] = cells  # the last that is written is the first of a row
        return place

    def least(self, values: FloatArray) -> FloatArray:
        """(rows,) the least value of each row, infinite where it has no cell."""
        lowest = np.full(self.rows, np.inf)
        if self.begins.size:
            lowest[self.row[self.begins]] = np.minimum.reduceat(values, self.begins)
        return lowest
