"""Exact choice near the relaxation: dynamic programming over the lattice of units used.

Only rows with an alternative among the nearest N are open; all others keep their base. A state is what the
open rows handled so far have used of each kind, with the least loss that leads to it. Rows that are alike
reach the same states in any order, so equal jobs cost nothing extra. A state is dropped when its loss alone
exceeds `ceiling`, the loss of the next alternative. It is dropped also when more units would stay unused than
that pays for. A choice outside the N alternatives has lost at least as much. If the best choice found loses
no more, it is the best of all, else N grows. (The core of a knapsack problem, Balas and Zemel 1980, grown as
in Pisinger 1995, for one pick per row and several capacities.)

With few states kept after each row the same search improves a given choice at any size.
"""

from dataclasses import dataclass

import numpy as np

from stretto.solve.arrays import FloatArray, IntArray
from stretto.solve.lagrangian import Alternatives
from stretto.solve.program import Program

FIRST_ALTERNATIVES = 32  # chosen, as the growth: most 64-GPU problems end in the first or second try
GROWTH = 2
ROUNDING = 1e-12  # losses nearer than this are equal
KEY_BITS = 62  # a state's units of all kinds are packed into one integer
UNFILLED = (
    0.3  # share of their price that units out of place cost a state when room is short; 0.1 to 1 are alike
)


@dataclass(frozen=True, slots=True)
class Incumbent:
    """How far the search came."""

    pick: IntArray  # (rows,) the best choice known
    loss: float  # what it loses
    floor: float = 0.0  # no choice loses less than this
    tried: int = 0  # nearest alternatives searched

    @property
    def is_best(self) -> bool:
        """Whether nothing loses less than the best choice known."""
        return self.loss <= self.floor


def least_loss(
    program: Program, prices: FloatArray, near: Alternatives, known: Incumbent, updates: int
) -> Incumbent:
    """Search among ever more alternatives until the best choice is proven or `updates` are spent.

    An update is one option of one state. Goes on from where `known` came to.
    """
    pick, loss, floor, tried = known.pick, known.loss, known.floor, known.tried
    while loss > floor + ROUNDING:
        count = min(max(FIRST_ALTERNATIVES, tried * GROWTH), near.loss.size)
        # Any choice outside these alternatives loses at least as much as the first of them that is left out.
        outside = float(near.loss[count]) if count < near.loss.size else near.beyond
        core = _open(program, prices, near, near.base, count)
        best = _search(core, min(outside, loss), updates)
        updates -= best.updates
        # Out of updates: what is proven so far stands.
        if not best.complete:
            return Incumbent(pick, loss, floor, tried)
        if best.options is not None and best.loss < loss - ROUNDING:
            pick, loss = _with_options(near.base, core, best.options), best.loss
        # The search was complete, so nothing better is inside, and `outside` bounds the rest.
        floor, tried = max(floor, outside), count
        if count == near.loss.size:
            break
    return Incumbent(pick, loss, loss if loss <= floor + ROUNDING else floor, tried)


def improved(
    program: Program, prices: FloatArray, near: Alternatives, pick: IntArray, count: int, width: int
) -> IntArray:
    """A pick (rows,) at least as good, by reopening what deviates and the `count` nearest alternatives.

    After each row only the `width` most promising states are kept: good, not proven.
    """
    core = _open(program, prices, near, pick, count)
    best = _search(core, np.inf, updates=2**62, width=width)
    if best.options is None:
        return pick
    better = _with_options(pick, core, best.options)
    return better if program.total(better) > program.total(pick) else pick


@dataclass(frozen=True, slots=True)
class _Core:
    """The open rows in the order of the search, and the options of each."""

    begin: list[int]  # (open rows,) where its options begin
    end: list[int]  # (open rows,) and end
    row: IntArray  # (options,)
    cell: IntArray  # (options,)
    loss: FloatArray  # (options,)
    taken: IntArray  # (options, kinds) units
    most: IntArray  # (open rows, kinds) units by its largest option
    least: IntArray  # (open rows, kinds) and by its smallest
    usual: IntArray  # (open rows, kinds) and by the pick it had
    left: IntArray  # (kinds,) capacity beside the closed rows; negative if those alone take too much
    prices: FloatArray  # (kinds,)


@dataclass(frozen=True, slots=True)
class _Best:
    options: IntArray | None = None  # (open rows,) option of each, None if no choice came to the end
    loss: float = np.inf
    updates: int = 0
    complete: bool = True  # False: given up before the last row


def _open(program: Program, prices: FloatArray, near: Alternatives, pick: IntArray, count: int) -> _Core:
    """Open the rows of the nearest `count` alternatives, and those whose pick is not their base.

    Rows that may take most of value come first: the small ones then fill what is left.
    """
    # Options of every open row: its base, its nearest alternatives, and its pick where that is another.
    strays = np.flatnonzero(pick != near.base)
    opened = np.unique(np.concatenate((program.row[near.cell[:count]], strays)))
    cell = np.concatenate((near.base[opened], near.cell[:count], pick[strays]))
    cell = cell[np.argsort(program.row[cell], kind="stable")]  # within a row: its base, then by loss
    row = program.row[cell]
    reduced = program.worth[cell] - prices[program.kind[cell]] * program.units[cell]

    # What each option takes, and of each row the most, the least and what its pick takes.
    taken = np.zeros((row.size, prices.size), dtype=np.int64)
    taken[np.arange(row.size), program.kind[cell]] = program.units[cell]
    start = np.searchsorted(row, opened)
    usual = np.zeros((opened.size, prices.size), dtype=np.int64)
    usual[np.arange(opened.size), program.kind[pick[opened]]] = program.units[pick[opened]]
    most, least = usual, usual
    if opened.size:
        most, least = np.maximum.reduceat(taken, start), np.minimum.reduceat(taken, start)
    # The order of the search, and what the closed rows leave.
    order = np.argsort(-(most @ prices), kind="stable")
    sizes = np.diff(np.append(start, row.size))
    begin, end = start[order], (start + sizes)[order]
    left = program.capacity - program.taken(pick) + usual.sum(axis=0)
    loss = np.repeat(reduced[start], sizes) - reduced
    return _Core(
        begin.tolist(),
        end.tolist(),
        row,
        cell,
        loss,
        taken,
        most[order],
        least[order],
        usual[order],
        left,
        prices,
    )


def _search(core: _Core, ceiling: float, updates: int, width: int | None = None) -> _Best:
    """Go through the open rows, keeping for each lattice point the least loss that reaches it."""
    rest_most, rest_least, rest_usual = _rest(core.most), _rest(core.least), _rest(core.usual)
    waste = np.full(core.left.size, core.left.max(initial=0))
    paid = core.prices > 0
    if ceiling < np.inf:
        waste[paid] = np.minimum(waste[paid], ceiling / core.prices[paid] + ROUNDING).astype(np.int64)
    high = np.minimum(core.left, core.most.sum(axis=0)) - rest_least  # a later row needs its least
    low = np.maximum(core.left - waste - rest_most, 0)  # and can take its most
    if (core.left < 0).any() or (low > high).any():
        return _Best()
    packing = _packing(np.maximum(high.max(axis=0, initial=0), core.most.max(axis=0, initial=0)))
    if packing is None:
        return _Best(complete=False)

    guard = packing.guard
    step = packing.pack(core.taken)
    highs, lows = (packing.pack(high) | guard).tolist(), packing.pack(low).tolist()
    key, loss = np.zeros(1, dtype=np.int64), np.zeros(1)
    history: list[tuple[IntArray, int]] = []
    spent = 0
    for i, (begin, end) in enumerate(zip(core.begin, core.end, strict=True)):
        states = key.size
        spent += states * (end - begin)
        if spent > updates:
            return _Best(updates=spent, complete=False)
        key = (step[begin:end, None] + key).ravel()
        loss = (core.loss[begin:end, None] + loss).ravel()
        # A field above its limit borrows from its guard bit, so one subtraction compares all kinds.
        within = (highs[i] - key) & ((key | guard) - lows[i]) & guard
        came = ((within == guard) & (loss <= ceiling)).nonzero()[0]
        if not came.size:
            return _Best(updates=spent)
        came = _least_of_each(came, key[came], loss[came])
        if width is not None and came.size > width:
            out_of_place = np.abs(core.left - rest_usual[i] - packing.unpack(key[came]))
            promise = loss[came] + UNFILLED * (out_of_place @ core.prices)
            came = came[np.sort(np.argsort(promise, kind="stable")[:width])]
        history.append((came, states))
        key, loss = key[came], loss[came]
    total = loss + (core.left - packing.unpack(key)) @ core.prices
    best = int(total.argmin())
    return _Best(_walk_back(core.begin, history, best), float(total[best]), spent)


def _least_of_each(came: IntArray, key: IntArray, loss: FloatArray) -> IntArray:
    """Of the candidates `came`, for each key the one with the least loss, the first of equals; by key."""
    by_key = np.argsort(key, kind="stable")
    key = key[by_key]
    is_first = np.concatenate(([True], key[1:] != key[:-1]))
    first = is_first.nonzero()[0]
    if first.size == key.size:
        return came[by_key]
    loss = loss[by_key]
    least = np.minimum.reduceat(loss, first)
    group = np.cumsum(is_first) - 1
    winners = np.flatnonzero(loss == least[group])
    once = np.concatenate(([True], group[winners[1:]] != group[winners[:-1]]))
    return came[by_key[winners[once]]]


def _walk_back(begin: list[int], history: list[tuple[IntArray, int]], state: int) -> IntArray:
    """Options (open rows,) that led to a state of the last row. begin: where the options of each begin."""
    options = np.empty(len(begin), dtype=np.int64)
    for i in range(len(begin) - 1, -1, -1):
        came, states = history[i]
        option, state = divmod(int(came[state]), states)
        options[i] = begin[i] + option
    return options


@dataclass(frozen=True, slots=True)
class _Packing:
    """A field for each kind in one integer, each with a guard bit above it."""

    shift: IntArray  # (kinds,)
    field: IntArray  # (kinds,) mask of a field once shifted down
    guard: int

    def pack(self, units: IntArray) -> IntArray:
        packed: IntArray = (units << self.shift).sum(axis=-1)
        return packed

    def unpack(self, key: IntArray) -> IntArray:
        units: IntArray = (key[:, None] >> self.shift) & self.field
        return units


def _packing(most: IntArray) -> _Packing | None:
    """Fields with room for twice `most` of each kind; None if they do not fit into one integer."""
    sizes = [int(units).bit_length() + 1 for units in most]
    shift = [sum(sizes[:k]) + k for k in range(len(sizes))]
    if sum(sizes) + len(sizes) > KEY_BITS:
        return None
    guard = sum(1 << (begin + size) for begin, size in zip(shift, sizes, strict=True))
    return _Packing(np.array(shift), np.array([(1 << size) - 1 for size in sizes]), guard)


def _rest(units: IntArray) -> IntArray:
    """Sum over the rows after each row: (open rows, kinds)."""
    rest: IntArray = units.sum(axis=0) - np.cumsum(units, axis=0)
    return rest


def _with_options(pick: IntArray, core: _Core, options: IntArray) -> IntArray:
    changed = pick.copy()
    changed[core.row[options]] = core.cell[options]
    return changed
