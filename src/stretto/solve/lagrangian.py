"""Prices for the kinds of units: the Lagrangian relaxation of the multiple-choice knapsack.

With a price per unit of each kind, every row chooses for itself. For any prices p >= 0

    L(p) = sum over rows of max over columns (worth - p * units) + p * capacity

bounds the worth of every choice within the capacities, and the p with the least L gives the bound of the
linear relaxation. L is convex and piecewise linear in a handful of prices, so a cutting-plane method finds
its minimum in 10 to 30 evaluations. It is Dantzig and Wolfe's master problem over the patterns seen so far
(what all rows together chose at some prices). That is a linear programme of `kinds + 1` rows kept here as a
small dense basis inverse. Each step goes half way from the best prices to the master's, because the master's
own jump about while it knows few patterns.

At prices p each row has a pick of its own (`base`), and any other column c, an alternative, loses it

    loss = (worth - p * units at the base) - (worth - p * units at c)  >= 0.

For every choice within the capacities, L(p) - total worth = sum of its losses + p * units left unused. So the
best choice is the one that loses least, and a choice that uses an alternative has lost at least its loss.
That is reduced-cost fixing, and the order in which the exact methods look at alternatives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, ldexp

import numpy as np
from numpy.typing import NDArray

from stretto.solve.arrays import BoolArray, FloatArray, IntArray
from stretto.solve.program import Limits, Program

HALF_WAY = 0.5  # chosen: 0.3 needs more evaluations, 0.7 more where rows are many and lumpy
FIRST_STEPS = 3  # multiplicative steps before the master knows enough; chosen, 1 to 5 are about alike
PRICE_BITS = 30  # prices keep so many bits: how a machine sums hardly reaches the choice then
GOLDEN = 0.6180339887498949
LARGE = 200_000  # cells if all could be picked; above it patterns are searched in single precision
FEW = 50_000  # cells; measured: so many are looked at in less time than it takes to stand them by place
MOST_KEPT = 60_000  # alternatives; chosen: beyond it one never mattered at 20,000 rows


@dataclass(frozen=True, slots=True)
class Priced:
    """The best prices found."""

    prices: FloatArray  # (kinds,) >= 0
    bound: float  # L(prices): no choice within the capacities is worth more
    pick: IntArray  # (rows,) about the mixture of patterns that the capacities allow on average


def search_prices(program: Program, limits: Limits, start: FloatArray | None = None) -> Priced:
    """Prices with the least L, to within `limits.price_gap`, from `start` (kinds,) or from nothing."""
    choose = chooser(program)
    master = _Master(program.capacity, limits.price_steps)
    prices = _rounded(_density(program) if start is None else np.maximum(start, 0.0))
    first_steps = FIRST_STEPS if start is None else 1
    step, last_sign = np.ones(prices.size), np.zeros(prices.size)
    best, least = prices, np.inf
    patterns = [program.start]  # as in the master: no row picks
    # Each evaluation gives a bound, and a pattern that the master may mix in.
    for count in range(limits.price_steps):
        pattern, taken, surplus = choose(prices)
        patterns.append(pattern)
        bound = surplus + float(prices @ program.capacity)
        if bound < least * (1 - 1e-12):  # a plateau must not be decided by rounding
            best, least = prices, bound
        master.add(taken, surplus + float(prices @ taken))
        # While the master knows too little, prices rise where demand exceeds capacity, and fall elsewhere.
        if count + 1 < first_steps:
            sign = np.sign(taken - program.capacity)
            step = np.where(
                sign * last_sign > 0, 1.5 * step, np.where(sign * last_sign < 0, 0.5 * step, step)
            )
            prices, last_sign = _rounded(prices * np.exp(sign * step)), sign
            continue
        # Its optimum bounds L from below; half way to its prices is steadier than all the way.
        wanted, lower = master.solve()
        if least - lower <= limits.price_gap * least:
            break
        prices = _rounded(best + HALF_WAY * (wanted - best))
    return Priced(best, _bound_at(program, best), _mixed(program, patterns, *master.mixture()))


def _bound_at(program: Program, prices: FloatArray) -> float:
    reduced = program.worth - prices[program.kind] * program.units
    return float(reduced[program.best(reduced)].sum() + prices @ program.capacity)


def _mixed(program: Program, patterns: list[IntArray], shares: FloatArray, members: IntArray) -> IntArray:
    """One pick per row, each pattern of the mixture followed by about its share of the rows.

    Rows that choose alike in every pattern stand together. Multiples of the golden ratio deal out the
    patterns evenly to any stretch of them. So the units taken come close to what the mixture takes on
    average.
    """
    chosen = np.stack([patterns[member] for member in members])
    pick: IntArray = chosen[int(shares.argmax())].copy()
    open_rows = np.flatnonzero((chosen != chosen[0]).any(axis=0))
    open_rows = open_rows[np.lexsort(program.column[chosen[:, open_rows]])]
    turn = (np.arange(1, open_rows.size + 1) * GOLDEN) % 1.0 * shares.sum()
    member = np.minimum(np.searchsorted(np.cumsum(shares), turn, side="right"), shares.size - 1)
    pick[open_rows] = chosen[member, open_rows]
    return pick


def _density(program: Program) -> FloatArray:
    """Worth per unit if all units went at one price: a first guess that needs no scale."""
    most = program.total(program.best(program.worth))
    return np.full(program.capacity.size, most / max(int(program.capacity.sum()), 1))


def _rounded(prices: FloatArray) -> FloatArray:
    _, exponent = frexp(max(prices.tolist(), default=0.0))
    scale = ldexp(1.0, PRICE_BITS - exponent)
    rounded: FloatArray = np.rint(prices * scale) / scale
    return rounded


Choice = tuple[IntArray, FloatArray, float]


def chooser(program: Program) -> Callable[[FloatArray], Choice]:
    """What all rows together choose at given prices, in the way that takes least time; both choose the same.

    Gives the picks (rows,), the units they take of each kind (kinds,), and their worth less price.
    """
    is_small = program.row.size <= FEW and program.size <= LARGE
    return FewCells(program) if is_small else ManyCells(program)


@dataclass(frozen=True, slots=True)
class FewCells:
    """Rows choose among their cells as they stand."""

    program: Program

    def __call__(self, prices: FloatArray) -> Choice:
        """As `chooser` says."""
        program = self.program
        reduced = program.worth - prices[program.kind] * program.units
        pick = program.best(reduced)
        taken = np.bincount(program.kind[pick], program.units[pick], prices.size)
        return pick, taken.astype(np.float64, copy=False), float(reduced[pick].sum())


class ManyCells:
    """Rows choose among cells that stand by their place within a row.

    The first cells of all rows stand first, then the second ones, and so on. Long rows come first, so that
    the rows that have a k-th cell are a beginning of all rows. Each place is compared with the best before it
    for all of them at once.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        precision = np.float32 if program.size > LARGE else np.float64
        count = program.end - program.start
        self.rows = np.argsort(-count, kind="stable")  # the longest first
        lengths = count[self.rows]
        # How many rows have a first cell, a second one, …
        self.reach = np.searchsorted(-lengths, -np.arange(int(lengths.max(initial=0)))).tolist()
        place = np.repeat(np.arange(len(self.reach)), self.reach)
        row = np.concatenate([np.arange(some) for some in self.reach]) if self.reach else place
        cells = program.start[self.rows[row]] + place
        self.worth: NDArray[np.floating] = program.worth[cells].astype(precision)
        self.units: NDArray[np.floating] = program.units[cells].astype(precision)
        self.kind = program.kind[cells]
        self.units_of_cell: NDArray[np.floating] = program.units.astype(precision)

    def __call__(self, prices: FloatArray) -> Choice:
        """As `chooser` says."""
        program = self.program
        reduced = self.worth - prices.astype(self.worth.dtype)[self.kind] * self.units
        best = reduced[: program.rows].copy()
        place = np.zeros(program.rows, dtype=np.int64)
        begin = 0
        for number, some in enumerate(self.reach):
            here = reduced[begin : begin + some]
            begin += some
            if number:  # equals go to the first
                np.copyto(place[:some], number, where=here > best[:some])
                np.maximum(best[:some], here, out=best[:some])
        surplus = np.empty_like(best)
        surplus[self.rows] = best
        pick = program.start.copy()
        pick[self.rows] += place
        taken = np.bincount(program.kind[pick], self.units_of_cell[pick], prices.size).astype(np.float64)
        return pick, taken, float(surplus.sum(dtype=np.float64))


class _Master:
    """The best mixture of the patterns seen so far whose average stays within the capacities.

    maximise sum(share * worth) with sum(share * taken) <= capacity and sum(share) = 1, share >= 0.
    Its duals are prices, its optimum is a lower bound on min L. Revised simplex; a new pattern leaves the
    basis feasible, so each call needs a few pivots only.
    """

    def __init__(self, capacity: IntArray, patterns: int) -> None:
        kinds = capacity.size
        self.scale = np.maximum(capacity, 1).astype(np.float64)
        size = kinds + 1 + patterns
        self.columns = np.zeros((size, kinds + 1))
        self.columns[: kinds + 1] = np.eye(kinds + 1)  # slack of each kind, and the pattern "no row picks"
        self.worth = np.zeros(size)
        self.known = kinds + 1
        self.inverse = np.eye(kinds + 1)
        self.basic = np.append(capacity / self.scale, 1.0)
        self.basic_worth = np.zeros(kinds + 1)
        self.basis = np.arange(kinds + 1)

    def add(self, taken: FloatArray, worth: float) -> None:
        self.columns[self.known, :-1] = taken / self.scale
        self.columns[self.known, -1] = 1.0
        self.worth[self.known] = worth
        self.known += 1

    def solve(self, pivots: int = 30) -> tuple[FloatArray, float]:
        """Prices (kinds,) and the mixture's worth; after `pivots` whatever prices are reached."""
        for _ in range(pivots):
            duals = self.basic_worth @ self.inverse
            gain = self.worth[: self.known] - self.columns[: self.known] @ duals
            enters = int(gain.argmax())
            if gain[enters] <= 1e-10 * abs(duals[-1]) + 1e-300:
                break
            # The pattern of greatest gain enters; the ratio test says which leaves.
            direction = self.inverse @ self.columns[enters]
            rising = direction > 1e-11
            if not rising.any():  # only rounding can bring this about: shares sum to one
                break
            ratio = np.where(rising, self.basic / np.where(rising, direction, 1.0), np.inf)
            leaves = int(ratio.argmin())
            # One pivot: the basis inverse, and the shares of what is in the basis.
            row = self.inverse[leaves] / direction[leaves]
            self.inverse -= direction[:, None] * row
            self.inverse[leaves] = row
            self.basic = np.maximum(self.basic - direction * ratio[leaves], 0.0)
            self.basic[leaves] = ratio[leaves]
            self.basic_worth[leaves] = self.worth[enters]
            self.basis[leaves] = enters
        duals = np.maximum(self.basic_worth @ self.inverse, 0.0)
        return duals[:-1] / self.scale, float(self.basic_worth @ self.basic)

    def mixture(self) -> tuple[FloatArray, IntArray]:
        """Shares of the patterns in the basis, and which those are: 0 is the empty one, then as added."""
        is_pattern = self.basis >= self.scale.size
        return self.basic[is_pattern], self.basis[is_pattern] - self.scale.size


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Cells other than each row's own, by loss; equal losses by row, then column."""

    base: IntArray  # (rows,) the cell that each row picks at the prices
    cell: IntArray  # (alternatives,)
    loss: FloatArray  # (alternatives,) ascending
    beyond: float  # every alternative left out loses at least this; inf where none is


def alternatives(
    program: Program, prices: FloatArray, most: int = MOST_KEPT, reduced: FloatArray | None = None
) -> Alternatives:
    """All alternatives to what the rows pick at these prices, or the nearest `most`.

    reduced: (cells,) worth less prices, where it is known already.
    """
    if reduced is None:
        reduced = program.worth - prices[program.kind] * program.units
    base = program.best(reduced)
    loss = reduced[base][program.row] - reduced
    if program.shares_units:
        loss[_dominated(program)] = np.inf
    loss[base] = np.inf
    beyond = np.inf
    kept = np.flatnonzero(loss < np.inf)
    if kept.size > most:
        near = np.argpartition(loss[kept], most)
        beyond = float(loss[kept[near[most]]])
        kept = kept[np.sort(near[:most])]
    kept = kept[np.argsort(loss[kept], kind="stable")]
    return Alternatives(base, kept, loss[kept], beyond)


def _dominated(program: Program) -> BoolArray:
    """(cells,) for which the same row has one of the same kind with no more units and no less worth."""
    dominated = np.zeros(program.row.size, dtype=np.bool_)
    # Stretches of a row and a kind, without "none", which costs nothing and dominates nothing of worth. Their
    # cells stand by units. The k-th of each stretch is compared with the best before it, for all at once.
    cells = np.flatnonzero(program.column > 0)
    group = program.row[cells] * program.capacity.size + program.kind[cells]
    begins = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))[: cells.size]
    ends = np.append(begins[1:], cells.size)
    best, place = program.worth[cells[begins]], begins + 1
    while (goes_on := place < ends).any():
        best, place, ends = best[goes_on], place[goes_on], ends[goes_on]
        worth = program.worth[cells[place]]
        dominated[cells[place]] = worth <= best
        best, place = np.maximum(best, worth), place + 1
    return dominated
