"""Integer programmes given as arrays, by HiGHS, within a budget of nodes."""

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from stretto.solve.arrays import IntArray
from stretto.solve.linear import Matrix, quiet_highs, unit_of

_ROWWISE = int(highspy.MatrixFormat.kRowwise)
_MINIMISE = int(highspy.ObjSense.kMinimize)
_INTEGER = 1


@dataclass(frozen=True, slots=True)
class IntegerSolution:
    """The best found."""

    x: IntArray  # (variables,)
    value: float  # c @ x
    bound: float  # no x is worth more
    proven: bool  # none is, to the gap that was asked for


def maximise_whole(
    c: ArrayLike,
    A_ub: Matrix,  # noqa: N803  (the field's own names, as in scipy)
    b_ub: ArrayLike,
    upper: ArrayLike,
    nodes: int,
    gap: float = 0.0,
) -> IntegerSolution | None:
    """Maximise `c @ x` over whole numbers `0 <= x <= upper` such that `A_ub @ x <= b_ub`.

    nodes: of branch and bound. gap: relative, at which the search ends. None where nothing that satisfies
    the constraints was found. The same programme always gives the same answer.
    """
    gain = np.asarray(c, dtype=np.float64).ravel()
    limit = np.asarray(b_ub, dtype=np.float64).ravel()
    most = np.array(np.broadcast_to(np.asarray(upper, dtype=np.float64), gain.size))
    given: Any = A_ub
    rows = sparse.csr_array(given).astype(np.float64)
    if rows.shape != (limit.size, gain.size):
        raise ValueError(f"A_ub must be {(limit.size, gain.size)}, one column per variable, got {rows.shape}")
    if not gain.size:
        return None if (limit < 0).any() else IntegerSolution(np.zeros(0, dtype=np.int64), 0.0, 0.0, True)
    # HiGHS compares with absolute tolerances, so gains are brought near 1.
    unit = unit_of(gain)
    highs = quiet_highs()
    highs.passModel(
        gain.size,
        limit.size,
        rows.nnz,
        _ROWWISE,
        _MINIMISE,
        0.0,
        -gain / unit,
        np.zeros(gain.size),
        most,
        np.full(limit.size, -np.inf),
        limit,
        rows.indptr.astype(np.int32),
        rows.indices.astype(np.int32),
        rows.data,
        np.full(gain.size, _INTEGER, dtype=np.int32),
    )
    highs.setOptionValue("mip_max_nodes", nodes)
    highs.setOptionValue("mip_rel_gap", gap)
    highs.run()
    # What it found is whole numbers up to a tolerance: round, and count its worth anew.
    info = highs.getInfo()
    if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        return None
    x = np.rint(np.array(highs.getSolution().col_value)).astype(np.int64)
    value = float(gain @ x)
    proven = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return IntegerSolution(x, value, max(-float(info.mip_dual_bound) * unit, value), proven)
