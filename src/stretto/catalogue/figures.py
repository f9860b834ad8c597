"""Reads published figures of training speed and of training progress. Decides nothing."""

import csv
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import InputError
from stretto.model.arrays import FloatArray, floats

A100_PER_NODE = 8  # ElasticFlow's machines


@dataclass(frozen=True)
class Points:
    """Measured steps of one model on one GPU type: columns of equal length."""

    nodes: FloatArray
    gpus: FloatArray
    local_batch: FloatArray  # samples on each GPU
    grad_s: FloatArray  # forward and backward pass; NaN where only the whole step was measured
    step_s: FloatArray  # the whole step

    def __len__(self) -> int:
        """How many points."""
        return len(self.gpus)


def points_of(rows: Sequence[tuple[float, float, float, float, float]]) -> Points:
    """Points from (nodes, gpus, local batch, grad_s, step_s) rows."""
    table = floats(rows).reshape(len(rows), 5)
    return Points(*(table[:, column] for column in range(5)))


def pollux_points(data: Path, model: str) -> Points:
    """T4 figures of Pollux: both parts of a step are measured."""
    folder = data / "sia" / "profiles" / model
    rows = [
        (float(len(row["placement"])), float(sum(map(int, row["placement"]))), *_times(row))
        for row in _rows(folder / "placements-aws.csv")
    ]
    rows += [
        (float(row["num_nodes"]), float(row["num_replicas"]), *_times(row))
        for row in _rows(folder / "scalability-aws.csv")
    ]
    return points_of(rows)


def elasticflow_points(data: Path, model: str) -> Points:
    """A100 figures of ElasticFlow: steps per second by total batch size and GPUs."""
    rows = []
    for row in _rows(data / "throughputs" / "elasticflow" / "A100" / f"{model}.csv"):
        batch = float(row["global_batch_size"])
        for column, cell in row.items():
            if column == "global_batch_size" or not cell or not float(cell) > 0:
                continue  # empty, nan or 0: not possible
            gpus = float(column)
            rows.append((np.ceil(gpus / A100_PER_NODE), gpus, batch / gpus, np.nan, 1 / float(cell)))
    return points_of(rows)


def gavel_points(data: Path, model: str, gpu_type: str) -> Points:
    """K80, P100 or V100 figures of Gavel: steps per second of all GPUs together, each on its own batch.

    `<type>_unconsolidated` has the GPUs of a job spread over servers. For V100 that table is older than the
    other and does not agree with it on one GPU, so it is left out.
    """
    tables = _gavel_tables(data)
    rows = []
    for spread in (False, True) if gpu_type != "v100" else (False,):
        table = tables[f"{gpu_type}_unconsolidated" if spread else gpu_type]
        for key, entry in table.items():
            match = _GAVEL_JOB.fullmatch(key)
            if match is None or match["model"] != model or not entry["null"] > 0:
                continue
            gpus = float(match["gpus"])
            if spread and gpus == 1:
                continue
            rows.append((gpus if spread else 1.0, gpus, float(match["batch"]), np.nan, gpus / entry["null"]))
    return points_of(rows)


@dataclass(frozen=True)
class Curves:
    """How training went at each total batch size, epoch by epoch; batch sizes ascend."""

    batches: tuple[int, ...]
    progress: FloatArray  # (batches, epochs) cumulative, in steps at the smallest batch size
    steps: FloatArray  # (batches, epochs) cumulative steps actually taken


def pollux_curves(data: Path, model: str) -> Curves:
    """Training curves of Pollux."""
    curves = {}
    for path in (data / "sia" / "profiles" / model).glob("validation-*.csv"):
        rows = _rows(path)
        curves[int(path.stem.removeprefix("validation-"))] = [
            (float(row["progress"]), float(row["iteration"])) for row in rows
        ]
    batches = tuple(sorted(curves))
    table = floats([curves[batch] for batch in batches])
    return Curves(batches, table[:, :, 0], table[:, :, 1])


_GAVEL_JOB = re.compile(r"\('(?P<model>.+) \(batch size (?P<batch>\d+)\)', (?P<gpus>\d+)\)")


def _gavel_tables(data: Path) -> Mapping[str, Any]:
    path = data / "throughputs" / "gavel" / "actual_throughputs.json.gz"
    try:
        with gzip.open(path) as file:
            tables: Mapping[str, Any] = json.load(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return tables


def _times(row: Mapping[str, str]) -> tuple[float, float, float]:
    step_s = float(row["step_time"])
    return float(row["local_bsz"]), step_s - float(row["sync_time"]), step_s


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
