"""A published table beside ours: rows, inputs, and how to get at the data."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from stretto.experiments.finished import Finished
from stretto.experiments.progress import Say
from stretto.experiments.spec import RunSpec
from stretto.experiments.sweep import run_each
from stretto.model import InputError
from stretto.sim.result import Result
from stretto.traces.datasets import DATA_VARIABLE

OWNERS = {  # of each data set: where they publish it
    "sia": "github.com/siasosp23/artifacts (sia-simulator/workloads, and sia-simulator/traces as profiles)",
    "chronus": "github.com/S-Lab-System-Group/ChronusArtifact",
    "helios": "github.com/S-Lab-System-Group/HeliosData",
    "inference": "github.com/alibaba/clusterdata (cluster-trace-v2026-GenAI and cluster-trace-gpu-v2025)",
    "ones": "table 2 of ONES (Bian et al., SC 2021), which comes without a file",
    "philly": "github.com/msr-fiddle/philly-traces, in one table at github.com/siasosp23/artifacts",
}


@dataclass(frozen=True, slots=True)
class Input:
    """Something that a reproduction reads."""

    what: str
    real: bool
    note: str


Bound = Literal["", "at most", "at least"]


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure and ours."""

    row: str
    metric: str
    paper: float | None  # None: not published
    ours: float | None  # None: it does not apply
    bound: Bound = ""  # what the paper's figure is to its own results, where its text only gives a limit

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        if self.paper is None or self.ours is None or self.paper == 0:
            return None
        return self.ours / self.paper


def rows_over_seeds(row: str, metric: str, paper: float | None, values: Sequence[float]) -> list[Row]:
    """The mean over made traces and, where there are several, half of Student's 95 % interval of it."""
    rows = [Row(row, metric, paper, float(np.mean(values)))]
    if len(values) > 1:
        half = stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values))
        rows.append(Row(row, f"{metric}_plus_minus", None, float(half)))
    return rows


@dataclass
class Tally:
    """Grows while a table is made."""

    simulations: int = 0
    kept: int = 0  # of these, those that ran for an earlier command
    simulated_s: float = 0.0  # that all of them took, one after the other


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A table of a paper, made again."""

    name: str
    paper: str
    inputs: tuple[Input, ...]
    rows: tuple[Row, ...]
    wall_s: float
    notes: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)

    def as_json(self) -> dict[str, Any]:
        """The object that `reproduce --json` prints."""
        return {
            "name": self.name,
            "paper": self.paper,
            "inputs": [asdict(source) for source in self.inputs],
            "rows": [_row(row) for row in self.rows],
            "notes": list(self.notes),
            "wall_s": self.wall_s,
            "simulations": self.tally.simulations,
            "kept": self.tally.kept,
        }


@dataclass(frozen=True)
class Request:
    """What `stretto reproduce` is told."""

    data: Path | None  # None: made data
    scale: float = 1.0  # share of the workloads to run
    workers: int = 0  # simulations at once; 0: one for each core
    show: bool = False  # progress bars on a terminal
    finished: Finished | None = None  # where simulations are kept; None: nowhere
    say: Say | None = None  # is given lines about the progress
    tally: Tally = field(default_factory=Tally, compare=False)

    def run(self, specs: Sequence[RunSpec], workers: int | None = None) -> list[Result]:
        """One result for each spec, in their order: what is kept is taken, the rest is simulated and kept.

        workers: another number of simulations at once, such as 1 where decisions are timed.
        """
        at_once = self.workers if workers is None else workers
        all_done = run_each(specs, at_once, self.show, self.finished, self.say)
        self.tally.simulations += len(all_done)
        self.tally.kept += sum(done.was_kept for done in all_done)
        self.tally.simulated_s += sum(done.wall_s for done in all_done)
        return [done.result for done in all_done]


Made = tuple[Sequence[Input], Sequence[Row], Sequence[str]]  # the last: notes for the reader


@dataclass(frozen=True)
class Experiment:
    """A published table, and how it is made here."""

    name: str
    paper: str
    data: str  # the public data set that it reads; "" = its data are made
    make: Callable[[Request], Made]
    simulations: int = 0  # in the whole table; 0 = not said
    takes: str = ""  # about how long the whole table takes, as measured

    def run(self, request: Request) -> Reproduction:
        """Make the table again."""
        began = time.perf_counter()
        inputs, rows, notes = self.make(request)
        wall_s = time.perf_counter() - began
        return Reproduction(
            self.name, self.paper, tuple(inputs), tuple(rows), wall_s, tuple(notes), request.tally
        )

    def as_json(self) -> dict[str, Any]:
        """An entry of `reproduce --list --json`."""
        return {
            "name": self.name,
            "paper": self.paper,
            "data": self.data or None,
            "published_at": OWNERS.get(self.data),
            "simulations": self.simulations or None,
            "takes": self.takes or None,
        }


def _row(one: Row) -> dict[str, Any]:
    """A row as the JSON has it: with a bound only where the paper's figure is one."""
    said = asdict(one)
    bound = said.pop("bound")
    return said | {"ratio": one.ratio} | ({"bound": bound} if bound else {})


def data_root(folder: str, name: str) -> Path | None:
    """The folder of public data sets with this one in it: --data, else the one that the environment names.

    InputError where there is none, or it lacks that data set. None for the name "": nothing is read.
    """
    if not name:
        return None
    named = folder or os.environ.get(DATA_VARIABLE, "")
    if not named:
        raise InputError(
            f"the data set {name!r} is needed: expected its folder below --data or ${DATA_VARIABLE}; "
            f"{_published(name)}; or run made data with --synthetic"
        )
    root = Path(named)
    if not root.is_dir():
        option = "--data" if folder else f"${DATA_VARIABLE}"
        raise InputError(f"{option} {named}: expected a folder with the data set {name!r}, there is none")
    data_set(root, name)
    return root


def data_set(root: Path, name: str, *inside: str) -> Path:
    """A folder or file of one data set; InputError that says who publishes it where it is absent."""
    found = root.joinpath(name, *inside)
    if not found.exists():
        raise InputError(
            f"data set {name!r}: expected {'/'.join((name, *inside))} below {root}; {_published(name)}"
        )
    return found


def _published(name: str) -> str:
    return f"its owners publish it at {OWNERS[name]}" if name in OWNERS else "its publisher is not known"
