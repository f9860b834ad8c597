"""How commands speak: tables on a terminal, plain lines on a pipe, JSON where asked for."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PIPE_WIDTH = 10_000  # chosen: no line of a table is wrapped where no person looks at it


def console() -> Console:
    """Standard output, as wide as the terminal, or without limit on a pipe."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def show_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(value, indent=2, allow_nan=False))


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a title."""
    if not sys.stdout.isatty():
        for row in [header, *rows]:
            print("\t".join(row))
        return
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def say(message: str) -> None:
    """A remark beside the result, on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)


@contextmanager
def job_bar(description: str) -> Iterator[Any]:
    """A progress bar over jobs, on a terminal only; yields a function of (jobs done, jobs)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        bar = progress.add_task(description, total=None)
        yield lambda done, jobs: progress.update(bar, completed=done, total=jobs)
