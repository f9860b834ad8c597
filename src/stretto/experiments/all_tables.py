"""Every published table, one after the other, and one page that shows all of them.

What was simulated before is not simulated again, so the command may be interrupted and given again. An entry
that cannot be made does not keep the others from it.
"""

import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stretto.errors import InputError
from stretto.experiments.causes import Causes, make_causes
from stretto.experiments.progress import Say
from stretto.experiments.reproduction import (
    PLUS_MINUS,
    Experiment,
    Reproduction,
    Request,
    Row,
    Tally,
    Verdict,
    data_root,
    verdicts_of,
)
from stretto.whole_files import write_whole

PAGE = "results.md"
CAUSES = "causes"  # the folder of series of switched assumptions, beside the tables


@dataclass(frozen=True, slots=True)
class Table:
    """A table as `reproduce --json` prints it; its verdicts are judged anew."""

    rows: tuple[Row, ...]
    inputs: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    shown: Mapping[str, str]  # by policy, in words
    simulations: int
    took_s: float  # of a core, for one simulation after the other
    scale: float  # share of the workloads that was run
    made_on: str
    private: str = ""  # data of the paper that were never published
    commit: str = ""  # of the code; "" where it was not recorded

    @property
    def verdicts(self) -> list[Verdict]:
        """One for each row, in their order."""
        return verdicts_of(self.rows, bool(self.private))

    @property
    def has_intervals(self) -> bool:
        """Whether figures are means over seeds, with their interval."""
        return any(row.metric.endswith(PLUS_MINUS) for row in self.rows)

    @classmethod
    def of_json(cls, entries: Mapping[str, Any]) -> "Table":
        """Read one. Raises KeyError, TypeError, ValueError."""
        rows = [
            Row(row["row"], row["metric"], row["paper"], row["ours"], row.get("bound", ""))
            for row in entries["rows"]
        ]
        return cls(
            rows=tuple(rows),
            inputs=tuple(entries["inputs"]),
            notes=tuple(entries["notes"]),
            shown=entries["shown"],
            simulations=int(entries["simulations"]),
            took_s=float(entries.get("processor_s") or entries["simulated_s"] or entries["wall_s"]),
            scale=float(entries["scale"]),
            made_on=str(entries["made_on"]),
            private=str(entries.get("private") or ""),
            commit=str(entries.get("commit") or ""),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One entry: made, or why it was not."""

    experiment: Experiment
    made: Reproduction | None  # by this command
    why: str = ""  # it was not made
    failed: bool = False  # since something broke, not for want of data
    table: Table | None = None  # what the page shows
    causes: Causes | None = None  # its series of switched assumptions, where one was run


def make_all(
    experiments: Iterable[Experiment],
    request_for: Callable[[Path | None], Request],
    data: str | None,
    say: Say,
    finished: Callable[[Sequence[Outcome]], None],
    causes: bool = False,
) -> list[Outcome]:
    """Make each table. data: the folder of data sets; None: all from made data.

    causes: also its series of switched assumptions, where it has one. finished: called after each with all
    outcomes so far, so that nothing is lost when the command is cut off.
    """
    outcomes: list[Outcome] = []
    for experiment in experiments:
        say(f"{experiment.name}: {experiment.paper}")
        outcomes.append(_attempt(Outcome(experiment, None), request_for, data, say, _with_table))
        finished(outcomes)
        if causes and experiment.causes is not None and outcomes[-1].made is not None:
            say(f"{experiment.name}: switched assumptions")
            outcomes[-1] = _attempt(outcomes[-1], request_for, data, say, _with_causes)
            finished(outcomes)
    return outcomes


def _attempt(
    outcome: Outcome,
    request_for: Callable[[Path | None], Request],
    data: str | None,
    say: Say,
    make: Callable[[Outcome, Request], Outcome],
) -> Outcome:
    """The outcome with something more, or with the reason why it could not be made."""
    experiment = outcome.experiment
    try:
        root = None if data is None else data_root(data, experiment.data)
        return make(outcome, replace(request_for(root), tally=Tally()))
    except InputError as wrong:
        say(f"{experiment.name}: not made: {wrong}")
        return replace(outcome, why=str(wrong))
    except Exception as failure:  # whatever it is, the other tables can still be made
        why = f"{type(failure).__name__}: {failure}"
        say(f"{experiment.name}: failed: {why}")
        say(traceback.format_exc())
        return replace(outcome, why=why, failed=True)


def _with_table(outcome: Outcome, request: Request) -> Outcome:
    made = outcome.experiment.run(request)
    return replace(outcome, made=made, table=Table.of_json(made.as_json()))


def _with_causes(outcome: Outcome, request: Request) -> Outcome:
    return replace(outcome, causes=make_causes(outcome.experiment, request))


def read_all(experiments: Iterable[Experiment], folder: Path) -> list[Outcome]:
    """Each table from the file of JSON that an earlier command made of it; InputError for a damaged one."""
    if not folder.is_dir():
        raise InputError(f"--page {folder}: expected a folder with tables of `reproduce --json`")
    outcomes = []
    for experiment in experiments:
        path = folder / f"{experiment.name}.json"
        try:
            table = Table.of_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            outcomes.append(Outcome(experiment, None, "no table of it was made for this page"))
        except (OSError, ValueError, KeyError, TypeError) as wrong:
            raise InputError(f"{path}: expected a table of `reproduce --json`: {wrong}") from None
        else:
            outcomes.append(Outcome(experiment, None, table=table, causes=_read_causes(experiment, folder)))
    return outcomes


def _read_causes(experiment: Experiment, folder: Path) -> Causes | None:
    """Its series of switched assumptions, where an earlier command has left it."""
    path = folder / CAUSES / f"{experiment.name}.json"
    try:
        return Causes.of_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        raise InputError(f"{path}: expected a series of `reproduce --causes --json`: {wrong}") from None


def write_all(outcomes: Sequence[Outcome], page: str, folder: Path) -> None:
    """Write the page, and each table and series as a file of JSON beside it; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        name = f"{outcome.experiment.name}.json"
        if outcome.made is not None:
            write_whole(folder / name, json.dumps(outcome.made.as_json(), indent=2) + "\n")
        if outcome.made is not None and outcome.causes is not None:
            (folder / CAUSES).mkdir(exist_ok=True)
            write_whole(folder / CAUSES / name, json.dumps(outcome.causes.as_json(), indent=2) + "\n")
    write_whole(folder / PAGE, page)
