"""Columns by name as a frame: of pandas where it is installed, else a structured array of NumPy."""

from importlib.util import find_spec
from typing import Any

import numpy as np

from stretto.experiments.frames import Columns


def frame_of(columns: Columns) -> Any:
    """A `pandas.DataFrame`, or a structured array without pandas: `frame["jct_s"]` is a column of both."""
    if find_spec("pandas") is not None:
        import pandas as pd

        return pd.DataFrame(dict(columns))
    rows = len(next(iter(columns.values()), ()))
    frame = np.empty(rows, dtype=[(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        frame[name] = column
    return frame
