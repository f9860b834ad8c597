"""Integer matrices by a genetic algorithm: rows share the units of columns, and each row's worth is a table.

The search of Pollux (Qiao et al., OSDI 2021, section 4.2), as mathematics: a population of matrices is
crossed, mutated, repaired and selected. Every step is made for the whole population at once, on the list of
its non-zero entries. An allowed matrix has at most as many of these as there are units. So a generation costs
some passes over `population * (units + rows)` numbers and over `population * rows * columns` bytes. That is
about 0.3 ms + 15 ns for each of the former + 1 ns for each of the latter. It was measured on one core from 7
x 16 to 400 x 443 (`benchmarks/pollux.py`). Memory is about 12 bytes for each of the latter.

Only one number is maximised. So the sorting by dominance of NSGA-II, which Pollux's code takes from a
library, comes down to keeping the best of parents and children. As there, equal matrices are kept once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stretto.solve.arrays import BoolArray, FloatArray, IntArray

Population = NDArray[np.int8]  # (population, rows, columns) units
MOST_UNITS = 127  # of one entry: what one byte holds


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Which matrices (rows, columns) of non-negative integers are allowed, and what they are worth.

    A matrix is worth the sum of its rows: `worth[row, spread, total]`, where `spread` is 1 for a row with
    more than one non-zero entry. For a row equal to `current` it is `kept_worth` instead. Finite throughout,
    and `worth[:, 0, 0]` is that of an empty row. A row is empty or has `least` to `most` units; at most
    `spread_room` spread rows meet in a column.

    Invariants: limits from 0 to MOST_UNITS, `least` at least 1, `most` within the last axis of `worth`.
    """

    worth: FloatArray  # (rows, 2, units + 1); `most` does not exceed `units`
    kept_worth: FloatArray  # (rows,)
    current: IntArray  # (rows, columns)
    limit: IntArray  # (rows, columns) most units of an entry, 0 to MOST_UNITS
    capacity: IntArray  # (columns,) most units of a column
    least: IntArray  # (rows,)
    most: IntArray  # (rows,) 0: the row stays empty
    spread_room: IntArray  # (columns,)

    def __post_init__(self) -> None:
        """Check the invariants."""
        if not 0 <= self.limit.min(initial=0) <= self.limit.max(initial=0) <= MOST_UNITS:
            raise ValueError(f"limit must lie between 0 and {MOST_UNITS}, got up to {self.limit.max()}")
        if self.least.min(initial=1) < 1:
            raise ValueError(f"least must be >= 1, got {self.least.min()}")
        if self.most.max(initial=0) >= self.worth.shape[2]:
            raise ValueError(f"most must be < {self.worth.shape[2]}, got {self.most.max()}")

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.limit)

    @property
    def cells(self) -> int:
        """Entries of one matrix."""
        return int(self.limit.size)

    @cached_property
    def copies(self) -> "dict[int, Copies]":
        """Columns for so many matrices at once; made when first asked for."""
        return {}


@dataclass(frozen=True, eq=False)
class Copies:
    """Columns of a problem, repeated for each matrix of a population; (matrices * rows,) or * columns."""

    least: IntArray
    most: IntArray
    lumpy: BoolArray  # cannot be reached by changing single entries
    capacity: IntArray
    spread_room: IntArray
    kept_worth: FloatArray
    currently_filled: IntArray  # non-zero entries of the current matrix
    first_worth: IntArray  # where a row's worth begins


def _copies(problem: AllocationProblem, size: int) -> Copies:
    if size not in problem.copies:
        counts = problem.worth.shape[2]
        problem.copies[size] = Copies(
            least=np.tile(problem.least, size),
            most=np.tile(problem.most, size),
            lumpy=np.tile(problem.least > 1, size),
            capacity=np.tile(problem.capacity, size),
            spread_room=np.tile(problem.spread_room, size),
            kept_worth=np.tile(problem.kept_worth, size),
            currently_filled=np.tile(np.count_nonzero(problem.current, axis=1), size),
            first_worth=np.tile(np.arange(problem.rows) * 2 * counts, size),
        )
    return problem.copies[size]


@dataclass(frozen=True, eq=False)
class Evolved:
    """The last population, best first, and what its matrices are worth."""

    population: Population
    worth: FloatArray  # (population,) not increasing


def evolve(
    problem: AllocationProblem,
    start: Population,
    generations: int,
    rng: np.random.Generator,
    rate: float = 0.5,
) -> Evolved:
    """The best of `generations * population` matrices bred from `start`, whose own are repaired first.

    A count, not a clock: the same generator and arrays always give the same choice. `rate` is explained
    at `mutated`.
    """
    size = len(start)
    label = rng.random(problem.cells)
    parents, entries = repair(problem, np.minimum(start, problem.limit).astype(np.int8), rng)
    worth, marks = _worth(problem, entries, size), _marks(entries, label, size)
    ranked = np.argsort(-worth, kind="stable")
    for _ in range(generations if problem.cells else 0):
        # Uniform crossover, mutation, repair; then the best distinct ones of parents and children live on.
        children = crossed(parents, ranked, rng)
        children, entries = repair(problem, mutated(problem, children, rate, rng), rng)
        worth_of_all = np.concatenate([worth, _worth(problem, entries, size)])
        marks_of_all = np.concatenate([marks, _marks(entries, label, size)])
        kept = _best_distinct(worth_of_all, marks_of_all, size)
        # Children take the places of dead parents in the same arrays: a population is large to copy.
        born, dead = kept[kept >= size], np.ones(size, dtype=np.bool_)
        dead[kept[kept < size]] = False
        parents[dead] = children[born - size]
        worth[dead], marks[dead] = worth_of_all[born], marks_of_all[born]
        ranked = np.argsort(-worth, kind="stable")
    return Evolved(parents[ranked], worth[ranked])


def best_alone(problem: AllocationProblem) -> Evolved:
    """What is best for a single row, without a search: every total, in as few columns as can be.

    Exact where the row is worth no less on fewer columns. What it has now comes first among equals.
    """
    room = np.minimum(problem.limit[0], problem.capacity)
    largest_first = np.argsort(-room, kind="stable")
    taken = np.cumsum(room[largest_first]) - room[largest_first]
    totals = np.arange(problem.most[0] + 1)[:, None]
    packed = np.zeros((len(totals), len(room)), dtype=np.int64)
    packed[:, largest_first] = np.clip(totals - taken, 0, room[largest_first])
    rows = np.concatenate([problem.current, packed])[:, None].astype(np.int8)
    rows = rows[is_allowed(problem, rows)]
    worth = worth_of(problem, rows)
    ranked = np.argsort(-worth, kind="stable")
    return Evolved(rows[ranked], worth[ranked])


def worth_of(problem: AllocationProblem, population: Population) -> FloatArray:
    """(population,) the worth of matrices, which need not be allowed but have no row above `units`."""
    return _worth(problem, _entries(population), len(population))


def crossed(parents: Population, ranked: IntArray, rng: np.random.Generator) -> Population:
    """As many children: pairs of tournament winners swap the rows below a random cut.

    ranked: (population,) indices of the parents, best first; a tournament takes the better of two at random.
    """
    size, rows, columns = parents.shape
    pairs = -(-size // 2)
    winners = ranked[rng.integers(0, size, (2, 2, pairs)).min(axis=0)]  # (2 parents, pairs)
    below = np.arange(rows) >= rng.integers(0, rows, pairs)[:, None]
    first, second = winners[0][:, None], winners[1][:, None]
    origin = np.concatenate([np.where(below, second, first), np.where(below, first, second)])[:size]
    taken = (origin * rows + np.arange(rows)).ravel()
    children: Population = parents.reshape(size * rows, columns).take(taken, axis=0)
    return children.reshape(size, rows, columns)


def filled(problem: AllocationProblem, population: Population, rng: np.random.Generator) -> Population:
    """The matrices repaired, with `least` units for empty rows wherever idle units allow, in random order.

    A start for `evolve`: which rows go without is the first thing to get right, and mutation takes long to.
    Overwrites `population`.
    """
    population, _ = repair(problem, population, rng)
    size = len(population)
    idle = problem.capacity - population.sum(axis=1, dtype=np.int64)
    # A row on several columns takes one of the few places that a column has for such rows.
    is_spread = np.count_nonzero(population, axis=2) > 1
    open_to_spread = problem.spread_room - ((population > 0) & is_spread[:, :, None]).sum(axis=1)
    wants = (population.sum(axis=2, dtype=np.int64) == 0) & (problem.most > 0)
    # Empty rows in random order, the others behind them; one row of every matrix at a time.
    turn = np.argsort(np.where(wants, rng.random(wants.shape), 2.0), axis=1)
    for row_of in turn.T[: int(wants.sum(axis=1).max(initial=0))]:
        matrix = np.flatnonzero(wants[np.arange(size), row_of])
        row = row_of[matrix]
        asked, room = problem.least[row], np.minimum(problem.limit[row], idle[matrix])
        fits_one = (room >= asked[:, None]).any(axis=1, keepdims=True)
        room = np.where(fits_one | (open_to_spread[matrix] > 0), room, 0)
        packed = _packed(asked, room, room, rng)
        packed[packed.sum(axis=1) < asked] = 0
        population[matrix, row] = packed
        idle[matrix] -= packed
        open_to_spread[matrix] -= (packed > 0) & ~fits_one
    return population


def mutated(
    problem: AllocationProblem, children: Population, rate: float, rng: np.random.Generator
) -> Population:
    """The same matrices, a few entries of each changed.

    In expectation `rate` entries of each of four kinds are changed. Any entries, those of empty rows and
    non-zero ones are replaced by any value up to their limit. Entries in columns with idle units grow by some
    of these. Uniform changes alone would hardly ever take something away, serve the row that goes without or
    use up what is left. A row with a minimum above 1 is drawn anew instead, since single entries would not
    reach it: half of the time into idle units. Overwrites `children`.
    """
    size, rows, columns = children.shape
    flat, lumpy, limit = children.reshape(-1), _copies(problem, size).lumpy, problem.limit.reshape(-1)
    entries = _entries(children)
    matrix = entries.row // rows
    used = np.bincount(entries.column, entries.value, size * columns).astype(np.int64)
    idle = _copies(problem, size).capacity - used

    # Some entries in columns with idle units grow.
    grows = _some_of_each(matrix, (idle[entries.column] > 0) & ~lumpy[entries.row], size, rate, rng)
    place, more = entries.place[grows], rng.random(grows.size) * idle[entries.column[grows]]
    flat[place] = np.minimum(entries.value[grows] + 1 + more.astype(np.int64), limit[place % problem.cells])

    # Some entries are replaced: any of a row, more likely one of an empty row, or one that is not zero.
    empty = np.bincount(entries.row, minlength=size * rows) == 0
    empty_rows = empty.reshape(size, rows).sum(axis=1)
    chance = rate / rows + np.repeat(rate / np.maximum(empty_rows, 1), rows) * empty
    rows_hit = np.flatnonzero(rng.random(size * rows) < chance)
    redrawn, changed = rows_hit[lumpy[rows_hit]], rows_hit[~lumpy[rows_hit]]
    replaced = entries.place[_some_of_each(matrix, ~lumpy[entries.row], size, rate, rng)]
    replaced = np.concatenate([replaced, changed * columns + rng.integers(0, columns, changed.size)])
    flat[replaced] = (rng.random(replaced.size) * (limit[replaced % problem.cells] + 1)).astype(np.int8)
    if redrawn.size:
        _redraw(problem, children, redrawn, rng)
    return children


def repair(
    problem: AllocationProblem, population: Population, rng: np.random.Generator
) -> tuple[Population, "Entries"]:
    """The matrices made allowed by taking units away at random, and their non-zero entries.

    In this order: from rows above `most`, from columns in which too many spread rows meet, from columns above
    `capacity`, from rows below `least`. Where rows compete they come in one random order for each matrix, so
    that a row is kept whole or gives way whole. Rows that need several columns would not survive otherwise.
    Overwrites `population`.
    """
    size, rows = population.shape[:2]
    entries = _entries(population)
    row, column, value = entries.row, entries.column, entries.value
    turn = rng.random(size * rows)
    limits = _copies(problem, size)
    # Rows above `most`, in random order of their entries.
    value = _trimmed(value, row, limits.most, rng.random(value.size))
    # Columns in which too many spread rows meet; what gives way leaves the column altogether.
    is_spread = (np.bincount(row[value > 0], minlength=size * rows) > 1)[row] & (value > 0)
    may_stay = _trimmed(is_spread.astype(np.int64), column, limits.spread_room, turn[row])
    value = np.where(is_spread & (may_stay == 0), 0, value)
    # Columns above their capacity; then rows that have fallen below their least go as a whole.
    value = _trimmed(value, column, limits.capacity, turn[row])
    totals = np.bincount(row, value, size * rows)
    value[(totals < limits.least)[row]] = 0
    population.reshape(-1)[entries.place] = value
    return population, Entries(entries.place, row, column, value)


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of a population, among them all that are not zero; columns are (entries,)."""

    place: IntArray  # in the flattened population
    row: IntArray  # matrix * rows + row
    column: IntArray  # matrix * columns + column
    value: IntArray


def _entries(population: Population) -> Entries:
    _, rows, columns = population.shape
    flat = population.reshape(-1)
    place = np.flatnonzero(flat != 0)  # numpy counts booleans several times as fast
    row = place // columns
    return Entries(place, row, place - (row - row // rows) * columns, flat[place].astype(np.int64))


def _trimmed(value: IntArray, group: IntArray, room: IntArray, turn: FloatArray) -> IntArray:
    """The values with no more than its room left to each group; small `turn` in [0, 1) is served first."""
    over = np.bincount(group, value, room.size) > room
    picked = np.flatnonzero(over[group])
    if not picked.size:
        return value
    picked = picked[np.argsort(group[picked] + turn[picked])]
    asked, owner = value[picked], group[picked]
    before = np.cumsum(asked) - asked
    is_first = np.ones(picked.size, dtype=np.bool_)
    is_first[1:] = owner[1:] != owner[:-1]
    before -= np.maximum.accumulate(np.where(is_first, before, 0))  # of the group: `before` does not fall
    left = value.copy()
    left[picked] = np.minimum(np.maximum(room[owner] - before, 0), asked)
    return left


def _some_of_each(
    group: IntArray, eligible: BoolArray, groups: int, expected: float, rng: np.random.Generator
) -> IntArray:
    """Indices of eligible members, `expected` of each group on average (fewer where there are fewer)."""
    members = np.flatnonzero(eligible)
    there_are = np.bincount(group[members], minlength=groups)
    return members[rng.random(members.size) * there_are[group[members]] < expected]


def _redraw(
    problem: AllocationProblem, children: Population, drawn: IntArray, rng: np.random.Generator
) -> None:
    """Give rows (matrix * rows + row) of the children another size and place."""
    _, rows, columns = children.shape
    by_row = children.reshape(-1, columns)
    by_row[drawn] = 0
    idle = (problem.capacity - children.sum(axis=1, dtype=np.int64))[drawn // rows]
    limit, displaces = problem.limit[drawn % rows], rng.random((drawn.size, 1)) < 0.5
    room = np.where(displaces, limit, np.clip(idle, 0, limit))
    by_row[drawn] = _packed(_any_size(problem, drawn % rows, rng), room, idle, rng)


def _any_size(problem: AllocationProblem, rows: IntArray, rng: np.random.Generator) -> IntArray:
    """(draws,) nothing, or anything from `least` to `most`, all equally likely."""
    least, most = problem.least[rows], problem.most[rows]
    drawn = (rng.random(rows.size) * (most - least + 2)).astype(np.int64)
    return np.where((drawn > 0) & (most > 0), drawn + least - 1, 0)


def _packed(asked: IntArray, room: IntArray, idle: IntArray, rng: np.random.Generator) -> Population:
    """(draws, columns) `asked` in columns with `room`: in a single one, then in idle ones, if possible."""
    whole = np.minimum(room, idle) >= asked[:, None]
    whole_piece = (room > 0) & (idle >= np.minimum(asked[:, None], room))
    order = np.argsort(rng.random(room.shape) - whole_piece - whole, axis=1)
    room = np.take_along_axis(room, order, axis=1)
    packed = np.zeros(room.shape, dtype=np.int8)
    given = np.clip(asked[:, None] - (np.cumsum(room, axis=1) - room), 0, room)
    np.put_along_axis(packed, order, given.astype(np.int8), axis=1)
    return packed


def _worth(problem: AllocationProblem, entries: Entries, size: int) -> FloatArray:
    rows, copies = problem.rows, _copies(problem, size)
    total = np.bincount(entries.row, entries.value, size * rows).astype(np.int64)
    filled = np.bincount(entries.row[entries.value > 0], minlength=size * rows)
    now = problem.current.reshape(-1)[entries.place % problem.cells]
    differing = np.bincount(entries.row[entries.value != now], minlength=size * rows)
    changed = (differing > 0) | (filled != copies.currently_filled)
    place = copies.first_worth + (filled > 1) * problem.worth.shape[2] + total
    by_row = np.where(changed, problem.worth.reshape(-1)[place], copies.kept_worth)
    return np.asarray(by_row.reshape(size, rows).sum(axis=1))


def _marks(entries: Entries, label: FloatArray, size: int) -> FloatArray:
    """(population,) a number that equal matrices share and others, but for an unlikely chance, do not."""
    matrix, cell = np.divmod(entries.place, label.size)
    return np.bincount(matrix, entries.value * label[cell], size).astype(np.float64)


def _best_distinct(worth: FloatArray, marks: FloatArray, size: int) -> IntArray:
    """(size,) indices of the best; equal matrices only where there are too few others."""
    again = np.ones(worth.size, dtype=np.bool_)
    again[np.unique(marks, return_index=True)[1]] = False
    return np.lexsort((-worth, again))[:size]


def is_allowed(problem: AllocationProblem, population: Population) -> BoolArray:
    """(population,) whether each matrix keeps every limit of the problem."""
    by_row, filled = population.sum(axis=2, dtype=np.int64), np.count_nonzero(population, axis=2)
    by_column = population.sum(axis=1, dtype=np.int64)
    meeting = ((filled > 1)[:, :, None] & (population > 0)).sum(axis=1)
    allowed = ((population >= 0) & (population <= problem.limit)).all(axis=(1, 2))
    allowed &= ((by_row == 0) | ((by_row >= problem.least) & (by_row <= problem.most))).all(axis=1)
    allowed &= ((by_column <= problem.capacity) & (meeting <= problem.spread_room)).all(axis=1)
    return np.asarray(allowed)
