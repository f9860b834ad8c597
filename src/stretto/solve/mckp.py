"""The multiple-choice knapsack problem: each row picks at most one column, which takes units of one kind.

maximise sum(value[r, c] of the picks) such that the units taken of each kind stay within its capacity. For a
scheduler the rows are jobs, the columns configurations, the kinds GPU types; nothing here depends on that.

Three ways: `assign` chooses by itself and is meant for every day; `assign_by_prices` is the fastest and
certifies how far off it may be; `assign_exactly` is branch and bound alone, an independent second opinion.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from stretto.solve.alternatives import Alternatives, alternatives
from stretto.solve.arrays import FloatArray, IntArray
from stretto.solve.branching import branched, classes_of
from stretto.solve.core_dp import ROUNDING, Incumbent, improved, least_loss
from stretto.solve.lagrangian import Priced, search_prices
from stretto.solve.preferences import settled
from stretto.solve.program import Assignment, Frame, Limits, Program, Proof, read
from stretto.solve.repair import repaired

FIRST_LOOK = 10  # part of the updates spent on a proof before anything else is tried; chosen
REOPENED = (96, 192)  # nearest alternatives reopened to improve a choice, in turn; measured
WIDTH = 200  # states kept meanwhile; measured: 600 gains a little for thrice the work
USUAL = Limits()
MANY_NODES = Limits(nodes=1_000_000)


def assign(
    value: ArrayLike,
    allowed: ArrayLike,
    gpus: ArrayLike,
    kind: ArrayLike,
    capacity: ArrayLike,
    forced: ArrayLike | None = None,
    prefer: ArrayLike | None = None,
    limits: Limits = USUAL,
    start: ArrayLike | None = None,
) -> Assignment:
    """The best choice, or within `limits` the best one found and how far it can be from the best.

    value, allowed: (rows, cols). gpus: (cols,), or (rows, cols) where rows differ; kind: (cols,) from 0;
    capacity: (kinds,). forced: (rows,) a column that must be picked, whatever its value, or -1.
    prefer: (rows, cols), decides among choices whose values agree to 1e-8 of the largest one, and never
    otherwise; in a choice found but not proven, only among rows that are alike. start: (kinds,) prices to
    begin with, such as those of the last round.

    A pick that is worth nothing is not made. Equal values go to fewer units of a kind, then to the lower
    column; beyond that ties fall in a way that depends on the arrays alone. Raises `NoSolution` when the
    forced picks alone exceed a capacity, `ValueError` when the arrays do not fit together.
    """
    program, frame = read(value, allowed, gpus, kind, capacity, forced, prefer)
    first_prices = _start(start, program, frame)
    # Where the best columns of all rows fit together there is nothing to decide.
    free = _unconstrained(program)
    if free is not None:
        return frame.assignment(free, np.zeros(program.capacity.size), 0.0, "unconstrained")

    # The relaxation gives prices and a bound; the few rows that it leaves open are searched.
    priced = search_prices(program, limits, first_prices)
    incumbent, nodes = _searched(program, priced, alternatives(program, priced), limits)
    proof: Proof = "exact" if incumbent.is_best else "relaxed"
    pick = settled(program, incumbent.pick)
    return frame.assignment(pick, priced.prices, priced.bound - incumbent.floor, proof, nodes)


def assign_by_prices(
    value: ArrayLike,
    allowed: ArrayLike,
    gpus: ArrayLike,
    kind: ArrayLike,
    capacity: ArrayLike,
    forced: ArrayLike | None = None,
    prefer: ArrayLike | None = None,
    limits: Limits = USUAL,
    start: ArrayLike | None = None,
) -> Assignment:
    """A good choice and a certified bound by the Lagrangian relaxation alone; arguments as for `assign`."""
    program, frame = read(value, allowed, gpus, kind, capacity, forced, prefer)
    first_prices = _start(start, program, frame)
    free = _unconstrained(program)
    if free is not None:
        return frame.assignment(free, np.zeros(program.capacity.size), 0.0, "unconstrained")
    priced = search_prices(program, limits, first_prices)
    # No proof is tried: the pick at the best prices, repaired and improved, stands beside the bound.
    near = alternatives(program, priced)
    pick = _improved(program, priced, near, repaired(program, priced.prices, near, priced.pick))
    proof: Proof = "exact" if priced.bound - program.total(pick) <= ROUNDING * priced.bound else "relaxed"
    return frame.assignment(settled(program, pick), priced.prices, priced.bound, proof)


def assign_exactly(
    value: ArrayLike,
    allowed: ArrayLike,
    gpus: ArrayLike,
    kind: ArrayLike,
    capacity: ArrayLike,
    forced: ArrayLike | None = None,
    prefer: ArrayLike | None = None,
    limits: Limits = MANY_NODES,
) -> Assignment:
    """The best choice by HiGHS on the whole program, or the best one within `limits.nodes` nodes.

    Arguments as for `assign`. HiGHS tells values apart to about 1e-6 of the largest, so `prefer` decides
    only among rows that are alike. It can take very long: `assign` is the one for use inside a decision.
    """
    program, frame = read(value, allowed, gpus, kind, capacity, forced, prefer)
    prices = np.zeros(program.capacity.size)
    none = np.zeros(program.worth.shape[0], dtype=np.int64)
    # Prices take no part in the search: they are told because `Assignment` has them.
    outcome = branched(program, classes_of(program), none, limits.nodes, presolve=True)
    proof: Proof = "exact" if outcome.proven else "relaxed"
    if program.worth.size:
        prices = search_prices(program, limits).prices
    return frame.assignment(settled(program, outcome.pick), prices, outcome.bound, proof, outcome.nodes)


def _unconstrained(program: Program) -> IntArray | None:
    """Every row's best column, if they all fit together."""
    best = program.worth.argmax(axis=1)
    return best if (program.taken(best) <= program.capacity).all() else None


def _start(prices: ArrayLike | None, program: Program, frame: Frame) -> FloatArray | None:
    """Prices in worth instead of value."""
    if prices is None:
        return None
    start = np.asarray(prices, dtype=np.float64)
    if start.shape != program.capacity.shape or not np.isfinite(start).all():
        raise ValueError(f"start must be {program.capacity.size} prices, got {start.tolist()}")
    return start / frame.unit


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
    rounded = incumbent.loss + ROUNDING * priced.bound  # what `incumbent` itself uses must not fall outside
    undecided = int(np.searchsorted(near.loss, rounded, side="right"))
    if near.beyond <= rounded:
        return None
    if undecided == 0:  # every other choice uses an alternative, and loses more
        return replace(incumbent, floor=incumbent.loss), 0
    strays = np.flatnonzero(incumbent.pick != near.base)
    rows = np.unique(np.concatenate((near.row[:undecided], strays)))
    core = _core(program, near, rows, undecided, incumbent.pick)
    classes = classes_of(core)
    if classes.column.size > limits.branch_cells or (alike and 2 * len(classes.members) > rows.size):
        return None
    outcome = branched(core, classes, incumbent.pick[rows], limits.nodes)
    pick = incumbent.pick.copy()
    pick[rows] = outcome.pick
    closed = program.total(pick) - program.total_of(rows, outcome.pick)
    loss = priced.bound - program.total(pick)
    floor = loss if outcome.proven else min(loss, max(incumbent.floor, priced.bound - closed - outcome.bound))
    return replace(incumbent, pick=pick, loss=loss, floor=floor), outcome.nodes


def _core(program: Program, near: Alternatives, rows: IntArray, count: int, pick: IntArray) -> Program:
    """The program of `rows`: their bases, their nearest `count` alternatives and what they have in `pick`.

    All other rows keep their bases, as they do in `pick`.

    Without preferences: branching would not see them, and equal rows are alike without.
    """
    closed = near.base.copy()
    closed[rows] = 0
    useful = np.zeros(program.worth.shape, dtype=np.bool_)
    useful[near.row[:count], near.column[:count]] = True
    useful[rows, near.base[rows]] = True
    useful[rows, pick[rows]] = True
    useful[:, 0] = True
    worth = np.where(useful[rows], program.plain[rows], -np.inf)
    units = program.units[rows] if program.units.shape[0] > 1 else program.units
    return Program(worth, worth, units, program.kind, program.capacity - program.taken(closed))
