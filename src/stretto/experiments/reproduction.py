"""A published table beside ours: rows, inputs, and how to get at the data."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.model import InputError

DATA_VARIABLE = "STRETTO_DATA"
OWNERS = {
    "sia": "github.com/siasosp23/artifacts (folders sia-simulator/workloads and sia-simulator/traces)",
}


@dataclass(frozen=True, slots=True)
class Input:
    """Something that a reproduction reads."""

    what: str
    real: bool
    note: str


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure and ours."""

    row: str
    metric: str
    paper: float | None  # None: not published
    ours: float | None

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        if self.paper is None or self.ours is None or self.paper == 0:
            return None
        return self.ours / self.paper


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A table of a paper, made again."""

    name: str
    paper: str
    inputs: tuple[Input, ...]
    rows: tuple[Row, ...]
    wall_s: float
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The object that `reproduce --json` prints."""
        return {
            "name": self.name,
            "paper": self.paper,
            "inputs": [{"what": one.what, "real": one.real, "note": one.note} for one in self.inputs],
            "rows": [
                {
                    "row": one.row,
                    "metric": one.metric,
                    "paper": one.paper,
                    "ours": one.ours,
                    "ratio": one.ratio,
                }
                for one in self.rows
            ],
            "notes": list(self.notes),
            "wall_s": self.wall_s,
        }


@dataclass(frozen=True)
class Request:
    """What `stretto reproduce` is told."""

    data: Path | None  # None: made data
    scale: float
    workers: int
    show: bool


Experiment = Callable[[Request], tuple[Sequence[Input], Sequence[Row], Sequence[str]]]


def run_experiment(name: str, paper: str, experiment: Experiment, request: Request) -> Reproduction:
    """Make a table again."""
    began = time.perf_counter()
    inputs, rows, notes = experiment(request)
    return Reproduction(name, paper, tuple(inputs), tuple(rows), time.perf_counter() - began, tuple(notes))


def data_root(given: str) -> Path:
    """The folder with the public data sets: --data, else $STRETTO_DATA; InputError where there is none."""
    named = given or os.environ.get(DATA_VARIABLE, "")
    if not named:
        raise InputError(
            f"no data: expected --data DIR or ${DATA_VARIABLE} (see docs/traces.md), or --synthetic"
        )
    root = Path(named)
    if not root.is_dir():
        raise InputError(f"data folder {named}: there is no such directory")
    return root


def data_set(root: Path, name: str, *inside: str) -> Path:
    """A folder of one data set; InputError that says who publishes it where it is absent."""
    folder = root.joinpath(name, *inside)
    if not folder.is_dir():
        raise InputError(
            f"data set {'/'.join((name, *inside))} is absent from {root}: "
            f"its owners publish it at {OWNERS[name]}"
        )
    return folder
