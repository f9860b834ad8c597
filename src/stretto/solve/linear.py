"""Linear programs by HiGHS, and what the solvers raise."""

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from stretto.solve.arrays import FloatArray


class NoSolution(ValueError):
    """Nothing satisfies the constraints, or a programme that must have an optimum has none."""


# ── linear programmes given as arrays, by the HiGHS simplex method ──────────────────────────────────────────


Matrix = ArrayLike | sparse.sparray | sparse.spmatrix
_ROWWISE = int(highspy.MatrixFormat.kRowwise)
_MINIMISE = int(highspy.ObjSense.kMinimize)
USUAL_GAIN = (1e-3, 1e6)  # largest gain that HiGHS is given as it is: its tolerances are absolute; measured


@dataclass(frozen=True, slots=True)
class LpSolution:
    """An optimum of a linear programme."""

    x: FloatArray  # (variables,)
    value: float  # c @ x
    duals: FloatArray  # (rows of A_ub, then of A_eq) what one more unit of a right-hand side adds to value


def maximise(
    c: ArrayLike,
    A_ub: Matrix | None = None,  # noqa: N803  (the field's own names, as in scipy)
    b_ub: ArrayLike | None = None,
    A_eq: Matrix | None = None,  # noqa: N803
    b_eq: ArrayLike | None = None,
    bounds: tuple[ArrayLike, ArrayLike] = (0.0, np.inf),
) -> LpSolution:
    """Maximise `c @ x` over x such that `A_ub @ x <= b_ub`, `A_eq @ x == b_eq` and x is within `bounds`.

    c: (variables,). Matrices may be dense or scipy's sparse. bounds: lower and upper, each a number or
    (variables,). The same programme always gives the same vertex. Raises `NoSolution` where no x
    satisfies the constraints or where `c @ x` has no limit.
    """
    gain = np.asarray(c, dtype=np.float64).ravel()
    variables = gain.size
    at_most, equal = _rows(A_ub, variables, "A_ub"), _rows(A_eq, variables, "A_eq")
    limit = _right_hand_side(b_ub, at_most.shape[0], "b_ub")
    target = _right_hand_side(b_eq, equal.shape[0], "b_eq")
    lower, upper = (np.array(np.broadcast_to(np.asarray(end, dtype=np.float64), variables)) for end in bounds)
    if variables == 0:
        return _nothing_to_choose(limit, target)

    # HiGHS minimises, and compares with absolute tolerances: gains are negated and brought near 1.
    unit = unit_of(gain)
    highs = quiet_highs()
    highs.passModel(
        variables,
        limit.size + target.size,
        at_most.nnz + equal.nnz,
        _ROWWISE,
        _MINIMISE,
        0.0,
        -gain / unit,
        lower,
        upper,
        np.concatenate((np.full(limit.size, -np.inf), target)),
        np.concatenate((limit, target)),
        np.concatenate((at_most.indptr, equal.indptr[1:] + at_most.nnz)).astype(np.int32),
        np.concatenate((at_most.indices, equal.indices)).astype(np.int32),
        np.concatenate((at_most.data, equal.data)),
        np.zeros(variables, dtype=np.int32),
    )
    highs.run()
    status = highs.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        size = f"{variables} variables and {limit.size + target.size} rows"
        raise NoSolution(f"linear programme of {size}: {highs.modelStatusToString(status)}")
    # Duals come back in the unit of the gains.
    solution = highs.getSolution()
    x = np.array(solution.col_value, dtype=np.float64)
    return LpSolution(x, float(gain @ x), -unit * np.array(solution.row_dual, dtype=np.float64))


def unit_of(gain: FloatArray) -> float:
    """What to count gains in so that the largest is neither lost to HiGHS's tolerances nor too much for it.

    A power of two, so that nothing is rounded; 1 where gains are of a usual size.
    """
    largest = float(np.abs(gain).max(initial=0.0))
    if largest == 0.0 or USUAL_GAIN[0] <= largest <= USUAL_GAIN[1] or not np.isfinite(largest):
        return 1.0
    return 2.0 ** (int(np.frexp(largest)[1]) - 1)


class _SilentHighs(highspy.Highs):
    """A HiGHS that is silent from its first call on."""

    def enableCallbacks(self) -> None:  # noqa: N802 - the name is HiGHS's
        """Switch the output off first: from 1.16 on, the constructor's call of this prints HiGHS's banner."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def quiet_highs() -> highspy.Highs:
    """Return a HiGHS that prints nothing, uses one thread and is the same in every process."""
    highs: highspy.Highs = _SilentHighs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)  # versions that know no callbacks have not been told yet
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("parallel", "off")
    highs.setOptionValue("random_seed", 0)
    return highs


def _rows(matrix: Matrix | None, variables: int, name: str) -> sparse.csr_array[Any, tuple[int, int]]:
    """`matrix` by rows, each (row, variable) once."""
    if matrix is None:
        return sparse.csr_array((0, variables), dtype=np.float64)
    untyped: Any = matrix if sparse.issparse(matrix) else np.atleast_2d(np.asarray(matrix))
    rows: Any = sparse.csr_array(untyped)
    if rows.shape[1] != variables:
        raise ValueError(f"{name} must have {variables} columns, one per variable, got shape={rows.shape}")
    rows.sum_duplicates()
    in_floats: sparse.csr_array[Any, tuple[int, int]] = rows.astype(np.float64)
    return in_floats


def _right_hand_side(b: ArrayLike | None, rows: int, name: str) -> FloatArray:
    limits = np.zeros(0) if b is None else np.asarray(b, dtype=np.float64).ravel()
    if limits.size != rows:
        raise ValueError(f"{name} must have {rows} entries, one per row of its matrix, got {limits.size}")
    return limits


def _nothing_to_choose(limit: FloatArray, target: FloatArray) -> LpSolution:
    if (limit < 0).any() or (target != 0).any():
        raise NoSolution("linear programme of 0 variables: its right-hand sides cannot be met")
    return LpSolution(np.zeros(0), 0.0, np.zeros(limit.size + target.size))
