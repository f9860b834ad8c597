"""Cells of a matrix of jobs and columns: only those that matter, row by row."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cells there are. Values of cells are arrays (cells,), in this order."""

    rows: int
    row: IntArray  # (cells,) ascending
    column: IntArray  # (cells,) ascending within a row
    bounds: IntArray  # (rows + 1,) where the cells of each row begin, and behind the last

    @classmethod
    def by_count(cls, count: IntArray, column: IntArray) -> "Cells":
        """So many cells in each row, in these columns."""
        bounds = np.concatenate([[0], np.cumsum(count)])
        return cls(len(count), np.repeat(np.arange(len(count)), count), column, bounds)

    @classmethod
    def between(cls, begin: IntArray, end: IntArray) -> "Cells":
        """The columns from `begin` to before `end`, both (rows, stretches), ascending in a row."""
        count = np.maximum(end - begin, 0).ravel()
        starts = np.cumsum(count) - count
        column = np.arange(int(count.sum())) + np.repeat(begin.ravel() - starts, count)
        return cls.by_count(count.reshape(begin.shape).sum(axis=1), column)

    @cached_property
    def begins(self) -> IntArray:
        """The first cell of each row that has one."""
        begins: IntArray = self.bounds[:-1][self.count > 0]
        return begins

    @cached_property
    def count(self) -> IntArray:
        """(rows,) cells."""
        return np.diff(self.bounds)

    def of_rows(self, rows: IntArray) -> IntArray:
        """The cells of some rows, which ascend."""
        begin, count = self.bounds[rows], self.count[rows]
        cells: IntArray = np.arange(int(count.sum())) + np.repeat(begin - (count.cumsum() - count), count)
        return cells

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
