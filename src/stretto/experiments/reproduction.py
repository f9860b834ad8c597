"""A published table beside ours: rows, inputs, and how to get at the data."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.model import InputError
from stretto.traces.datasets import DATA_VARIABLE

OWNERS = {  # of each data set: where they publish it
    "sia": "github.com/siasosp23/artifacts (sia-simulator/workloads, and sia-simulator/traces as profiles)",
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
    ours: float | None  # None: it does not apply

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
            "inputs": [asdict(one) for one in self.inputs],
            "rows": [asdict(one) | {"ratio": one.ratio} for one in self.rows],
            "notes": list(self.notes),
            "wall_s": self.wall_s,
        }


@dataclass(frozen=True)
class Request:
    """What `stretto reproduce` is told."""

    data: Path | None  # None: made data
    scale: float = 1.0  # share of the workloads to run
    workers: int = 0  # simulations at once; 0: one for each core
    show: bool = False  # progress bars on a terminal


Made = tuple[Sequence[Input], Sequence[Row], Sequence[str]]  # the last: notes for the reader


@dataclass(frozen=True)
class Experiment:
    """A published table, and how it is made here."""

    name: str
    paper: str
    data: str  # the public data set that it reads
    make: Callable[[Request], Made]

    def run(self, request: Request) -> Reproduction:
        """Make the table again."""
        began = time.perf_counter()
        inputs, rows, notes = self.make(request)
        wall_s = time.perf_counter() - began
        return Reproduction(self.name, self.paper, tuple(inputs), tuple(rows), wall_s, tuple(notes))


def data_root(given: str, name: str) -> Path:
    """The folder of public data sets with this one in it: --data, else the one that the environment names.

    InputError where there is none, or it lacks that data set.
    """
    named = given or os.environ.get(DATA_VARIABLE, "")
    if not named:
        raise InputError(
            f"the data set {name!r} is needed: expected its folder below --data or ${DATA_VARIABLE}; "
            f"its owners publish it at {OWNERS[name]}; or run made data with --synthetic"
        )
    root = Path(named)
    if not root.is_dir():
        option = "--data" if given else f"${DATA_VARIABLE}"
        raise InputError(f"{option} {named}: expected a folder with the data set {name!r}, there is none")
    data_set(root, name)
    return root


def data_set(root: Path, name: str, *inside: str) -> Path:
    """A folder or file of one data set; InputError that says who publishes it where it is absent."""
    found = root.joinpath(name, *inside)
    if not found.exists():
        raise InputError(
            f"data set {name!r}: expected {'/'.join((name, *inside))} below {root}; "
            f"its owners publish it at {OWNERS[name]}"
        )
    return found
