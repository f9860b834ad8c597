"""A published table beside ours: rows, verdicts, inputs, and how to get at the data.

The rule of the verdicts, stated before anything is run:

A published figure is *reproduced* where ours differs by at most a quarter, or where it lies within the
interval of ours over seeds. It is *undecided* where it lies within one whose half is more than half of the
mean: nearly any figure would. (This came later than the rest, and took verdicts away only.) Limits that a
text states are reproduced where ours keeps them. Else the row is of the *same order* where the figures of its
comparison stand in the published order. A comparison is of one metric and one workload, scheme beside scheme.
Schemes that the paper has within a tenth of each other may stand either way. Everything else is
*contradicted*. Where the paper never published its workload, a made one stands for it, and cannot contradict
anything: such a row is *data private*. Where the paper prints no number, or a row does not apply here,
nothing is compared.

A table is reproduced where at least three quarters of its compared rows are and no other is contradicted or
data private. It is contradicted, or data private, where more than a quarter of them are. Else it is of the
same order.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import stdtrit

from stretto.errors import InputError
from stretto.experiments.finished import Finished
from stretto.experiments.progress import Say
from stretto.experiments.spec import RunSpec, setup_of
from stretto.experiments.sweep import run_each
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.traces.datasets import DATA_VARIABLE
from stretto.traces.workload import Workload

if TYPE_CHECKING:
    from stretto.experiments.causes import Series

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
PLUS_MINUS = "_plus_minus"  # ends the metric of half an interval over seeds


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


def rows_over_seeds(
    row: str, metric: str, paper: float | None, values: Sequence[float], bound: Bound = ""
) -> list[Row]:
    """The mean over made traces and, where there are several, half of Student's 95 % interval of it."""
    rows = [Row(row, metric, paper, float(np.mean(values)), bound)]
    if len(values) > 1:
        half = stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values))
        rows.append(Row(row, f"{metric}{PLUS_MINUS}", None, float(half)))
    return rows


@dataclass
class Tally:
    """Grows while a table is made."""

    simulations: int = 0
    kept: int = 0  # of these, those that ran for an earlier command
    simulated_s: float = 0.0  # that all of them took, one after the other
    processor_s: float = 0.0  # that a core worked for them; less where other programs ran beside them
    # By policy: what it was shown of jobs and which settings were set for it, one pair for each way.
    shown: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))

    def count(self, specs: Sequence[RunSpec]) -> None:
        """Note what the policies of these runs are shown."""
        for spec in specs:
            views = sorted(view.value.replace("_", " ") for view in setup_of(spec).policy.views)
            # Of a file its name only: where it lies is not a part of the result.
            settings = " ".join(
                f"{key}={Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value}"
                for key, value in sorted(spec.settings.items())
            )
            self.shown[spec.policy].add((", ".join(views) or "what jobs ask for and hold", settings))


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
    scale: float = 1.0  # share of the workloads that was run
    made_on: str = ""  # the day, as YYYY-MM-DD
    private: str = ""  # the data of the paper for which made ones stand, since they were never published
    commit: str = ""  # of the code that made it; "" where that is no checkout

    @property
    def verdicts(self) -> list["Verdict"]:
        """One for each row, in their order."""
        return verdicts_of(self.rows, bool(self.private))

    def as_json(self) -> dict[str, Any]:
        """The object that `reproduce --json` prints."""
        return {
            "name": self.name,
            "paper": self.paper,
            "inputs": [asdict(source) for source in self.inputs],
            "rows": [_row(row, verdict) for row, verdict in zip(self.rows, self.verdicts, strict=True)],
            "verdict": table_verdict(self.verdicts),
            "shown": shown_words(self.tally.shown),
            "notes": list(self.notes),
            "wall_s": self.wall_s,
            "simulations": self.tally.simulations,
            "simulated_s": self.tally.simulated_s,
            "processor_s": self.tally.processor_s or None,
            "kept": self.tally.kept,
            "scale": self.scale,
            "made_on": self.made_on,
            "private": self.private or None,
            "commit": self.commit or None,
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
        self.tally.count(specs)
        all_done = run_each(specs, at_once, self.show, self.finished, self.say)
        self.tally.simulations += len(all_done)
        self.tally.kept += sum(done.was_kept for done in all_done)
        self.tally.simulated_s += sum(done.wall_s for done in all_done)
        self.tally.processor_s += sum(done.processor_s for done in all_done)
        return [done.result for done in all_done]

    def run_with(self, spec: RunSpec, workload: Workload, setup: Setup) -> Result:
        """The result of a run that words alone cannot say: of this spec, with another workload.

        It is counted and shown as others are, and not kept.
        """
        self.tally.count([spec])
        began_s, began_processor_s = time.perf_counter(), time.process_time()
        result = simulate(workload, setup)
        self.tally.simulations += 1
        self.tally.simulated_s += time.perf_counter() - began_s
        self.tally.processor_s += time.process_time() - began_processor_s
        return result


Made = tuple[Sequence[Input], Sequence[Row], Sequence[str]]  # the last: notes for the reader


@dataclass(frozen=True)
class Experiment:
    """A published table, and how it is made here."""

    name: str
    paper: str
    data: str  # the public data set that it reads; "" = its data are made
    make: Callable[[Request], Made]
    simulations: int = 0  # in the whole table; 0 = not said
    takes: str = ""  # about how long the whole table takes one core, as measured
    not_whole: str = ""  # why it cannot be made whole within half an hour on two cores
    private: str = ""  # data of the paper that were never published, for which made ones stand
    causes: "Callable[[Request], Series] | None" = None  # switches assumptions one at a time (`causes`)
    share: float = 1.0  # of the workload that is simulated where all of it is asked for

    def run(self, request: Request) -> Reproduction:
        """Make the table again."""
        began, worked_before_s = time.perf_counter(), _worked_s()
        inputs, rows, notes = self.make(request)
        wall_s = time.perf_counter() - began
        if not request.tally.simulations:
            request.tally.processor_s = _worked_s() - worked_before_s
        return Reproduction(
            self.name,
            self.paper,
            tuple(inputs),
            tuple(rows),
            wall_s,
            tuple(notes),
            request.tally,
            request.scale * self.share,
            datetime.now(UTC).date().isoformat(),
            self.private,
            commit_of_code(),
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
            "not_whole": self.not_whole or None,
            "private": self.private or None,
            "causes": self.causes is not None,
        }


def _worked_s() -> float:
    """Seconds that a core has worked for this process and for those of its own that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def commit_of_code() -> str:
    """The commit that is checked out where this package lies, in twelve digits; "" where it is no checkout.

    It is read from Git's own files. Changes that were not committed do not show in it.
    """
    checkout = Path(__file__).parents[3]
    try:
        folder = checkout / ".git"
        if folder.is_file():  # a worktree: its own folder is named there, what all share in that one
            folder = checkout / folder.read_text().removeprefix("gitdir: ").strip()
        shared = folder / "commondir"
        common = folder / shared.read_text().strip() if shared.is_file() else folder
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:12]
        branch = head.removeprefix("ref: ")
        if (common / branch).is_file():
            return (common / branch).read_text().strip()[:12]
        packed = (line.split() for line in (common / "packed-refs").read_text().splitlines())
        return next((words[0][:12] for words in packed if words[-1] == branch), "")
    except OSError:
        return ""


def _row(row: Row, verdict: "Verdict") -> dict[str, Any]:
    """A row as the JSON has it: with a bound only where the paper's figure is one."""
    values = asdict(row)
    bound = values.pop("bound")
    return values | {"ratio": row.ratio, "verdict": verdict} | ({"bound": bound} if bound else {})


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
    """A folder or file of one data set; InputError that names its publisher where it is absent."""
    found = root.joinpath(name, *inside)
    if not found.exists():
        raise InputError(
            f"data set {name!r}: expected {'/'.join((name, *inside))} below {root}; {_published(name)}"
        )
    return found


def _published(name: str) -> str:
    return f"its owners publish it at {OWNERS[name]}" if name in OWNERS else "its publisher is not known"


# ── verdicts ────────────────────────────────────────────────────────────────────────────────────────────────

NEAR = 1.25  # a ratio up to here, either way, is as near as a simulation of another's cluster can be; chosen
WIDEST = 0.5  # of the mean: an interval with a larger half decides nothing; chosen
ALIKE = 1.1  # published figures of two schemes up to this ratio have no order; chosen
MOST_CONTRADICTED, LEAST_REPRODUCED = 0.25, 0.75  # shares of compared rows, of a table; chosen


class Verdict(StrEnum):
    """What a comparison comes to."""

    REPRODUCED = "reproduced"
    SAME_ORDER = "same order"
    UNDECIDED = "undecided"  # it lies within an interval that is too wide to tell
    CONTRADICTED = "contradicted"
    DATA_PRIVATE = "data private"  # it differs, on data made for those that the paper never published
    NOT_COMPARED = "not compared"  # not published, or it does not apply here


def verdicts_of(rows: Sequence[Row], is_private: bool = False) -> list[Verdict]:
    """One verdict for each row, in their order. is_private: made data stand for unpublished ones."""
    halves = {
        (row.row, row.metric.removesuffix(PLUS_MINUS)): row.ours or 0.0
        for row in rows
        if row.metric.endswith(PLUS_MINUS)
    }
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[group_of(row)].append(row)
    verdicts = [_verdict(row, groups[group_of(row)], halves.get((row.row, row.metric), 0.0)) for row in rows]
    if not is_private:
        return verdicts
    return [Verdict.DATA_PRIVATE if each is Verdict.CONTRADICTED else each for each in verdicts]


def table_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """What the verdicts of its rows make of a table."""
    counts = Counter(verdicts)
    compared = len(verdicts) - counts[Verdict.NOT_COMPARED]
    if not compared:
        return Verdict.NOT_COMPARED
    differing = counts[Verdict.CONTRADICTED] + counts[Verdict.DATA_PRIVATE]
    if differing > MOST_CONTRADICTED * compared:
        return Verdict.CONTRADICTED if counts[Verdict.CONTRADICTED] else Verdict.DATA_PRIVATE
    if differing == 0 and counts[Verdict.REPRODUCED] >= LEAST_REPRODUCED * compared:
        return Verdict.REPRODUCED
    return Verdict.SAME_ORDER


def group_of(row: Row) -> tuple[str, str]:
    """With which rows it is compared: those of its metric and workload, which stands before the last /."""
    return row.metric, row.row.rpartition("/")[0]


def _verdict(row: Row, group: Sequence[Row], half: float) -> Verdict:
    paper, ours = row.paper, row.ours
    if paper is None or ours is None:
        return Verdict.NOT_COMPARED
    if row.bound:
        is_kept = ours <= paper if row.bound == "at most" else ours >= paper
        return Verdict.REPRODUCED if is_kept else Verdict.CONTRADICTED
    is_within = abs(ours - paper) <= half
    is_wide = half > WIDEST * abs(ours)
    if _ratio(ours, paper) <= NEAR or (is_within and not is_wide):
        return Verdict.REPRODUCED
    if is_within:
        return Verdict.UNDECIDED
    orders = list(_orders(row, group))
    return Verdict.SAME_ORDER if orders and all(orders) else Verdict.CONTRADICTED


def _orders(row: Row, group: Sequence[Row]) -> Iterator[bool]:
    """For each row that it is compared with and that the paper tells apart: whether ours does so alike."""
    assert row.paper is not None
    assert row.ours is not None
    for other in group:
        if other is row or other.bound or other.paper is None or other.ours is None:
            continue
        if _ratio(row.paper, other.paper) > ALIKE:
            yield (row.paper < other.paper) == (row.ours < other.ours)


def _ratio(one: float, other: float) -> float:
    """The larger over the smaller; infinite for figures of different signs, and beside 0."""
    if one == other:
        return 1.0
    if one * other <= 0:
        return inf
    return max(one / other, other / one)


def shown_words(shown: Mapping[str, set[tuple[str, str]]]) -> dict[str, str]:
    """For each policy, in words, what it was shown of jobs and what was set for it."""
    words = {}
    for policy, ways in shown.items():
        views = sorted({view for view, _ in ways})
        settings = sorted({setting for _, setting in ways if setting})
        text = "; or ".join(views)
        words[policy] = f"{text}; set: {' or '.join(settings)}" if settings else text
    return words
