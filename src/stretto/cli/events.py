"""`stretto events`: what has happened, one line each."""

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.service import Token, Url, service
from stretto.live.words import gpus_of

LEFT_OUT = ("seq", "at_s", "unix_s", "kind", "job", "spec", "secret", "report", "actions", "memory", "sha256")


def events(
    job: Annotated[
        str, typer.Argument(help="The id of a job; without: of everything.", metavar="[JOB]")
    ] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it happens.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only what came after the event of this number.")] = 0,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """What has happened to a job; with --json one object a line."""
    with service(url, token) as client:
        for one in client.events(job, after, follow):
            typer.echo(json.dumps(one) if as_json else line_of(one, job))


def line_of(event: Mapping[str, Any], job: str = "") -> str:
    """An event in a line: number, time, what, and what of it people want to know."""
    unix_s = event.get("unix_s")
    at = time.strftime("%H:%M:%S", time.localtime(unix_s)) if unix_s else f"{event['at_s']:.1f}s"
    whose = "" if job or "job" not in event else f" {event['job']}"
    said = said_of(event)
    return f"{event['seq']}\t{at}\t{event['kind']}{whose}" + (f"\t{said}" if said else "")


def said_of(event: Mapping[str, Any]) -> str:
    """The rest of an event in words."""
    workers = event.get("workers")
    match event["kind"]:
        case "WorkersWanted" if workers:
            gpus = sum(int(one["mask"]).bit_count() for one in workers)
            nodes = ", ".join(dict.fromkeys(str(one["node"]) for one in workers))
            return f"attempt {event['attempt']}: start on {gpus_of(gpus)} of {nodes}"
        case "WorkersEnded" if workers:
            return ", ".join(f"{one['id']} with status {one['status']}" for one in workers)
        case "Generation":
            size = f"{len(workers)} workers train together" if workers else "everybody is to save and leave"
            return f"generation {event['number']}: {size}"
        case "Decided":
            changes = ", ".join(f"{one['verb']} {one['job']}" for one in event.get("actions", ()))
            return f"{changes or 'nothing changes'} ({event['took_ms']:.1f} ms)"
        case "Reported":
            report = event.get("report", {})
            told = {key: report[key] for key in ("step", "epoch", "loss", "metric") if key in report}
            return _pairs(told)
    return _pairs({key: value for key, value in event.items() if key not in LEFT_OUT})


def _pairs(values: Mapping[str, Any]) -> str:
    def text(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.4g}"
        return ",".join(map(str, value)) if isinstance(value, list) else str(value)

    return " ".join(
        f"{key}={text(value)}" for key, value in values.items() if value not in (None, "", [], {})
    )
