"""Names for the arrays that columns are made of, and the one way to freeze them."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]

Scalar = TypeVar("Scalar", bound=np.generic)


def frozen(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The same array, refusing to be written from now on."""
    array.flags.writeable = False
    return array


def ints(values: Any) -> IntArray:
    """A new array of 64-bit integers."""
    return np.array(values, dtype=np.int64)


def floats(values: Any) -> FloatArray:
    """A new array of 64-bit floats."""
    return np.array(values, dtype=np.float64)
