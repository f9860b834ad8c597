"""Reads measured profiles: three kinds of CSV file, checked line by line, into arrays. Decides nothing."""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stretto.errors import InputError
from stretto.model.arrays import FloatArray, floats

TIME_COLUMNS = ("local_bsz", "step_time", "sync_time")
VALIDATION_COLUMNS = ("progress", "grad_sqr", "grad_var")
_VALIDATION_NAME = re.compile(r"validation-(\d+)\.csv")


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a placements or scalability file: where a step ran, and what it took. All of one length."""

    placements: tuple[tuple[int, ...], ...]  # GPUs on each node used; empty in a scalability file
    nodes: FloatArray  # (rows,) nodes used
    gpus: FloatArray  # (rows,) GPUs used
    local_batch: FloatArray  # (rows,) samples per GPU in one forward and backward pass
    times_s: FloatArray  # (rows, 2) one synchronised step, and the part of it spent synchronising


@dataclass(frozen=True, slots=True)
class ValidationCurves:
    """What a training run at each total batch size looked like, epoch by epoch; batch sizes ascend."""

    batches: FloatArray  # (batches,) total batch size, samples
    progress: FloatArray  # (batches, epochs) cumulative, in iterations at the smallest batch size
    grad_sqr: FloatArray  # (batches, epochs) squared norm of the gradient
    grad_var: FloatArray  # (batches, epochs) trace of its covariance at the smallest batch size


def read_placements(path: Path, sync_in_step: bool = True) -> StepRows:
    """Steps measured on concrete placements. Raises InputError naming file and line.

    sync_in_step: whether `sync_time` is a part of `step_time` and so must not exceed it. That is the case for
    all but pipelines, whose `step_time` is that of one stage.
    """
    columns = _read_columns(path, ("placement", *TIME_COLUMNS))
    placements = tuple(
        _placement(text, path, line) for line, text in enumerate(columns["placement"], start=_FIRST_LINE)
    )
    return StepRows(
        placements=placements,
        nodes=floats([len(placement) for placement in placements]),
        gpus=floats([sum(placement) for placement in placements]),
        local_batch=_numbers(columns, "local_bsz", path, above=0.0),
        times_s=_times_s(columns, path, sync_in_step),
    )


def read_scalability(path: Path, sync_in_step: bool = True) -> StepRows:
    """Steps measured by number of nodes and GPUs, however spread; else as `read_placements`."""
    columns = _read_columns(path, ("num_nodes", "num_replicas", *TIME_COLUMNS))
    return StepRows(
        placements=(),
        nodes=_numbers(columns, "num_nodes", path, above=0.0),
        gpus=_numbers(columns, "num_replicas", path, above=0.0),
        local_batch=_numbers(columns, "local_bsz", path, above=0.0),
        times_s=_times_s(columns, path, sync_in_step),
    )


def read_validation(directory: Path) -> ValidationCurves:
    """All `validation-<batch>.csv` in a model's folder. Raises InputError, also where there are none."""
    files = sorted(
        (int(match[1]), path)
        for path in directory.iterdir()
        if (match := _VALIDATION_NAME.fullmatch(path.name)) is not None
    )
    if not files:
        raise InputError(f"{directory}: expected at least one validation-<batch>.csv, found none")
    if files[0][0] == 0:
        raise InputError(f"{files[0][1]}: batch size must be >= 1, got 0")
    columns = [_read_columns(path, VALIDATION_COLUMNS) for _, path in files]
    epochs = len(columns[0]["progress"])
    for (_, path), read in zip(files, columns, strict=True):
        if len(read["progress"]) != epochs:
            raise InputError(
                f"{path}: expected {epochs} epochs as in {files[0][1].name}, found {len(read['progress'])}"
            )
    return ValidationCurves(
        batches=floats([batch for batch, _ in files]),
        progress=np.stack([_ascending(read, path) for (_, path), read in zip(files, columns, strict=True)]),
        grad_sqr=_stacked("grad_sqr", files, columns),
        grad_var=_stacked("grad_var", files, columns),
    )


_FIRST_LINE = 2  # line 1 of a file is its header

Columns = dict[str, Sequence[str]]


def _read_columns(path: Path, wanted: Sequence[str]) -> Columns:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    missing = [name for name in wanted if name not in header]
    if missing:
        raise InputError(f"{path}: expected columns {', '.join(wanted)}, missing {', '.join(missing)}")
    if not rows:
        raise InputError(f"{path}: expected at least one row below the header, found none")
    for line, row in enumerate(rows, start=_FIRST_LINE):
        if len(row) != len(header):
            raise InputError(f"{path} line {line}: expected {len(header)} cells, found {len(row)}")
    by_column = list(zip(*rows, strict=True))
    return {name: by_column[header.index(name)] for name in wanted}


def _numbers(columns: Columns, name: str, path: Path, above: float | None = None) -> FloatArray:
    """Column `name` as finite floats: greater than `above`, or at least 0 where `above` is None."""
    try:
        values = floats([float(text) for text in columns[name]])
    except ValueError:
        raise _first_bad(columns, name, path, above) from None
    good = np.isfinite(values) & ((values >= 0.0) if above is None else (values > above))
    if not good.all():
        raise _first_bad(columns, name, path, above)
    return values


def _first_bad(columns: Columns, name: str, path: Path, above: float | None) -> InputError:
    expected = "a finite number >= 0" if above is None else f"a finite number > {above:g}"
    for line, text in enumerate(columns[name], start=_FIRST_LINE):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (value < 0.0 if above is None else value <= above):
            return InputError(f"{path} line {line}: {name} must be {expected}, got {text!r}")
    raise AssertionError("no bad cell in a column that was refused")


def _times_s(columns: Columns, path: Path, sync_in_step: bool) -> FloatArray:
    step_s = _numbers(columns, "step_time", path, above=0.0)
    sync_s = _numbers(columns, "sync_time", path)
    longer = np.flatnonzero(sync_s > step_s)
    if sync_in_step and longer.size:
        row = int(longer[0])
        raise InputError(
            f"{path} line {row + _FIRST_LINE}: "
            f"sync_time must be <= step_time={step_s[row]:g}, got {sync_s[row]:g}"
        )
    return np.column_stack([step_s, sync_s])


def _placement(text: str, path: Path, line: int) -> tuple[int, ...]:
    """GPUs on each node: one digit per node, none of them 0."""
    if not (text.isascii() and text.isdigit()) or "0" in text:
        raise InputError(f"{path} line {line}: placement must be one digit 1-9 per node, got {text!r}")
    return tuple(int(digit) for digit in text)


def _ascending(columns: Columns, path: Path) -> FloatArray:
    progress = _numbers(columns, "progress", path, above=0.0)
    falls = np.flatnonzero(np.diff(progress) <= 0.0)
    if falls.size:
        line = int(falls[0]) + 1 + _FIRST_LINE
        raise InputError(f"{path} line {line}: progress must grow from epoch to epoch")
    return progress


def _stacked(name: str, found: Sequence[tuple[int, Path]], columns: Sequence[Columns]) -> FloatArray:
    return np.stack([_numbers(read, name, path) for (_, path), read in zip(found, columns, strict=True)])
