"""Every published table, one after the other, and one page that shows all of them.

What was simulated before is not simulated again, so the command may be interrupted and given again. An entry
that cannot be made does not keep the others from it.
"""

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    table_verdict,
    verdicts_of,
)
from stretto.model import InputError

PAGE = "results.md"
LONG_NOTE = 20  # words; chosen
JUDGED = tuple(verdict for verdict in Verdict if verdict is not Verdict.NOT_COMPARED)
SIGNS = {"": "", "at most": "≤ ", "at least": "≥ "}  # before a figure that is a limit


@dataclass(frozen=True, slots=True)
class Table:
    """A table as `reproduce --json` prints it; its verdicts are judged anew."""

    rows: tuple[Row, ...]
    inputs: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    shown: Mapping[str, str]  # by policy, in words
    simulations: int
    took_s: float  # of one simulation after the other
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
            took_s=float(entries["simulated_s"]) or float(entries["wall_s"]),
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


def make_all(
    experiments: Iterable[Experiment],
    request_for: Callable[[Path | None], Request],
    data: str | None,
    say: Say,
    finished: Callable[[Sequence[Outcome]], None],
) -> list[Outcome]:
    """Make each table. data: the folder of data sets; None: all from made data.

    finished: called after each with all outcomes so far, so that nothing is lost when the command is cut off.
    """
    outcomes: list[Outcome] = []
    for experiment in experiments:
        say(f"{experiment.name}: {experiment.paper}")
        try:
            root = None if data is None else data_root(data, experiment.data)
            request = replace(request_for(root), tally=Tally())
            made = experiment.run(request)
            outcomes.append(Outcome(experiment, made, table=Table.of_json(made.as_json())))
        except InputError as wrong:
            outcomes.append(Outcome(experiment, None, str(wrong)))
            say(f"{experiment.name}: not made: {wrong}")
        except Exception as failure:  # whatever it is, the other tables can still be made
            why = f"{type(failure).__name__}: {failure}"
            outcomes.append(Outcome(experiment, None, why, failed=True))
            say(f"{experiment.name}: failed: {why}")
            say(traceback.format_exc())
        finished(outcomes)
    return outcomes


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
            outcomes.append(Outcome(experiment, None, table=table))
    return outcomes


def made_by(command: str, made_at: str, scale: float, wall_s: float) -> str:
    """How a page was made whose tables all come from one command."""
    return f"Made by `{command}` on {made_at}, {_share(scale)}. It took {_duration(wall_s)}."


READ = (
    "Each table was made by `stretto reproduce NAME --json` on the day that stands below it, by the code of "
    "that day."
)


def page_of(outcomes: Sequence[Outcome], about: str) -> str:
    """The page of all tables, as Markdown. about: how they were made."""
    tables = [outcome.table for outcome in outcomes if outcome.table is not None]
    whole = [table for table in tables if table.scale == 1]
    took_s = sum(table.took_s for table in tables)
    counts = Counter(verdict for table in whole for verdict in table.verdicts)
    lines = [
        "# Results: the papers' figures and ours",
        "",
        about,
        "Nothing on this page is typed in. The [rule](reproducing.md#verdicts) of the verdicts came first.",
        f"{len(whole)} tables are whole, and counted here. {len(tables) - len(whole)} were made of a share "
        "of the arrivals, which loads a cluster less. Their verdicts are in brackets, and not counted.",
        f"One simulation after the other, all of them took {_duration(took_s)}.",
        "",
        *_table(
            ("rows", "compared", *(str(verdict) for verdict in Verdict)),
            [
                (
                    str(sum(counts.values())),
                    str(sum(counts.values()) - counts[Verdict.NOT_COMPARED]),
                    *(str(counts[verdict]) for verdict in Verdict),
                )
            ],
        ),
        "",
        "## Tables",
        "",
        *_table(
            ("entry", "of", "verdict", *map(str, JUDGED), "data", "scale", "intervals", "runs", "took"),
            [_summary(outcome) for outcome in outcomes],
        ),
    ]
    for outcome in outcomes:
        lines += ["", *_section(outcome)]
    return "\n".join(lines) + "\n"


def _summary(outcome: Outcome) -> tuple[str, ...]:
    """The line of one entry."""
    name, paper, table = outcome.experiment.name, outcome.experiment.paper, outcome.table
    if table is None:
        state = "failed" if outcome.failed else "not made"
        return (f"[{name}](#{name})", paper, state, *("" for _ in (*JUDGED, 1, 2, 3, 4, 5)))
    verdicts = table.verdicts
    counts = Counter(verdicts)
    kinds = {"real" if source["real"] else "made" for source in table.inputs}
    return (
        f"[{name}](#{name})",
        paper,
        str(table_verdict(verdicts)) if table.scale == 1 else f"({table_verdict(verdicts)})",
        *(str(counts[each]) for each in JUDGED),
        "both" if len(kinds) > 1 else kinds.pop(),
        f"{table.scale:g}",
        "yes" if table.has_intervals else "",
        str(table.simulations),
        _duration(table.took_s),
    )


def _section(outcome: Outcome) -> list[str]:
    """All that one entry came to."""
    table = outcome.table
    lines = [f"## {outcome.experiment.name}", "", f"{outcome.experiment.paper}.", ""]
    if outcome.experiment.not_whole:
        lines += [f"Not made whole within half an hour: {outcome.experiment.not_whole}.", ""]
    if table is None:
        return [*lines, f"{'It failed' if outcome.failed else 'It was not made'}: {_cell(outcome.why)}"]
    rows = zip(table.rows, table.verdicts, strict=True)
    lines += _table(
        ("row", "metric", "paper", "ours", "ratio", "verdict"), [_row(row, verdict) for row, verdict in rows]
    )
    of_code = f" by commit {table.commit}" if table.commit else ", by a commit that was not recorded"
    lines += ["", f"- On {table.made_on}{of_code}, {_share(table.scale)}."]
    if table.private:
        lines.append(f"- The paper never published {table.private}: what differs contradicts nothing.")
    lines += [
        f"- {'Real' if each['real'] else 'Made'}: {each['what']} ({_in_sentences(each['note'])})"
        for each in table.inputs
    ]
    lines += [f"- {_in_sentences(note)}" for note in table.notes]
    lines += [f"- Shown to `{policy}`: {_shown(words)}." for policy, words in sorted(table.shown.items())]
    return lines


def _shown(words: str) -> str:
    """What a policy was shown and what was set for it: each way of setting it is a piece of code."""
    views, _, ways = words.partition("; set: ")
    return views + (". Set: " + ", ".join(f"`{way}`" for way in ways.split(" or ")) if ways else "")


def _in_sentences(note: str) -> str:
    """A note whose parts, which semicolons divide, are sentences where it is long."""
    if len(note.split()) <= LONG_NOTE:
        return note
    first, *others = note.split("; ")
    return ". ".join([first, *(other[:1].upper() + other[1:] for other in others)])


def _share(scale: float) -> str:
    return "whole" if scale == 1 else f"at a scale of {scale:g}: this share of each workload"


def _row(row: Row, verdict: Verdict) -> tuple[str, ...]:
    paper = "" if row.paper is None else SIGNS[row.bound] + number(row.paper)
    said = "" if verdict is Verdict.NOT_COMPARED else str(verdict)
    return (row.row, row.metric, paper, number(row.ours), number(row.ratio), said)


def number(value: float | None) -> str:
    """A figure with three digits; "" for none."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def write_all(outcomes: Sequence[Outcome], page: str, folder: Path) -> None:
    """Write the page, and each table as a file of JSON beside it; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        if outcome.made is not None:
            text = json.dumps(outcome.made.as_json(), indent=2) + "\n"
            write_page(text, folder / f"{outcome.experiment.name}.json")
    write_page(page, folder / PAGE)


def write_page(page: str, path: Path) -> None:
    """Write a page or a table, whole or not at all; raises OSError."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(page, encoding="utf-8")
    part.replace(path)
