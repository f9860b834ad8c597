"""Themis' auction of GPUs whose leases have ended: proportional fairness, with hidden payments.

Themis (Mahajan et al., NSDI 2020), section 3 and algorithm 1. Arrays: value (bidders, columns) V = 1 / ρ of
a bidder that gets a column, NaN where it does not bid; idle (bidders,) V of one that gets nothing;
gpus and kind (columns,); capacity (types,).
"""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, FloatArray, IntArray
from stretto.solve import MultipleChoiceKnapsack, assign


@dataclass(frozen=True, slots=True, eq=False)
class Won:
    """What came of an auction. Rows are bidders."""

    column: IntArray  # won, -1 nothing
    part: FloatArray  # of its GPUs that each keeps, the rest is its payment; 1 for who won nothing


def finish_time_ratio(elapsed_s: FloatArray, remaining_s: FloatArray, ideal_s: FloatArray) -> FloatArray:
    """ρ = T_sh / T_id: seconds from submission to end as it is, over those on a share of one's own."""
    ratio: FloatArray = (elapsed_s + remaining_s) / ideal_s
    return ratio


def partial_allocation(
    value: FloatArray,
    idle: FloatArray,
    gpus: IntArray,
    kind: IntArray,
    capacity: IntArray,
    pays: BoolArray | None = None,
) -> Won:
    """The columns that maximise the product of all bidders' values, and what each winner pays.

    Bidder i keeps  c_i = Π_{k≠i} V_k(all bid) / Π_{k≠i} V_k(without i)  of what it won: bidding more than
    one's due lowers it. One assignment for all and one more for each winner that pays; pays: (bidders,), all
    unless given.
    """
    # A product is maximised by its logarithm, in which a bidder that wins nothing counts 0: its value then is
    # `idle`.
    worth = np.log(np.where(value > 0, value, 1.0) / idle[:, None])
    allowed = (value > 0) & (worth > 0)
    everybody = np.arange(len(value))
    column, total = _best(worth, allowed, gpus, kind, capacity, everybody)
    part = np.ones(len(value))
    pays = np.ones(len(value), dtype=np.bool_) if pays is None else pays
    # The hidden payment: what all others would gain if this winner had not bid.
    for row in np.flatnonzero((column >= 0) & pays).tolist():
        _, alone = _best(worth, allowed, gpus, kind, capacity, everybody[everybody != row])
        part[row] = min(np.exp(total - worth[row, column[row]] - alone), 1.0)
    return Won(column, part)


def _best(
    worth: FloatArray, allowed: BoolArray, gpus: IntArray, kind: IntArray, capacity: IntArray, rows: IntArray
) -> tuple[IntArray, float]:
    """The columns of most worth within the capacities for some bidders, and that worth."""
    if not rows.size:
        return np.zeros(0, dtype=np.int64), 0.0
    found = assign(MultipleChoiceKnapsack(worth[rows], allowed[rows], gpus, kind, capacity))
    return found.column, found.value
