"""Equation 2 of UniSched beside other equations, and beside iterations that others measured."""

import csv
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from stretto.model import FloatArray
from stretto.traces.datasets import data_folder

# Seconds of an iteration by (computing, exchange on one node, exchange over nodes, GPUs, whether one node).
Equation = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike], FloatArray]
FILE = ("chronus", "iteration_time_summary.csv")  # derived from what Chronus's authors publish
SET = "stats"  # its first set, on 1, 2, 4, 8 and 16 GPUs
# Of its models, those whose batch of a GPU stays the same. The iterations of the others get shorter with
# GPUs, since their batch is shared out.
SAME_BATCH = ("a3c", "Transformer", "gan")
PREDICTED = (4, 8, 16)  # GPUs of figure 7a beyond the profile's two


def ring_s(
    compute_s: ArrayLike, near_s: ArrayLike, far_s: ArrayLike, gpus: ArrayLike, one_node: ArrayLike
) -> FloatArray:
    """All-reduce in a ring: each GPU sends 2 (n - 1) / n of the gradients, which is all of them on two."""
    count = np.asarray(gpus, dtype=np.float64)
    exchange_s = np.where(np.asarray(one_node), np.asarray(near_s), np.asarray(far_s))
    return np.asarray(np.asarray(compute_s) + 2.0 * (count - 1.0) / count * exchange_s, dtype=np.float64)


def constant_s(
    compute_s: ArrayLike, near_s: ArrayLike, far_s: ArrayLike, gpus: ArrayLike, one_node: ArrayLike
) -> FloatArray:
    """The exchange takes what it takes on two GPUs."""
    exchange_s = np.where(np.asarray(one_node), np.asarray(near_s), np.asarray(far_s))
    several = np.asarray(gpus, dtype=np.float64) > 1.0
    return np.asarray(np.asarray(compute_s) + several * exchange_s, dtype=np.float64)


def measured_steps_s() -> Mapping[str, Mapping[int, float]] | None:
    """Median seconds of an iteration by model and number of GPUs; None where the data set is not there."""
    folder = data_folder()
    path = None if folder is None else folder.joinpath(*FILE)
    if path is None or not path.is_file():
        return None
    steps_s: dict[str, dict[int, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["set"] == SET and row["model"] in SAME_BATCH:
                steps_s.setdefault(row["model"], {})[int(row["gpus"])] = float(row["median_s"])
    return steps_s


def measured_errors(steps_s: Mapping[str, Mapping[int, float]], equation: Equation) -> list[float]:
    """Mean relative errors on PREDICTED GPUs, from one and two; what crosses nodes was not measured apart."""
    errors = []
    for gpus in PREDICTED:
        of_models = []
        for by_gpus in steps_s.values():
            exchange_s = by_gpus[2] - by_gpus[1]
            predicted_s = float(equation(by_gpus[1], exchange_s, exchange_s, gpus, True))
            of_models.append(abs(predicted_s / by_gpus[gpus] - 1.0))
        errors.append(float(np.mean(of_models)))
    return errors
