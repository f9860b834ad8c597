"""The best whole numbers under a few limits: the relaxation first, then a search of what it leaves open.

Of programmes with thousands of columns and tens of rows the relaxation leaves a handful of columns broken.
Rounding gives a solution. Reduced costs show which columns cannot differ from the relaxation in any better
one: their change alone would cost more than is left to gain. The few others are searched by HiGHS.
"""

from dataclasses import dataclass

import highspy
import numpy as np
from scipy import sparse

from stretto.solve.arrays import BoolArray, FloatArray
from stretto.solve.linear import quiet_highs, unit_of

_ROWWISE = int(highspy.MatrixFormat.kRowwise)
_MAXIMISE = int(highspy.ObjSense.kMaximize)
CLOSE = 1e-6  # absolute, on values of about 1 to 1000; rounding of the solver
SEARCHES = (0.05, 1.0)  # of what there is to gain: a quick search first leaves less to the second; chosen
MOST_ADDED = 400  # columns that are tried when a rounded solution is filled up; chosen


@dataclass(frozen=True, slots=True, eq=False)
class IntegerPacking:
    """A solution in whole numbers and how good any other can be."""

    x: FloatArray  # (columns,) whole numbers
    value: float
    bound: float


def most_valuable(
    value: FloatArray, rows: sparse.csr_array, limits: FloatArray, upper: FloatArray, most_nodes: int
) -> IntegerPacking | None:
    """Most of value @ x with rows @ x <= limits and whole 0 <= x <= upper; None where the solver gives up.

    rows and limits: not negative, so that x = 0 is a solution and less of a solution is one too. upper:
    whole. At most `most_nodes` nodes of branch and bound.
    """
    unit = unit_of(value)
    packing = _most_valuable(value / unit, rows, limits, upper, most_nodes)
    return packing and IntegerPacking(packing.x, packing.value * unit, packing.bound * unit)


def _most_valuable(
    value: FloatArray, rows: sparse.csr_array, limits: FloatArray, upper: FloatArray, most_nodes: int
) -> IntegerPacking | None:
    """The same for values of a usual size."""
    relaxed = _relaxed(value, rows, limits, upper)
    if relaxed is None:
        return None
    # The relaxation bounds the value; rounded down and filled up it is a first choice.
    x, cost = relaxed
    unit = _unit(value)
    best = float(value @ x)
    bound = np.floor(best / unit + CLOSE) * unit if unit else best
    known = _filled_up(np.floor(x + CLOSE), value, cost, rows, limits, upper)
    got = float(value @ known)
    # Search the rows whose reduced cost a better choice could afford, a few first, then all of them.
    for share in SEARCHES:
        if got >= bound - CLOSE:
            break
        reach = share * _to_gain(best, got, unit)
        other, limit = _searched(value, rows, limits, upper, x, np.abs(cost) <= reach + CLOSE, most_nodes)
        if float(value @ other) > got:
            known, got = other, float(value @ other)
        if reach >= _to_gain(best, got, unit):  # whatever is better was among what was searched
            bound = min(bound, max(got, limit))
            break
    return IntegerPacking(known, got, max(got, bound))


def _to_gain(best: float, got: float, unit: float) -> float:
    """What a column's reduced cost may be at most in a solution that is better than the one at hand."""
    return max(best - got - unit, 0.0) + CLOSE


def _searched(
    value: FloatArray,
    rows: sparse.csr_array,
    limits: FloatArray,
    upper: FloatArray,
    relaxed: FloatArray,
    is_open: BoolArray,
    most_nodes: int,
) -> tuple[FloatArray, float]:
    """The best solution that differs from the relaxed one in open columns only, and a bound on those."""
    is_open = is_open | (np.abs(relaxed - np.rint(relaxed)) > CLOSE)
    fixed = np.where(is_open, 0.0, np.rint(relaxed))
    room = np.maximum(limits - rows @ fixed, 0.0)
    rest = solve_whole(value[is_open], sparse.csr_array(rows[:, is_open]), room, upper[is_open], most_nodes)
    if rest is None:
        return fixed, np.inf
    bound = float(value @ fixed) + rest.bound
    fixed[is_open] = rest.x
    return fixed, bound


def solve_whole(
    value: FloatArray, rows: sparse.csr_array, limits: FloatArray, upper: FloatArray, most_nodes: int
) -> IntegerPacking | None:
    """The same by branch and bound alone; None where no solution was found within `most_nodes`."""
    highs = quiet_highs()
    highs.setOptionValue("mip_max_nodes", most_nodes)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", CLOSE)
    unit = unit_of(value)
    _load(highs, value / unit, rows, limits, upper, whole=True)
    highs.run()
    info = highs.getInfo()
    if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return None
    x = np.rint(np.array(highs.getSolution().col_value, dtype=np.float64))
    got = float(value @ x)
    return IntegerPacking(x, got, max(got, float(info.mip_dual_bound) * unit))


def _relaxed(
    value: FloatArray, rows: sparse.csr_array, limits: FloatArray, upper: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """(columns,) the optimum in fractions, and what one more of each column would change the value by."""
    highs = quiet_highs()
    highs.setOptionValue("presolve", "off")  # measured: it takes longer than the simplex method does
    _load(highs, value, rows, limits, upper, whole=False)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    return np.array(solution.col_value, dtype=np.float64), np.array(solution.col_dual, dtype=np.float64)


def _load(
    highs: highspy.Highs,
    value: FloatArray,
    rows: sparse.csr_array,
    limits: FloatArray,
    upper: FloatArray,
    whole: bool,
) -> None:
    # Row by row as scipy stores it; 0 <= x <= upper, rows @ x <= limits, all whole or none.
    highs.passModel(
        len(value),
        len(limits),
        rows.nnz,
        _ROWWISE,
        _MAXIMISE,
        0.0,
        value,
        np.zeros(len(value)),
        upper,
        np.full(len(limits), -np.inf),
        limits,
        rows.indptr.astype(np.int32),
        rows.indices.astype(np.int32),
        rows.data.astype(np.float64),
        np.full(len(value), whole, dtype=np.int32),
    )


def _unit(value: FloatArray) -> float:
    """What every value is a multiple of, where they are whole; else 0."""
    whole = np.rint(value)
    if not len(value) or np.abs(value - whole).max() > 0:
        return 0.0
    return float(np.gcd.reduce(whole.astype(np.int64)))


def _filled_up(
    x: FloatArray,
    value: FloatArray,
    cost: FloatArray,
    rows: sparse.csr_array,
    limits: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """A solution with more of some columns, those that cost least first, as far as the limits allow."""
    room = limits - rows @ x
    more = np.flatnonzero((x < upper) & (value > 0))
    more = more[np.lexsort((-value[more], np.abs(cost[more])))][:MOST_ADDED]
    columns = rows[:, more].toarray()
    for index, column in enumerate(more.tolist()):
        needs = columns[:, index]
        while x[column] < upper[column] and (needs <= room + CLOSE).all():
            x[column] += 1.0
            room -= needs
    return x
