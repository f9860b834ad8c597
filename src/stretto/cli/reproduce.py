"""`stretto reproduce`: a published table, made again."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table
from stretto.whole_files import write_whole

if TYPE_CHECKING:
    from stretto.experiments.all_tables import Outcome
    from stretto.experiments.causes import Causes
    from stretto.experiments.finished import Finished
    from stretto.experiments.reproduction import Reproduction, Request, Row, Verdict
    from stretto.report.reproduction import Reproduced


def _names() -> list[str]:
    """What the shell may complete to."""
    from stretto.experiments.published import EXPERIMENTS

    return list(EXPERIMENTS)


def reproduce(
    name: Annotated[
        str, typer.Argument(help="A table; without one, all are listed.", autocompletion=_names)
    ] = "",
    list_all: Annotated[
        bool, typer.Option("--list", help="List the tables, their data and how long they take.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Make all of them, one after the other, and a page that shows them.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Make no table: write the page of those that earlier commands left in DIR, as NAME.json; "
            "with --figures, their figures too.",
        ),
    ] = None,
    causes: Annotated[
        bool,
        typer.Option(
            "--causes",
            help="Switch the assumptions of the table one at a time, instead of making it; with --all, too.",
        ),
    ] = False,
    data: Annotated[str, typer.Option(help="The folder with the public data sets; else $STRETTO_DATA.")] = "",
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Run made data instead.")] = False,
    scale: Annotated[float, typer.Option(help="Share of the workloads to run, above 0, at most 1.")] = 1.0,
    workers: options.Workers = 0,
    keep: Annotated[
        str, typer.Option(help="The folder that keeps finished simulations; else one in the user's cache.")
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Take no simulation from an earlier command.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html|DIR|FILE.md",
            help="Also write the table as a page of its own; with --all, a folder; with --page, the page.",
        ),
    ] = None,
    figures: options.Figures = None,
    as_json: options.Json = False,
) -> None:
    """Make a table of a paper again and print it beside the published figures.

    Every finished simulation is kept: the same command goes on where it was interrupted.
    """
    from stretto.errors import InputError
    from stretto.experiments.causes import make_causes
    from stretto.experiments.log import check_writable
    from stretto.experiments.published import experiment_of
    from stretto.experiments.reproduction import Request, data_root

    modes = {"--list": list_all, "--all": every, "--page": page is not None}
    asked = [name] * bool(name) + [mode for mode, is_on in modes.items() if is_on]
    if len(asked) > 1:
        expected = "a table" if name else asked[0]
        raise InputError(f"expected {expected} or {asked[1]}, got both" + (f": {name}" if name else ""))
    if figures is not None:
        if list_all or not asked:
            raise InputError(f"--figures {figures}: expected a table that is made, --all or --page")
        check_writable(figures, "--figures")
    _check_causes(causes, name, every, out, figures)
    if page is not None:
        _write_page_of(page, Path("results.md") if out is None else out, figures)
        return
    if list_all or not (name or every):
        _list(as_json)
        return
    if not 0 < scale <= 1:
        raise InputError(f"--scale must be above 0 and at most 1, got {scale:g}")
    if data and synthetic:
        raise InputError(f"expected --data or --synthetic, got both: --data {data}")
    if every:
        finished = _finished(keep, fresh)
        _make_all(
            lambda root: Request(root, scale, workers, sys.stderr.isatty(), finished, say),
            None if synthetic else data,
            scale,
            out,
            figures,
            causes,
        )
        return
    experiment = experiment_of(name)
    root = None if synthetic else data_root(data, experiment.data)
    if out is not None:
        check_page(out)
    finished = _finished(keep, fresh)
    request = Request(root, scale, workers, sys.stderr.isatty(), finished, say)
    try:
        if causes:
            _print_causes(make_causes(experiment, request), as_json)
            return
        made = experiment.run(request)
    except KeyboardInterrupt:
        if finished is not None:
            say(f"finished simulations are in {finished.folder}: the same command goes on from there")
        raise
    if as_json:
        show_json(made.as_json())
    else:
        _print(made)
    if out is not None:
        _write_page(made, out)
        say(f"page: {out}")
    if figures is not None:
        _write_figures(made, figures)
        say(f"figures: {figures}")


def _check_causes(causes: bool, name: str, every: bool, out: Path | None, figures: Path | None) -> None:
    """Raise InputError where --causes stands beside something with which it means nothing."""
    from stretto.errors import InputError
    from stretto.experiments.published import EXPERIMENTS, experiment_of

    if not causes or every:
        return
    if not name:
        raise InputError("--causes: expected a table whose assumptions are switched, or --all")
    for option, value in (("--out", out), ("--figures", figures)):
        if value is not None:
            raise InputError(f"{option} {value}: expected a table that is made, got --causes")
    if experiment_of(name).causes is None:
        having = ", ".join(name for name, each in EXPERIMENTS.items() if each.causes is not None)
        raise InputError(f"--causes {name}: expected a table with a series of switched assumptions: {having}")


def check_page(out: Path) -> None:
    """Raise InputError where the page could not be written, before hours are spent on it."""
    from stretto.errors import InputError
    from stretto.experiments.log import check_writable

    if out.suffix not in (".html", ".htm") or out.is_dir():
        raise InputError(f"--out {out}: expected the name of a file that ends in .html")
    check_writable(out.parent)


def _write_page(made: "Reproduction", out: Path) -> None:
    from stretto.errors import InputError
    from stretto.report.reproduction_page import write_reproduction

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_reproduction(_content_of(made), out)
    except OSError as wrong:
        raise InputError(f"--out {out}: cannot be written: {wrong.strerror}") from None


def _content_of(made: "Reproduction") -> "Reproduced":
    from stretto.experiments.present import reproduced

    command = shlex.join(["stretto", *sys.argv[1:]])
    return reproduced(made, command, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))


def _write_figures(made: "Reproduction", figures: Path) -> None:
    from stretto.experiments.figure_export import write_reproduction_figures

    if no_png := write_reproduction_figures(made, _content_of(made), figures):
        say(no_png)


def _make_all(
    request_for: "Callable[[Path | None], Request]",
    data: str | None,
    scale: float,
    out: Path | None,
    figures: Path | None,
    causes: bool,
) -> None:
    """Every table; the page so far is written after each, so that nothing is lost when this is cut off."""
    from stretto.errors import InputError
    from stretto.experiments.all_tables import PAGE, Outcome, make_all, write_all
    from stretto.experiments.log import check_writable
    from stretto.experiments.published import EXPERIMENTS
    from stretto.experiments.results_page import made_by, page_of

    folder = Path("results") if out is None else out
    if folder.suffix or folder.is_file():
        raise InputError(f"--out {folder}: expected the name of a folder, with --all")
    check_writable(folder.parent)
    command, began_s = shlex.join(["stretto", *sys.argv[1:]]), time.perf_counter()

    def write(outcomes: Sequence[Outcome]) -> None:
        made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        page = page_of(outcomes, made_by(command, made_at, scale, time.perf_counter() - began_s))
        try:
            write_all(outcomes, page, folder)
        except OSError as wrong:
            raise InputError(f"--out {folder}: cannot be written: {wrong.strerror}") from None
        made = outcomes[-1].made
        if made is not None and made.rows:
            _write_page(made, folder / f"{made.name}.html")
            if figures is not None:
                _write_figures(made, figures / made.name)

    outcomes = make_all(EXPERIMENTS.values(), request_for, data, say, write, causes)
    failed = [outcome.experiment.name for outcome in outcomes if outcome.failed]
    absent = [outcome.experiment.name for outcome in outcomes if outcome.made is None and not outcome.failed]
    say(f"{len(outcomes)} tables in {time.perf_counter() - began_s:.0f} s; page: {folder / PAGE}")
    for names, words in ((absent, "not made"), (failed, "failed")):
        if names:
            say(f"{words}: {', '.join(names)}")
    if failed:
        raise typer.Exit(1)


def _write_page_of(folder: Path, out: Path, figures: Path | None) -> None:
    """The page of all tables, and their figures, from those that earlier commands have printed."""
    from stretto.errors import InputError
    from stretto.experiments.all_tables import read_all
    from stretto.experiments.published import EXPERIMENTS
    from stretto.experiments.results_page import READ, page_of

    if out.suffix != ".md":
        raise InputError(f"--out {out}: expected the name of a file that ends in .md, with --page")
    outcomes = read_all(EXPERIMENTS.values(), folder)
    if not (made := sum(outcome.table is not None for outcome in outcomes)):
        raise InputError(f"--page {folder}: expected tables of `reproduce NAME --json`, as NAME.json")
    try:
        write_whole(out, page_of(outcomes, READ))
    except OSError as wrong:
        raise InputError(f"--out {out}: cannot be written: {wrong.strerror}") from None
    say(f"{made} of {len(outcomes)} tables; page: {out}")
    if figures is not None:
        _write_figures_of(outcomes, figures)


def _write_figures_of(outcomes: "Sequence[Outcome]", figures: Path) -> None:
    """A folder of figures for each table that there is; a word where some have none, or no PNG."""
    from stretto.experiments.figure_export import write_reproduction_figures
    from stretto.experiments.present import reproduced_before

    words: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.table is not None:
            name, paper = outcome.experiment.name, outcome.experiment.paper
            content = reproduced_before(name, paper, outcome.table)
            if why := write_reproduction_figures(outcome.table, content, figures / name):
                words.setdefault(why, []).append(name)
    made = sum(outcome.table is not None for outcome in outcomes)
    for why, names in words.items():
        say(why if len(names) == made else f"{', '.join(names)}: {why}")
    say(f"figures: {figures}")


def _list(as_json: bool) -> None:
    """What can be made again."""
    from stretto.experiments.published import EXPERIMENTS

    if as_json:
        show_json({"tables": [experiment.as_json() for experiment in EXPERIMENTS.values()]})
        return
    header = ["name", "paper", "data", "simulations", "takes", "not whole, since", "causes"]
    rows = [
        [
            experiment.name,
            experiment.paper,
            experiment.data or "made",
            str(experiment.simulations or "-"),
            experiment.takes or "-",
            experiment.not_whole or "-",
            "yes" if experiment.causes else "-",
        ]
        for experiment in EXPERIMENTS.values()
    ]
    show_table("Published tables", header, rows)


def _finished(keep: str, fresh: bool) -> "Finished | None":
    """Where simulations are kept; nowhere if no folder was named and the usual one cannot be written."""
    from stretto.errors import InputError
    from stretto.experiments.finished import Finished, usual_folder
    from stretto.experiments.log import check_writable

    folder = Path(keep) if keep else usual_folder()
    try:
        check_writable(folder, "--keep")
    except InputError as wrong:
        if keep:
            raise
        say(f"finished simulations are not kept: {wrong}")
        return None
    return Finished(folder, since_s=time.time() if fresh else 0.0)


def _print(made: "Reproduction") -> None:
    from stretto.experiments.reproduction import shown_words, table_verdict

    header = ["row", "metric", "paper", "ours", "ratio", "verdict"]
    is_terminal = sys.stdout.isatty()
    show_table(f"{made.name}: {made.paper}", header, table_rows(made.rows, made.verdicts, is_terminal))
    say(f"verdict: {table_verdict(made.verdicts)}")
    if made.private:
        say(f"data private: the paper never published {made.private}; what differs contradicts nothing")
    for source in made.inputs:
        say(f"{'real' if source.real else 'SYNTHETIC'}: {source.what} ({source.note})")
    for note in made.notes:
        say(note)
    for policy, words in sorted(shown_words(made.tally.shown).items()):
        say(f"shown to {policy}: {words}")
    reused = (
        f", {made.tally.kept} of {made.tally.simulations} simulations from before" if made.tally.kept else ""
    )
    say(f"{made.wall_s:.0f} s{reused}")


def _print_causes(causes: "Causes", as_json: bool) -> None:
    from stretto.experiments.causes_page import met_by, rows_of
    from stretto.experiments.findings import FINDINGS
    from stretto.experiments.published import experiment_of

    if as_json:
        show_json(causes.as_json())
        return
    header = ["switched", *(f"{figure.row}, {figure.metric}" for figure in causes.series.figures)]
    show_table(
        f"{causes.name}: {experiment_of(causes.name).paper}", header, list(rows_of(causes.series, False))
    )
    for line in (*met_by(causes.series), *FINDINGS.get(causes.name, ())):
        say(line)
    say(f"{causes.took_s:.0f} s of a core")


_SIGNS = {"": "", "at most": "<= ", "at least": ">= "}  # before a figure that is a limit


def table_rows(rows: "Sequence[Row]", verdicts: "Sequence[Verdict]", apart: bool) -> list[list[str]]:
    """The cells row by row, rows of one name together; apart: the name stands on the first of them only."""
    from stretto.experiments.reproduction import Verdict

    groups: dict[str, list[tuple[Row, Verdict]]] = {}
    for row, verdict in zip(rows, verdicts, strict=True):
        groups.setdefault(row.row, []).append((row, verdict))
    return [
        [
            "" if apart and index else row.row,
            row.metric,
            _SIGNS[row.bound] + _number(row.paper),
            *map(_number, (row.ours, row.ratio)),
            "-" if verdict is Verdict.NOT_COMPARED else str(verdict),
        ]
        for group in groups.values()
        for index, (row, verdict) in enumerate(group)
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
