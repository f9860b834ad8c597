"""`stretto events`: what has happened, one line each."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_cells, show_line
from stretto.cli.service import Token, Url, service
from stretto.service.state.event_words import said_of, what_of

REPORTED = "Reported"  # a training says every few seconds how far it is


def events(
    job: Annotated[
        str, typer.Argument(help="Its id or name; without it, events of everything.", metavar="[JOB]")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events.")] = False,
    progress: Annotated[bool, typer.Option("--progress", help="Also reports of progress.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only what came after the event of this number.")] = 0,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Show what has happened to a job; --json prints one object a line, with reports of progress."""
    left_out = 0
    with service(url, token) as client:
        for event in client.events(job, after, follow):
            if as_json:
                show_line(json.dumps(event))
                continue
            if event["kind"] == REPORTED and not progress:
                left_out += 1
                continue
            cells = cells_of(event, job)
            show_line(aligned(cells)) if sys.stdout.isatty() else show_cells(cells)
    if left_out:
        reports = f"{left_out} report{'s' * (left_out != 1)} of progress"
        say(f"without {reports}: --progress shows {'them' if left_out > 1 else 'it'}")


def cells_of(event: Mapping[str, Any], job: str = "") -> list[str]:
    """An event as cells: number, time, what, and what of it people want to know. job: of which all are."""
    unix_s = event.get("unix_s")
    at = time.strftime("%H:%M:%S", time.localtime(unix_s)) if unix_s else f"{event['at_s']:.1f}s"
    whose = "" if job or "job" not in event else f"job {event['job']}: "
    return [str(event["seq"]), at, f"{whose}{what_of(event)}", said_of(event)]


def aligned(cells: Sequence[str]) -> str:
    """A line for a terminal, in widths that suit most events: what comes later is not known yet."""
    number, at, what, said = cells
    return f"{number:>6}  {at:<8}  {what:<24}  {said}".rstrip()
