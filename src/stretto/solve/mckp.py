"""The multiple-choice knapsack problem: each row picks at most one column, which takes units of one kind.

maximise sum(value[r, c] of the picks) such that the units taken of each kind stay within its capacity. For a
scheduler the rows are jobs, the columns configurations, the kinds GPU types; nothing here depends on that.

There are three ways. `assign` chooses by itself and is meant for every day. `assign_by_prices` is the fastest
and certifies how far off it may be. `assign_exactly` is branch and bound alone, an independent second
opinion.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from stretto.solve.arrays import BoolArray, FloatArray, IntArray
from stretto.solve.branching import branched, classes_of
from stretto.solve.core_dp import ROUNDING, Incumbent, improved, least_loss
from stretto.solve.core_problem import core_of
from stretto.solve.lagrangian import Alternatives, Priced, alternatives, search_prices
from stretto.solve.program import (
    Assignment,
    Frame,
    Knapsack,
    Limits,
    Program,
    Proof,
    SparseKnapsack,
    read,
)

FIRST_LOOK = 10  # part of the updates spent on a proof before anything else is tried; chosen
REOPENED = (96, 192)  # nearest alternatives reopened to improve a choice, in turn; measured
WIDTH = 200  # states kept meanwhile; measured: 600 gains a little for thrice the work
MOST_PASSES = 40  # of a repair; chosen: each moves at least one row of a kind; 5 to 15 are usual
MOST_REPAIRED = 4_000  # alternatives when a choice goes on; chosen: 20,000 took longer and gained nothing
KEEPING = 0.1  # part of `Limits.kept_gap` that rows may lose by keeping what they have; chosen
USUAL = Limits()
MANY_NODES = Limits(nodes=1_000_000)


def assign(
    problem: Knapsack,
    limits: Limits = USUAL,
    start: ArrayLike | None = None,
    is_held: BoolArray | None = None,
) -> Assignment:
    """The best choice, or within `limits` the best one found and how far it can be from the best.

    start: (kinds,) prices to begin with, such as those of the last round. is_held: (cells,) of a problem
    told by them, what rows have now. Given both, most rows keep that as long as the whole is certified, at
    those prices, to be within `limits.kept_gap` of the best.

    The problem's `prefer` decides among choices whose values agree to 1e-8 of the largest one, and never
    otherwise. In a choice that is not proven, it decides only among rows that are alike.

    A pick that is worth nothing is not made. Equal values go to fewer units of a kind, then to the lower
    column. Beyond that ties fall in a way that depends on the arrays alone. Raises `NoSolution` when the
    forced picks alone exceed a capacity, `ValueError` when a value is no number or `start` does not fit.
    """
    if is_held is not None and start is not None and isinstance(problem, SparseKnapsack):
        going_on = _going_on(problem, start, is_held, limits)
        if going_on is not None:
            return going_on
    program, frame = read(problem)
    first_prices = _start(start, program, frame)
    # Where the best columns of all rows fit together there is nothing to decide.
    free = _unconstrained(program)
    if free is not None:
        return frame.assignment(free, np.zeros(program.capacity.size), 0.0, "unconstrained")

    # The relaxation gives prices and a bound; the few rows that it leaves open are searched.
    priced = search_prices(program, limits, first_prices)
    incumbent, nodes = _searched(program, priced, alternatives(program, priced.prices), limits)
    proof: Proof = "exact" if incumbent.is_best else "relaxed"
    pick = settled(program, incumbent.pick)
    return frame.assignment(pick, priced.prices, priced.bound - incumbent.floor, proof, nodes)


def _going_on(
    problem: SparseKnapsack, start: ArrayLike, is_held: BoolArray, limits: Limits
) -> Assignment | None:
    """What rows have, but where that loses most, and repaired; None where it may be too far from the best."""
    # Only cells that a choice near the best may use are read, where it is easily said which.
    prices = _checked(start, problem.capacity)
    if not prices.any():
        return None
    cells = np.arange(problem.row.size)
    if cells.size and not problem.shares_units:
        problem, cells = core_of(problem, prices, is_held, MOST_REPAIRED)
    program, frame = read(problem)
    chosen = _kept(program, frame, prices / frame.unit, is_held[cells], limits)
    if chosen is None:
        return None
    return replace(chosen, cell=np.where(chosen.cell >= 0, cells[chosen.cell], -1))


def _kept(
    program: Program, frame: Frame, prices: FloatArray, is_held: BoolArray, limits: Limits
) -> Assignment | None:
    """The same for a problem that was read."""
    reduced = program.worth - prices[program.kind] * program.units
    near = alternatives(program, prices, MOST_REPAIRED, reduced)
    most = reduced[near.base]
    bound = float(most.sum() + prices @ program.capacity)
    # What each row has, as the best of its cells that say so, and what it loses by that.
    cell = np.flatnonzero((frame.cell >= 0) & is_held[frame.cell])
    by_row = np.lexsort((-reduced[cell], program.row[cell]))
    cell = cell[by_row]
    cell = cell[np.diff(program.row[cell], prepend=-1) > 0]
    loss = most[program.row[cell]] - reduced[cell]
    # Those that lose least keep it, up to a part of what may be lost.
    by_loss = np.argsort(loss, kind="stable")
    stays = cell[by_loss[np.cumsum(loss[by_loss]) <= KEEPING * limits.kept_gap * bound]]
    pick = near.base.copy()
    pick[program.row[stays]] = stays
    pick = repaired(program, prices, near, pick)
    if bound - program.total(pick) > limits.kept_gap * program.total(pick):
        return None
    return frame.assignment(pick, prices, bound, "relaxed")


def assign_by_prices(problem: Knapsack, limits: Limits = USUAL, start: ArrayLike | None = None) -> Assignment:
    """A good choice and a certified bound by the Lagrangian relaxation alone; arguments as for `assign`."""
    program, frame = read(problem)
    first_prices = _start(start, program, frame)
    free = _unconstrained(program)
    if free is not None:
        return frame.assignment(free, np.zeros(program.capacity.size), 0.0, "unconstrained")
    priced = search_prices(program, limits, first_prices)
    # No proof is tried: the pick at the best prices, repaired and improved, stands beside the bound.
    near = alternatives(program, priced.prices)
    pick = _improved(program, priced, near, repaired(program, priced.prices, near, priced.pick))
    proof: Proof = "exact" if priced.bound - program.total(pick) <= ROUNDING * priced.bound else "relaxed"
    return frame.assignment(settled(program, pick), priced.prices, priced.bound, proof)


def assign_exactly(problem: Knapsack, limits: Limits = MANY_NODES) -> Assignment:
    """The best choice by HiGHS on the whole program, or the best one within `limits.nodes` nodes.

    Arguments as for `assign`. HiGHS tells values apart to about 1e-6 of the largest, so `prefer` decides
    only among rows that are alike. It can take very long: `assign` is the one for use inside a decision.
    """
    program, frame = read(problem)
    prices = np.zeros(program.capacity.size)
    # Prices take no part in the search: they are told because `Assignment` has them.
    outcome = branched(program, classes_of(program), program.start, limits.nodes, presolve=True)
    proof: Proof = "exact" if outcome.proven else "relaxed"
    if program.rows:
        prices = search_prices(program, limits).prices
    return frame.assignment(settled(program, outcome.pick), prices, outcome.bound, proof, outcome.nodes)


def _unconstrained(program: Program) -> IntArray | None:
    """Every row's best column, if they all fit together."""
    best = program.best(program.worth)
    return best if (program.taken(best) <= program.capacity).all() else None


def _start(prices: ArrayLike | None, program: Program, frame: Frame) -> FloatArray | None:
    """Prices in worth instead of value."""
    if prices is None:
        return None
    return _checked(prices, program.capacity) / frame.unit


def _checked(prices: ArrayLike, capacity: IntArray) -> FloatArray:
    """Prices as an array; ValueError where they are none."""
    start = np.asarray(prices, dtype=np.float64)
    if start.shape != capacity.shape or not np.isfinite(start).all():
        raise ValueError(f"start must be {capacity.size} prices, got {start.tolist()}")
    return start


def _searched(program: Program, priced: Priced, near: Alternatives, limits: Limits) -> tuple[Incumbent, int]:
    """From cheap to dear: a short look for a proof, a better choice, then a long look or branching."""
    prices = priced.prices
    pick = repaired(program, prices, near, priced.pick)
    loss = priced.bound - program.total(pick)
    incumbent = least_loss(program, prices, near, Incumbent(pick, loss), limits.updates // FIRST_LOOK)
    if _is_within(limits.good_gap, incumbent, priced):
        return incumbent, 0

    pick = _improved(program, priced, near, incumbent.pick)
    incumbent = replace(incumbent, pick=pick, loss=priced.bound - program.total(pick))
    if _is_within(limits.good_gap, incumbent, priced):
        return incumbent, 0
    outcome = _branched(program, priced, near, incumbent, limits, alike=True)
    if outcome is not None:
        return outcome
    incumbent = least_loss(program, prices, near, incumbent, limits.updates)
    if _is_within(limits.branch_gap, incumbent, priced):
        return incumbent, 0
    return _branched(program, priced, near, incumbent, limits, alike=False) or (incumbent, 0)


def _is_within(gap: float, incumbent: Incumbent, priced: Priced) -> bool:
    return incumbent.is_best or incumbent.loss - incumbent.floor <= gap * (priced.bound - incumbent.loss)


def _improved(program: Program, priced: Priced, near: Alternatives, pick: IntArray) -> IntArray:
    """Improve the better of `pick` and the repaired bases of all rows."""
    other = repaired(program, priced.prices, near, near.base)
    pick = other if program.total(other) > program.total(pick) else pick
    for count in REOPENED:
        pick = improved(program, priced.prices, near, pick, count, WIDTH)
    return pick


def _branched(
    program: Program, priced: Priced, near: Alternatives, incumbent: Incumbent, limits: Limits, alike: bool
) -> tuple[Incumbent, int] | None:
    """HiGHS on the alternatives that a better choice can use, and the nodes it took; None if they are many.

    `alike`: only where most rows have equals. Then there are few classes, which is as hard for the core DP as
    it is easy for branching.
    """
    # Only alternatives that lose less than the incumbent can be part of a better choice.
    rounded = incumbent.loss + ROUNDING * priced.bound  # what `incumbent` itself uses must not fall outside
    undecided = int(np.searchsorted(near.loss, rounded, side="right"))
    if near.beyond <= rounded:
        return None
    if undecided == 0:  # every other choice uses an alternative, and loses more
        return replace(incumbent, floor=incumbent.loss), 0
    # Branch over the rows that have such alternatives; all others keep their bases.
    strays = np.flatnonzero(incumbent.pick != near.base)
    rows = np.unique(np.concatenate((program.row[near.cell[:undecided]], strays)))
    core, cells = _core(program, near, rows, undecided, incumbent.pick)
    classes = classes_of(core)
    if classes.cell.size > limits.branch_cells or (alike and 2 * len(classes.members) > rows.size):
        return None
    outcome = branched(core, classes, np.searchsorted(cells, incumbent.pick[rows]), limits.nodes)
    # Put both parts together; the bound of the branched part bounds the whole.
    pick = incumbent.pick.copy()
    pick[rows] = cells[outcome.pick]
    closed = program.total(pick) - program.total(pick[rows])
    loss = priced.bound - program.total(pick)
    floor = loss if outcome.proven else min(loss, max(incumbent.floor, priced.bound - closed - outcome.bound))
    return replace(incumbent, pick=pick, loss=loss, floor=floor), outcome.nodes


def _core(
    program: Program, near: Alternatives, rows: IntArray, count: int, pick: IntArray
) -> tuple[Program, IntArray]:
    """The program of `rows`: their bases, their nearest `count` alternatives and what they have in `pick`.

    Also its cells (cells of the core,) as cells of the whole, ascending. All other rows keep their bases, as
    they do in `pick`. Without preferences: branching would not see them, and equal rows are alike without.
    """
    closed = near.base.copy()
    closed[rows] = program.start[rows]
    cells = np.unique(np.concatenate((near.cell[:count], near.base[rows], pick[rows], program.start[rows])))
    row = np.searchsorted(rows, program.row[cells])
    core = Program(
        start=np.searchsorted(row, np.arange(rows.size)),
        row=row,
        column=program.column[cells],
        worth=program.plain[cells],
        plain=program.plain[cells],
        units=program.units[cells],
        kind=program.kind[cells],
        capacity=program.capacity - program.taken(closed),
        sort=None,
        shares_units=program.shares_units,
        size=program.size,
    )
    return core, cells


@dataclass(frozen=True, slots=True)
class _Moves:
    """Cells a row may move to: its alternatives, its base and "none"."""

    row: IntArray
    cell: IntArray
    worth: FloatArray
    units: IntArray
    kind: IntArray


def repaired(program: Program, prices: FloatArray, near: Alternatives, pick: IntArray) -> IntArray:
    """A pick for each row (rows,) that keeps within the capacities and that no single move can improve.

    From the pick that prices suggest: give units back, then hand out the rest. Both steps move rows along
    their nearest alternatives, many rows at a time. They sort the moves by what they cost (or gain) per unit.
    They take as many from the front as are needed (or fit), and look again.
    """
    moves = _moves(program, near)
    return _filled(program, prices, _given_back(program, prices, pick, moves), moves)


def _moves(program: Program, near: Alternatives) -> _Moves:
    cell = np.concatenate((near.cell, near.base, program.start))
    return _Moves(program.row[cell], cell, program.worth[cell], program.units[cell], program.kind[cell])


def _given_back(program: Program, prices: FloatArray, pick: IntArray, moves: _Moves) -> IntArray:
    """Move rows to what costs least for each unit it frees, until no kind is over its capacity."""
    pick = pick.copy()
    reduced = moves.worth - prices[moves.kind] * moves.units
    for count in range(MOST_PASSES + 1):
        spare = program.capacity - program.taken(pick)
        over = spare < 0
        if not over.any():
            break
        # What each move would free of the kind that its row holds now, and whether it may land.
        worth, units, kind = _now(program, pick, moves.row)
        stays = moves.kind == kind
        freed = units - np.where(stays, moves.units, 0)
        useful = over[kind] & (freed > 0) & (stays | (moves.units <= np.maximum(spare, 0)[moves.kind]))
        if count == MOST_PASSES:  # enough of fine moves: "none" always frees and always fits
            useful &= program.column[moves.cell] == 0
        # The moves that lose least for each unit that is needed, until each kind has enough.
        loss = worth - prices[kind] * units - reduced
        needed = np.minimum(freed, -spare[kind])  # what is freed beyond the need pays for nothing
        chosen = _best_per_row(useful, loss / np.maximum(needed, 1), moves.row)
        chosen = chosen[_before_enough(kind[chosen], freed[chosen], -spare)]
        lands = np.where(stays[chosen], 0, moves.units[chosen])
        chosen = chosen[_fitting(moves.kind[chosen], lands, np.maximum(spare, 0))]
        pick[moves.row[chosen]] = moves.cell[chosen]
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
        pick[moves.row[chosen]] = moves.cell[chosen]
    return pick


def _now(program: Program, pick: IntArray, row: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Worth, units and kind of the present pick of each move's row: (moves,) each."""
    cell = pick[row]
    return program.worth[cell], program.units[cell], program.kind[cell]


def _best_per_row(useful: BoolArray, cost: FloatArray, row: IntArray) -> IntArray:
    """The cheapest useful move of each row that has one, cheapest first; ties by the moves' order."""
    by_cost = useful.nonzero()[0]
    by_cost = by_cost[cost[by_cost].argsort(kind="stable")]
    mover = row[by_cost]
    by_row = mover.argsort(kind="stable")  # of a row the cheapest first
    mover = mover[by_row]
    is_first = np.concatenate((mover[:1] >= 0, mover[1:] != mover[:-1]))
    cheapest: IntArray = by_cost[np.sort(by_row[is_first])]
    return cheapest


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


def settled(program: Program, pick: IntArray) -> IntArray:
    """The same columns dealt out anew within each group of alike rows, the greatest wishes first.

    Value and units taken stay as they are. What the dynamic programme proves has its preferences weighed
    already. This is for choices that were only found, or by branching, which does not see them.
    """
    if program.plain is program.worth:
        return pick
    wish, end = program.worth - program.plain, program.end
    pick = pick.copy()
    for rows in _alike(program):
        offset = pick[rows] - program.start[rows]
        if (offset == offset[0]).all():
            continue
        wishes = np.stack([wish[program.start[row] : end[row]] for row in rows.tolist()])
        dealt = _dealt(wishes, offset)
        each = np.arange(rows.size)
        if wishes[each, dealt].sum() > wishes[each, offset].sum():
            pick[rows] = program.start[rows] + dealt
    return pick


def _alike(program: Program) -> list[IntArray]:
    """Groups of two or more rows of one sort with the same worth and units in every column."""
    if not program.rows:
        return []
    # Rows whose sums (of whole numbers) differ are not alike. Only the others are compared cell by cell.
    sums = np.add.reduceat(program.plain.view(np.int64) * (2 * program.column + 1), program.start)
    _, which, count = np.unique(sums, return_inverse=True, return_counts=True)
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    start, end = program.start, program.end
    for row in np.flatnonzero(count[which] > 1).tolist():
        cells = slice(int(start[row]), int(end[row]))
        key = program.plain[cells].tobytes() + program.column[cells].tobytes()
        if not program.shares_units:
            key += program.units[cells].tobytes()
        sort = b"" if program.sort is None else program.sort[row].tobytes()
        groups.setdefault((sort, key), []).append(row)
    return [np.array(rows) for rows in groups.values() if len(rows) > 1]


def _dealt(wish: FloatArray, columns: IntArray) -> IntArray:
    """A column for each row of a group, from those there are: by wish, then by row and column.

    wish: (rows, cells of a row); columns: (rows,) cells from the beginning of a row.
    """
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
