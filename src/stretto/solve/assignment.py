"""The assignment problem: each row picks at most one column, each column takes units of one kind.

maximise sum(value[r, c] of the picks) such that the units taken of each kind stay within its capacity. For a
scheduler the rows are jobs, the columns configurations, the kinds GPU types; nothing here depends on that.

Three ways: `assign` chooses by itself and is meant for every day; `assign_by_prices` is the fastest and
certifies how far off it may be; `assign_exactly` is branch and bound alone, an independent second opinion.
"""

import numpy as np
from numpy.typing import ArrayLike

from stretto.solve.alternatives import Alternatives, alternatives
from stretto.solve.arrays import FloatArray, IntArray
from stretto.solve.branching import branched
from stretto.solve.lattice import ROUNDING, Found, improved, least_loss
from stretto.solve.prices import Priced, search_prices
from stretto.solve.program import Assignment, Limits, Program, Proof, read
from stretto.solve.repair import repaired

FIRST_LOOK = 10  # part of the updates spent on a proof before anything else is tried; chosen
REOPENED = 96  # nearest alternatives reopened to improve a choice; measured: 64 to 128 are alike
WIDTH = 200  # states kept meanwhile; measured: 600 gains a tenth of the remaining loss for thrice the work
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
    start: FloatArray | None = None,
) -> Assignment:
    """The best choice, or within `limits` the best one found and how far it can be from the best.

    value, allowed: (rows, cols). gpus: (cols,), or (rows, cols) where rows differ; kind: (cols,) from 0;
    capacity: (kinds,). forced: (rows,) a column that must be picked, whatever its value, or -1.
    prefer: (rows, cols), decides among choices of equal value and never otherwise. start: (kinds,) prices
    to begin with, such as those of the last round.

    A pick that is worth nothing is not made. Equal values go to fewer units of a kind, then to the lower
    column; beyond that ties fall in a way that depends on the arrays alone. Raises `NoSolution` when the
    forced picks alone exceed a capacity, `ValueError` when the arrays do not fit together.
    """
    program, frame = read(value, allowed, gpus, kind, capacity, forced, prefer)
    free = _unconstrained(program)
    if free is not None:
        return frame.assignment(free, np.zeros(program.capacity.size), 0.0, "unconstrained")

    priced = search_prices(program, limits, start)
    near = alternatives(program, priced)
    pick = repaired(program, priced.prices, near)
    found = _searched(program, priced, near, pick, limits)
    if found.is_best:
        return frame.assignment(found.pick, priced.prices, priced.bound, "exact")

    found, nodes = _branched(program, priced, near, found, limits)
    proof: Proof = "exact" if found.is_best else "relaxed"
    return frame.assignment(found.pick, priced.prices, priced.bound - found.floor, proof, nodes)


def assign_by_prices(
    value: ArrayLike,
    allowed: ArrayLike,
    gpus: ArrayLike,
    kind: ArrayLike,
    capacity: ArrayLike,
    forced: ArrayLike | None = None,
    prefer: ArrayLike | None = None,
    limits: Limits = USUAL,
    start: FloatArray | None = None,
) -> Assignment:
    """A good choice and a certified bound by the Lagrangian relaxation alone; arguments as for `assign`."""
    program, frame = read(value, allowed, gpus, kind, capacity, forced, prefer)
    free = _unconstrained(program)
    if free is not None:
        return frame.assignment(free, np.zeros(program.capacity.size), 0.0, "unconstrained")
    priced = search_prices(program, limits, start)
    near = alternatives(program, priced)
    pick = improved(program, priced.prices, near, repaired(program, priced.prices, near), REOPENED, WIDTH)
    proof: Proof = "exact" if priced.bound - program.total(pick) <= ROUNDING * priced.bound else "relaxed"
    return frame.assignment(pick, priced.prices, priced.bound, proof)


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

    Arguments as for `assign`. HiGHS tells values apart to about 1e-6 of the largest, so `prefer` is not
    certain to decide, and it can take very long: `assign` is the one for use inside a decision.
    """
    program, frame = read(value, allowed, gpus, kind, capacity, forced, prefer)
    prices = np.zeros(program.capacity.size)
    none = np.zeros(program.worth.shape[0], dtype=np.int64)
    outcome = branched(program, none, limits.nodes)
    proof: Proof = "exact" if outcome.proven else "relaxed"
    if program.worth.size:
        prices = search_prices(program, limits).prices
    return frame.assignment(outcome.pick, prices, outcome.bound, proof, outcome.nodes)


def _unconstrained(program: Program) -> IntArray | None:
    """Every row's best column, if they all fit together."""
    best = program.worth.argmax(axis=1)
    return best if (program.taken(best) <= program.capacity).all() else None


def _searched(program: Program, priced: Priced, near: Alternatives, pick: IntArray, limits: Limits) -> Found:
    """Dynamic programming: a short look for a proof, then a better choice, then a longer look."""
    loss = priced.bound - program.total(pick)
    found = least_loss(program, priced.prices, near, pick, loss, limits.updates // FIRST_LOOK)
    if found.is_best or found.loss - found.floor <= limits.good_gap * (priced.bound - found.loss):
        return found
    pick = improved(program, priced.prices, near, found.pick, REOPENED, WIDTH)
    loss = min(found.loss, priced.bound - program.total(pick))
    return least_loss(
        program, priced.prices, near, pick, loss, limits.updates, first=found.tried, floor=found.floor
    )


def _branched(
    program: Program, priced: Priced, near: Alternatives, found: Found, limits: Limits
) -> tuple[Found, int]:
    """HiGHS on the alternatives that a better choice can use, if few are left and the gap is large."""
    worth = priced.bound - found.loss
    undecided = int(np.searchsorted(near.loss, found.loss, side="right"))
    if (
        found.loss - found.floor <= limits.branch_gap * worth
        or undecided > limits.branch_columns
        or near.beyond <= found.loss
    ):
        return found, 0
    rows = np.unique(near.row[:undecided])
    outcome = branched(_core(program, near, rows, undecided), found.pick[rows], limits.nodes)
    pick = found.pick.copy()
    pick[rows] = outcome.pick
    closed = program.total(pick) - program.total_of(rows, outcome.pick)
    loss = priced.bound - program.total(pick)
    floor = loss if outcome.proven else min(loss, max(found.floor, priced.bound - closed - outcome.bound))
    return Found(pick, loss, floor, undecided, found.updates), outcome.nodes


def _core(program: Program, near: Alternatives, rows: IntArray, count: int) -> Program:
    """The program of `rows`, their bases and the nearest `count` alternatives, beside the others' bases."""
    closed = near.base.copy()
    closed[rows] = 0
    useful = np.zeros(program.worth.shape, dtype=np.bool_)
    useful[near.row[:count], near.column[:count]] = True
    useful[rows, near.base[rows]] = True
    useful[:, 0] = True
    worth = np.where(useful[rows], program.worth[rows], -np.inf)
    units = program.units[rows] if program.units.shape[0] > 1 else program.units
    return Program(worth, units, program.kind, program.capacity - program.taken(closed))
