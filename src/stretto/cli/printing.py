"""How commands speak: tables on a terminal, plain lines on a pipe, JSON where asked for."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stretto.experiments.json_text import json_text

if TYPE_CHECKING:
    from rich.table import Table

BETWEEN, EDGES = 3, 2  # signs that a table has between two columns, and around all
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # also what turns the direction round
LEAST_NAME = 13  # signs that a shortened name keeps; chosen: a word and the end that tells it from the next


def show_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json_text(value))


def show_line(text: str) -> None:
    """One line of a result on standard output."""
    print(harmless(text))


def show_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], tight: str = "", none: str = ""
) -> None:
    """A table with a title on a terminal; on a pipe its lines with tabs between the cells.

    tight: the column whose cells are shortened where a terminal is too narrow for all.
    none: what a terminal shows instead of a table without rows.
    """
    if not sys.stdout.isatty():
        _show_plain([header, *rows])
        return
    if none and not rows:
        say(none)
        return
    _show_rich(table_of(title, header, rows, tight))


def table_of(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], tight: str = "") -> "Table":
    """A table for a terminal; "" for no title."""
    from rich.console import Console

    if tight in header:
        rows = _tightened(rows, header, header.index(tight), Console().width)
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(harmless(title)) if title else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
    )
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))
    return table


def harmless(text: str) -> str:
    """The text with control characters spelt out: a job may report what would drive a terminal."""
    return CONTROL.sub(lambda sign: repr(sign[0])[1:-1], text)


def shortened(text: str, width: int) -> str:
    """At most so many characters, the middle left out: both ends tell names of one series apart."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end] + "…" + text[len(text) - end :]


def _tightened(
    rows: Sequence[Sequence[str]], header: Sequence[str], column: int, width: int
) -> list[list[str]]:
    """The rows with one column's cells as short as the others want it, down to the least."""
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    left = width - sum(widths) + widths[column] - BETWEEN * (len(header) - 1) - EDGES
    room = max(left, LEAST_NAME)
    return [[shortened(cell, room) if at == column else cell for at, cell in enumerate(row)] for row in rows]


def show_report(table: "Table") -> None:
    """A table that was laid out for a terminal; on a pipe its cells, and what stands around on stderr."""
    if sys.stdout.isatty():
        from rich.text import Text

        # What data sets and clusters are called stands around the cells.
        table.title = Text(harmless(str(table.title or "")))
        table.caption = Text("\n".join(map(harmless, str(table.caption or "").splitlines())))
        _show_rich(table)
        return
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    header = [[str(column.header) for column in table.columns]] if table.show_header else []
    _show_plain([*header, *zip(*columns, strict=True)])
    for line in [str(table.title), *str(table.caption or "").splitlines()]:
        say(line)


def say(message: str) -> None:
    """A remark beside the result: one line on standard error, never wrapped."""
    print(harmless(message), file=sys.stderr)


@contextmanager
def job_bar(description: str) -> Iterator[Any]:
    """A progress bar over jobs, on a terminal only; yields a function of (jobs done, jobs)."""
    if not sys.stderr.isatty():
        yield lambda done, jobs: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(Text(description).markup, total=None)
        yield lambda done, jobs: progress.update(bar, completed=done, total=jobs)


def _show_rich(table: "Table") -> None:
    from rich.console import Console

    Console(highlight=False).print(table)


def show_cells(cells: Sequence[str]) -> None:
    """One line for a pipe: cells with tabs between them."""
    print("\t".join(harmless(" ".join(cell.split())) for cell in cells).rstrip("\t"))


def _show_plain(lines: Sequence[Sequence[str]]) -> None:
    for line in lines:
        print("\t".join(harmless(" ".join(cell.split())) for cell in line))
