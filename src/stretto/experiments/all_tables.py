"""Every published table, one after the other, and one page that shows all of them.

What was simulated before is not simulated again, so the command may be interrupted and given again. An entry
that cannot be made does not keep the others from it.
"""

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stretto.experiments.progress import Say
from stretto.experiments.reproduction import (
    Experiment,
    Reproduction,
    Request,
    Row,
    Tally,
    Verdict,
    data_root,
    shown_words,
    table_verdict,
    verdicts_of,
)
from stretto.model import InputError

PAGE = "results.md"
SIGNS = {"": "", "at most": "≤ ", "at least": "≥ "}  # before a figure that is a limit


@dataclass(frozen=True, slots=True)
class Outcome:
    """One entry: made, or why it was not."""

    experiment: Experiment
    made: Reproduction | None
    why: str = ""  # it was not made
    failed: bool = False  # since something broke, not for want of data


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
            outcomes.append(Outcome(experiment, experiment.run(request)))
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


def page_of(outcomes: Sequence[Outcome], command: str, made_at: str, scale: float, wall_s: float) -> str:
    """The page of all tables, as Markdown."""
    made = [outcome.made for outcome in outcomes if outcome.made is not None]
    counts = Counter(verdict for table in made for verdict in verdicts_of(table.rows))
    share = "whole" if scale == 1 else f"at a scale of {scale:g}: this share of each workload"
    lines = [
        "# Results: the papers' figures and ours",
        "",
        f"Made by `{command}` on {made_at}, {share}. It took {_duration(wall_s)}. Every figure on this page",
        "comes from that command. The [rule](reproducing.md#verdicts) of the verdicts was stated before.",
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
            ("entry", "of", "verdict", "reproduced", "same order", "contradicted", "data", "runs", "took"),
            [_summary(outcome) for outcome in outcomes],
        ),
    ]
    for outcome in outcomes:
        lines += ["", *_section(outcome)]
    return "\n".join(lines) + "\n"


def _summary(outcome: Outcome) -> tuple[str, ...]:
    """The line of one entry."""
    name, made = outcome.experiment.name, outcome.made
    if made is None:
        state = "failed" if outcome.failed else "not made"
        return (name, outcome.experiment.paper, state, "", "", "", "", "", "")
    verdicts = verdicts_of(made.rows)
    counts = Counter(verdicts)
    data = "real" if all(source.real for source in made.inputs) else "made"
    if data == "made" and any(source.real for source in made.inputs):
        data = "both"
    return (
        f"[{name}](#{name})",
        made.paper,
        str(table_verdict(verdicts)),
        *(str(counts[each]) for each in (Verdict.REPRODUCED, Verdict.SAME_ORDER, Verdict.CONTRADICTED)),
        data,
        str(made.tally.simulations),
        _duration(made.tally.simulated_s or made.wall_s),
    )


def _section(outcome: Outcome) -> list[str]:
    """All that one entry came to."""
    made = outcome.made
    lines = [f"## {outcome.experiment.name}", "", f"{outcome.experiment.paper}.", ""]
    if outcome.experiment.not_whole:
        lines += [f"Not made whole within half an hour: {outcome.experiment.not_whole}.", ""]
    if made is None:
        return [*lines, f"{'It failed' if outcome.failed else 'It was not made'}: {_cell(outcome.why)}"]
    rows = zip(made.rows, verdicts_of(made.rows), strict=True)
    lines += _table(
        ("row", "metric", "paper", "ours", "ratio", "verdict"), [_row(row, verdict) for row, verdict in rows]
    )
    lines += [
        "",
        *(f"- {'Real' if each.real else 'Made'}: {each.what} ({each.note})" for each in made.inputs),
    ]
    lines += [f"- {note}" for note in made.notes]
    shown = made.tally.shown
    lines += [f"- Shown to `{policy}`: {words}." for policy, words in sorted(shown_words(shown).items())]
    return lines


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
    """The page, and each table as a file of JSON beside it; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        if outcome.made is not None:
            path = folder / f"{outcome.experiment.name}.json"
            path.write_text(json.dumps(outcome.made.as_json(), indent=1) + "\n", encoding="utf-8")
    part = folder / f"{PAGE}.part"
    part.write_text(page, encoding="utf-8")
    part.replace(folder / PAGE)
