"""The multiple-choice knapsack as it is given, and as the methods work on it: cell by cell.

A cell is one column of one row. The methods take the forced rows out, and keep cells that could be picked.
They give every row a first cell for "no pick". So the work is in proportion to what rows may pick, and not to
how many columns there are.
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
    kept_gap: float = 1e-3  # good enough for a choice that goes on from what rows have; chosen
    nodes: int = 200  # branch-and-bound nodes of HiGHS
    branch_gap: float = 0.005  # HiGHS is called above this gap, or where most rows are alike
    branch_cells: int = 600  # and only if no more cells than that, equal rows counted once, are undecided


# ── as it is given ──────────────────────────────────────────────────────────────────────────────────────────


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
        _bring_to_types(self)
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
        _check_units(units, kind, capacity)
        if not self.forced.size:
            object.__setattr__(self, "forced", np.full(rows, -1))
        forced, prefer = self.forced, self.prefer
        if forced.shape != (rows,) or forced.max(initial=-1) >= cols:
            raise ValueError(f"forced must be {rows} columns below {cols} or -1, got {forced.tolist()}")
        if prefer is not None and (prefer.shape != value.shape or not np.isfinite(prefer).all()):
            raise ValueError(f"prefer must be {value.shape} numbers, got shape {prefer.shape}")


@dataclass(frozen=True, slots=True, eq=False)
class SparseKnapsack:
    """The same, told by its cells alone: those that may be picked, and those that are forced or preferred.

    Raises `ValueError`, when it is built, where the arrays do not fit together.
    """

    rows: int
    cols: int
    row: IntArray  # (cells,) ascending
    column: IntArray  # (cells,) ascending within a row
    value: FloatArray  # (cells,) what a pick is worth; anything where it is not allowed
    allowed: BoolArray  # (cells,)
    units: IntArray  # (cells,) >= 0
    kind: IntArray  # (cells,) of the units that a pick takes, from 0
    capacity: IntArray  # (kinds,) units there are; >= 0
    # (rows,) a cell that must be picked, whatever its value, or -1; given empty: -1 for all
    forced: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    prefer: FloatArray | None = None  # (cells,) decides among choices of equal value, see `mckp.assign`
    # (rows,) or (rows, parts): only rows of one sort may count as alike; None: all are
    sort: IntArray | None = None
    # Whether a column takes the same units in every row
    shares_units: bool = False

    def __post_init__(self) -> None:
        """Bring the arrays to their types, and check shapes, order, signs, kinds and forced cells."""
        _bring_to_types(self)
        shape = self.row.shape
        of_cells = ("column", "value", "allowed", "units", "kind")
        wrong = [name for name in of_cells if getattr(self, name).shape != shape]
        if wrong or len(shape) != 1:
            raise ValueError(f"{', '.join(wrong) or 'row'} must have one entry for each of {shape} cells")
        place = self.row * self.cols + self.column
        # Where columns are within their bounds and cells ascend, the first and the last row bound all.
        if shape[0] and not (
            self.column.min() >= 0
            and self.column.max() < self.cols
            and (place[1:] > place[:-1]).all()
            and self.row[0] >= 0
            and self.row[-1] < self.rows
        ):
            raise ValueError(f"cells must stand by row and column, each once, in {self.rows} by {self.cols}")
        _check_units(self.units, self.kind, self.capacity)
        if not self.forced.size:
            object.__setattr__(self, "forced", np.full(self.rows, -1))
        if self.forced.shape != (self.rows,) or self.forced.max(initial=-1) >= shape[0]:
            raise ValueError(
                f"forced must be {self.rows} cells below {shape[0]} or -1, got {self.forced.tolist()}"
            )
        if self.prefer is not None and (self.prefer.shape != shape or not np.isfinite(self.prefer).all()):
            raise ValueError(f"prefer must be {shape} numbers, got shape {self.prefer.shape}")


Knapsack = MultipleChoiceKnapsack | SparseKnapsack


def _bring_to_types(problem: Knapsack) -> None:
    types = {"value": np.float64, "prefer": np.float64, "allowed": np.bool_}
    names = ("row", "column", "value", "allowed", "units", "kind", "capacity", "forced", "prefer", "sort")
    for name in names:
        if (array := getattr(problem, name, None)) is not None:
            object.__setattr__(problem, name, np.asarray(array, dtype=types.get(name, np.int64)))


def _check_units(units: IntArray, kind: IntArray, capacity: IntArray) -> None:
    if (units < 0).any() or (capacity < 0).any():
        raise ValueError("units and capacity must be >= 0")
    if kind.size and not (kind.min() >= 0 and kind.max() < capacity.size):
        raise ValueError(f"kind must be 0..{capacity.size - 1}, got {kind.min()}..{kind.max()}")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A column for each row, what it is worth, and how far from the best it can be at most."""

    column: IntArray  # (rows,) -1 = none
    value: float  # sum of the picks
    bound: float  # no choice is worth more
    prices: FloatArray  # (kinds,) value of one more unit of each kind, >= 0
    proof: Proof  # "relaxed": between value and bound there may be a better one
    nodes: int  # branch-and-bound nodes spent
    cell: IntArray  # (rows,) the same as cells of a problem that was told by them; -1 = none

    @property
    def gap(self) -> float:
        """`(bound - value) / value`: 0 where they agree, inf where nothing of worth was found."""
        if self.bound <= self.value:
            return 0.0
        return (self.bound - self.value) / self.value if self.value > 0 else np.inf


# ── as the methods work on it ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Program:
    """One pick per row: most total worth within the capacities. A pick is a cell.

    Cells stand row by row, in each row "none" first, which is worth nothing and takes nothing. The others
    stand by column. Where all rows agree on the units of a column, columns stand by kind and then by units.
    """

    start: IntArray  # (rows,) where the cells of each row begin: its "none"
    row: IntArray  # (cells,)
    column: IntArray  # (cells,) in the order of columns here; 0 of "none"
    worth: FloatArray  # (cells,) more than 0 but for "none"
    plain: FloatArray  # (cells,) worth without preferences; the same array where there are none
    units: IntArray  # (cells,)
    kind: IntArray  # (cells,)
    capacity: IntArray  # (kinds,)
    sort: IntArray | None  # (rows,) or (rows, parts) only rows of one sort may be alike; None: all are
    shares_units: bool  # a column takes the same units in every row
    size: int  # cells there would be if every row might pick every column

    @property
    def rows(self) -> int:
        """How many."""
        return self.start.size

    @property
    def end(self) -> IntArray:
        """(rows,) behind the cells of each row."""
        return np.append(self.start[1:], self.row.size)[: self.start.size]

    def taken(self, pick: IntArray) -> IntArray:
        """How many units of each kind the picks (rows,) take: (kinds,)."""
        return np.bincount(self.kind[pick], self.units[pick], self.capacity.size).astype(np.int64)

    def total(self, pick: IntArray) -> float:
        """What these picks are worth together."""
        return float(self.worth[pick].sum())

    def best(self, value: FloatArray) -> IntArray:
        """(rows,) the cell of each row with the largest value (cells,), the first of equals."""
        if not self.rows:
            return self.start
        most = np.maximum.reduceat(value, self.start)
        hits: IntArray = (value == most[self.row]).nonzero()[0]
        if hits.size == self.rows:  # no row has equals
            return hits
        first: IntArray = hits[hits.searchsorted(self.start)]
        return first


@dataclass(frozen=True, slots=True)
class Frame:
    """The way back from a `Program` to the problem it was read from."""

    problem: SparseKnapsack
    free: IntArray  # (rows of the program,) the rows that are not forced
    cell: IntArray  # (cells of the program,) the cell as given, -1 for "none"
    forced_value: float
    unit: float  # the value that a worth of 1 stands for, a power of two: nothing is lost in changing units
    tie: float  # worth that preferences may add to a total at most

    def assignment(
        self, pick: IntArray, prices: FloatArray, bound: float, proof: Proof, nodes: int = 0
    ) -> Assignment:
        """Put forced and free rows together again. `prices` and `bound` are in worth, of the free rows."""
        cell = self.problem.forced.copy()
        cell[self.free] = self.cell[pick]
        picked = cell[cell >= 0]
        column = np.full(cell.size, -1)
        column[cell >= 0] = self.problem.column[picked]
        value = float(self.problem.value[picked].sum())
        certified = value
        if proof == "relaxed":
            certified = max(value, (bound + self.tie) * self.unit + self.forced_value)
        return Assignment(column, value, certified, prices * self.unit, proof, nodes, cell)


def read(problem: Knapsack) -> tuple[Program, Frame]:
    """A problem in the form of a `Program`, worth 1 at most a cell, and the way back."""
    given = problem if isinstance(problem, SparseKnapsack) else cells_of(problem)
    free = np.flatnonzero(given.forced < 0)
    capacity, forced_value = given.capacity, 0.0
    if free.size < given.rows:
        capacity, forced_value = without_forced(given)

    # Only what a free row could pick; `~(<=)` instead of `>` lets NaN through, to be refused below.
    useful = given.allowed & ~(given.value <= 0) & (given.units <= capacity[given.kind])
    useful[cells_of_forced_rows(given)] = False
    cell = np.flatnonzero(useful)
    position = given.column[cell]
    if given.shares_units:
        position = _by_kind_and_units(given)[position]
        by_position = np.lexsort((position, given.row[cell]))
        cell, position = cell[by_position], position[by_position]
    plain = given.value[cell]
    largest = float(plain.max(initial=0.0))
    if not np.isfinite(largest):
        raise ValueError("value must be a number or -inf wherever a column is allowed, got NaN or inf")
    unit = 2.0 ** min(int(np.frexp(largest)[1]), MOST_EXPONENT)
    plain /= unit
    prefer, tie = _preferences(given, cell, free.size)

    # Rows as those that are left, and before the cells of each its "none": "none" stands for cell -1.
    row = given.row[cell]
    if free.size < given.rows:
        row = (np.cumsum(given.forced < 0) - 1)[row]
    count = np.bincount(row, minlength=free.size)
    place = np.arange(cell.size) + row + 1
    size = cell.size + free.size
    column, units, kind = np.zeros((3, size), dtype=np.int64)
    column[place], units[place], kind[place] = position + 1, given.units[cell], given.kind[cell]
    cell_of = np.full(size, -1)
    cell_of[place] = cell
    whole = np.zeros(size)
    whole[place] = plain
    wished = whole
    if prefer is not None:
        wished = np.zeros(size)
        wished[place] = plain + prefer
    program = Program(
        start=np.cumsum(count + 1) - (count + 1),
        row=np.repeat(np.arange(free.size), count + 1),
        column=column,
        worth=wished,
        plain=whole,
        units=units,
        kind=kind,
        capacity=capacity,
        sort=None if given.sort is None else given.sort[free],
        shares_units=given.shares_units,
        size=free.size * (given.cols + 1),
    )
    return program, Frame(given, free, cell_of, forced_value, unit, tie)


def cells_of(problem: MultipleChoiceKnapsack) -> SparseKnapsack:
    """The same problem by its cells."""
    rows, cols = problem.value.shape
    told = problem.allowed.copy()
    if problem.prefer is not None:
        told |= problem.prefer != 0
    is_forced = np.flatnonzero(problem.forced >= 0)
    told[is_forced, problem.forced[is_forced]] = True
    row, column = told.nonzero()
    shares_units = problem.units.ndim == 1 or not rows
    place = np.full((rows, cols), -1)
    place[row, column] = np.arange(row.size)
    forced = np.full(rows, -1)
    forced[is_forced] = place[is_forced, problem.forced[is_forced]]
    return SparseKnapsack(
        rows=rows,
        cols=cols,
        row=row,
        column=column,
        value=problem.value[row, column],
        allowed=problem.allowed[row, column],
        units=problem.units[column] if problem.units.ndim == 1 else problem.units[row, column],
        kind=problem.kind[column],
        capacity=problem.capacity,
        forced=forced,
        prefer=None if problem.prefer is None else problem.prefer[row, column],
        sort=None if shares_units or problem.prefer is None else _sorts(problem.units),
        shares_units=shares_units,
    )


def _sorts(units: IntArray) -> IntArray:
    """(rows,) equal numbers for rows whose columns all take the same units."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in units], dtype=np.int64)


def _by_kind_and_units(given: SparseKnapsack) -> IntArray:
    """(cols,) the place of each column by kind, then by units."""
    units, kind = np.zeros((2, given.cols), dtype=np.int64)
    units[given.column], kind[given.column] = given.units, given.kind
    place = np.empty(given.cols, dtype=np.int64)
    place[np.lexsort((units, kind))] = np.arange(given.cols)
    return place


def cells_of_forced_rows(given: SparseKnapsack) -> IntArray:
    """The cells of all rows that are forced."""
    rows = np.flatnonzero(given.forced >= 0)
    begin, end = (np.searchsorted(given.row, rows, side=side) for side in ("left", "right"))
    count = end - begin
    cells: IntArray = np.arange(int(count.sum())) + np.repeat(begin - (count.cumsum() - count), count)
    return cells


def _preferences(given: SparseKnapsack, cell: IntArray, rows: int) -> tuple[FloatArray | None, float]:
    """Of these cells, worth that decides among equal totals only, and what it may add to one at most."""
    if given.prefer is None:
        return None, 0.0
    size = np.abs(given.prefer)
    size[cells_of_forced_rows(given)] = 0.0
    most = float(size.max(initial=0.0)) * rows
    if most == 0.0:
        return np.zeros(cell.size), 0.0
    return given.prefer[cell] * (EQUAL / most), EQUAL


def without_forced(given: SparseKnapsack) -> tuple[IntArray, float]:
    """Capacity left beside the forced picks, and what those are worth."""
    rows = np.flatnonzero(given.forced >= 0)
    cells = given.forced[rows]
    worth = given.value[cells]
    if not np.isfinite(worth).all():
        row, cell = (array[~np.isfinite(worth)][0] for array in (rows, cells))
        raise ValueError(
            f"value of a forced pick must be a number, got row={row} column={given.column[cell]}"
        )
    taken = np.bincount(given.kind[cells], given.units[cells], given.capacity.size).astype(np.int64)
    left = given.capacity - taken
    if (left < 0).any():
        short = int(np.flatnonzero(left < 0)[0])
        raise NoSolution(
            f"forced picks take {int(taken[short])} of kind {short}, capacity={int(given.capacity[short])}"
        )
    return left, float(worth.sum())
