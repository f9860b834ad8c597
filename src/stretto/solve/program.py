"""The multiple-choice knapsack as it is given, and as the methods work on it.

They take the forced rows out and have a column for "no pick".
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stretto.solve.arrays import BoolArray, FloatArray, IntArray
from stretto.solve.linear import NoSolution

Proof = Literal["unconstrained", "exact", "relaxed"]
MOST_EXPONENT = 1023  # of a power of two that is a number
EQUAL = 1e-8  # chosen: totals that agree to this part of the largest value count as equal


@dataclass(frozen=True, slots=True)
class Limits:
    """How much work one decision may take: counts, never seconds, so that it is the same on any machine."""

    price_steps: int = 60  # evaluations of the relaxation
    price_gap: float = 1e-5  # the price search ends when its bound is this near (relatively) to the best one
    updates: int = 1_000_000  # states times options in the dynamic programme; about 15 ns each
    good_gap: float = 1e-4  # good enough, if a tenth of the updates did not prove the best choice
    nodes: int = 200  # branch-and-bound nodes of HiGHS
    branch_gap: float = 0.005  # HiGHS is called above this gap, or where most rows are alike
    branch_cells: int = 600  # and only if no more cells than that, equal rows counted once, are undecided


@dataclass(frozen=True, slots=True, eq=False)
class MultipleChoiceKnapsack:
    """Rows that each pick at most one column, which takes units of one kind, within a capacity for each kind.

    Raises `ValueError`, when it is built, where the arrays do not fit together.
    """

    value: FloatArray  # (rows, cols) what a pick is worth; anything where it is not allowed
    allowed: BoolArray  # (rows, cols)
    units: IntArray  # (cols,), or (rows, cols) where rows differ; >= 0
    kind: IntArray  # (cols,) of the units that a column takes, from 0
    capacity: IntArray  # (kinds,) units there are; >= 0
    # (rows,) a column that must be picked, whatever its value, or -1; given empty: -1 for all
    forced: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    prefer: FloatArray | None = None  # (rows, cols) decides among choices of equal value, see `mckp.assign`

    def __post_init__(self) -> None:
        """Bring the arrays to their types, and check shapes, signs, kinds and forced columns."""
        types = {"value": np.float64, "prefer": np.float64, "allowed": np.bool_}
        for name in ("value", "allowed", "units", "kind", "capacity", "forced", "prefer"):
            if (array := getattr(self, name)) is not None:
                object.__setattr__(self, name, np.asarray(array, dtype=types.get(name, np.int64)))
        # Shapes, signs, the range of kinds, forced columns, preferences: one line for each.
        value, units, kind, capacity = self.value, self.units, self.kind, self.capacity
        if value.ndim != 2 or self.allowed.shape != value.shape:
            raise ValueError(
                f"value and allowed must be (rows, cols), got {value.shape} and {self.allowed.shape}"
            )
        rows, cols = value.shape
        if units.shape not in ((cols,), value.shape) or kind.shape != (cols,):
            raise ValueError(
                f"units and kind must have {cols} columns, got shapes {units.shape} and {kind.shape}"
            )
        if (units < 0).any() or (capacity < 0).any():
            raise ValueError("units and capacity must be >= 0")
        if cols and not (kind.min() >= 0 and kind.max() < capacity.size):
            raise ValueError(f"kind must be 0..{capacity.size - 1}, got {kind.min()}..{kind.max()}")
        if not self.forced.size:
            object.__setattr__(self, "forced", np.full(rows, -1))
        forced, prefer = self.forced, self.prefer
        if forced.shape != (rows,) or forced.max(initial=-1) >= cols:
            raise ValueError(f"forced must be {rows} columns below {cols} or -1, got {forced.tolist()}")
        if prefer is not None and (prefer.shape != value.shape or not np.isfinite(prefer).all()):
            raise ValueError(f"prefer must be {value.shape} numbers, got shape {prefer.shape}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A column for each row, what it is worth, and how far from the best it can be at most."""

    column: IntArray  # (rows,) -1 = none
    value: float  # sum of the picks
    bound: float  # no choice is worth more
    prices: FloatArray  # (kinds,) value of one more unit of each kind, >= 0
    proof: Proof  # "relaxed": between value and bound there may be a better one
    nodes: int  # branch-and-bound nodes spent

    @property
    def gap(self) -> float:
        """`(bound - value) / value`: 0 where they agree, inf where nothing of worth was found."""
        if self.bound <= self.value:
            return 0.0
        return (self.bound - self.value) / self.value if self.value > 0 else np.inf


@dataclass(frozen=True, slots=True)
class Program:
    """One pick per row, column 0 being "none": most total worth within the capacities.

    Columns other than 0 stand by kind, then by units where all rows agree on the units. A cell that cannot
    be in a best choice (not allowed, worth nothing, larger than its capacity) is worth -inf.
    """

    worth: FloatArray  # (rows, columns)
    plain: FloatArray  # (rows, columns) worth without preferences; the same array where there are none
    units: IntArray  # (1, columns) or (rows, columns)
    kind: IntArray  # (columns,)
    capacity: IntArray  # (kinds,)

    def taken(self, pick: IntArray) -> IntArray:
        """How many units of each kind the picks (rows,) take: (kinds,)."""
        return np.bincount(self.kind[pick], self.units_of(pick), self.capacity.size).astype(np.int64)

    def units_of(self, pick: IntArray) -> IntArray:
        """Units that each row's pick takes: (rows,)."""
        units: IntArray = self.units[0 if self.units.shape[0] == 1 else np.arange(pick.size), pick]
        return units

    def total(self, pick: IntArray) -> float:
        """What the picks are worth together."""
        return self.total_of(np.arange(pick.size), pick)

    def total_of(self, rows: IntArray, pick: IntArray) -> float:
        """What the picks of some rows are worth together."""
        return float(self.worth[rows, pick].sum())


@dataclass(frozen=True, slots=True)
class Frame:
    """The way back from a `Program` to the problem it was read from."""

    value: FloatArray  # (all rows, cols) as given
    forced: IntArray  # (all rows,) column or -1
    free: IntArray  # (rows,) the rows that are not forced
    columns: IntArray  # (columns,) the column as given, -1 for "none"
    forced_value: float
    unit: float  # the value that a worth of 1 stands for, a power of two: nothing is lost in changing units
    tie: float  # worth that preferences may add to a total at most

    def assignment(
        self, pick: IntArray, prices: FloatArray, bound: float, proof: Proof, nodes: int = 0
    ) -> Assignment:
        """Put forced and free rows together again. `prices` and `bound` are in worth, of the free rows."""
        column = self.forced.copy()
        column[self.free] = self.columns[pick]
        rows = np.flatnonzero(column >= 0)
        value = float(self.value[rows, column[rows]].sum())
        certified = value
        if proof == "relaxed":
            certified = max(value, (bound + self.tie) * self.unit + self.forced_value)
        return Assignment(column, value, certified, prices * self.unit, proof, nodes)


def read(problem: MultipleChoiceKnapsack) -> tuple[Program, Frame]:
    """A problem in the form of a `Program`, worth 1 at most a cell, and the way back."""
    value, allowed, units = problem.value, problem.allowed, problem.units
    kind, capacity, forced, prefer = problem.kind, problem.capacity, problem.forced, problem.prefer
    rows, cols = value.shape
    free = np.flatnonzero(forced < 0)
    forced_value = 0.0
    if free.size < rows:
        capacity, forced_value = _without_forced(value, units, kind, capacity, forced)

    worth, order = value, np.arange(cols)
    if units.ndim == 1:
        order = np.lexsort((units, kind))
    if free.size < rows or (order[1:] < order[:-1]).any():
        cells = np.ix_(free, order)
        worth, allowed, prefer = worth[cells], allowed[cells], None if prefer is None else prefer[cells]
        units, kind = units[order] if units.ndim == 1 else units[cells], kind[order]
    units = np.atleast_2d(units) if free.size else np.zeros((1, cols), dtype=np.int64)

    # `~(<=)` instead of `>` lets NaN through, to be refused here.
    useful = allowed & ~(worth <= 0) & (units <= capacity[kind])
    table = np.zeros((free.size, cols + 1))
    table[:, 1:] = np.where(useful, worth, -np.inf)
    largest = float(table.max(initial=0.0))
    if not np.isfinite(largest):
        raise ValueError("value must be a number or -inf wherever a column is allowed, got NaN or inf")
    unit = 2.0 ** min(int(np.frexp(largest)[1]), MOST_EXPONENT)
    table /= unit
    plain = table if prefer is None else table.copy()
    tie = _prefer(table, prefer)
    program = Program(
        table,
        plain,
        np.concatenate((np.zeros((units.shape[0], 1), dtype=np.int64), units), axis=1),
        np.concatenate((np.zeros(1, dtype=np.int64), kind)),
        capacity,
    )
    columns = np.concatenate((np.full(1, -1), order))
    return program, Frame(value, forced, free, columns, forced_value, unit, tie)


def _prefer(table: FloatArray, prefer: FloatArray | None) -> float:
    """Add preferences, too small to decide but among equal totals, and return what they may add at most."""
    if prefer is None:
        return 0.0
    most = float(np.abs(prefer).max(initial=0.0)) * table.shape[0]
    if most == 0.0:
        return 0.0
    table[:, 1:] += prefer * (EQUAL / most)
    return EQUAL


def _without_forced(
    value: FloatArray, units: IntArray, kind: IntArray, capacity: IntArray, forced: IntArray
) -> tuple[IntArray, float]:
    """Capacity left beside the forced picks, and what those are worth."""
    rows = np.flatnonzero(forced >= 0)
    columns = forced[rows]
    worth = value[rows, columns]
    if not np.isfinite(worth).all():
        row = int(rows[~np.isfinite(worth)][0])
        raise ValueError(f"value of a forced pick must be a number, got row={row} column={forced[row]}")
    taken = np.bincount(
        kind[columns], units[columns] if units.ndim == 1 else units[rows, columns], capacity.size
    )
    left = capacity - taken.astype(np.int64)
    if (left < 0).any():
        short = int(np.flatnonzero(left < 0)[0])
        raise NoSolution(
            f"forced picks take {int(taken[short])} of kind {short}, capacity={int(capacity[short])}"
        )
    return left, float(worth.sum())
