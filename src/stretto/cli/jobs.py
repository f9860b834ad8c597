"""The verbs for jobs of a running service: submit, list, describe, logs, cancel and the like."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

Url = Annotated[str, typer.Option(help="The service; else STRETTO_URL, else http://127.0.0.1:8700.")]
JobName = Annotated[str, typer.Argument(help="The id of a job.")]

FAILED = 1


def submit(
    job: Annotated[
        list[str], typer.Argument(help="A job file, or -- and a command.", metavar="FILE | -- COMMAND")
    ],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of a command.")] = 1,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end, and leave with its status.")
    ] = False,
    key: Annotated[str, typer.Option(help="The same key submits once, however often it is tried.")] = "",
    url: Url = "",
    as_json: options.Json = False,
) -> None:
    """Submit a job."""
    from stretto.client import Client

    with Client(url) as client:
        found = client.submit(_submission(job, gpus), key)
        for warning in found.get("warnings", ()):
            say(f"ignored {warning}")
        if wait:
            found = client.wait(found["id"])
    if as_json:
        show_json(found)
    else:
        typer.echo(found["id"])
        say(_one_line(found))
    if wait and found["state"] != "COMPLETED":
        raise typer.Exit(found["status"] or FAILED)


def _submission(job: list[str], gpus: int) -> Path | str:
    if len(job) == 1 and Path(job[0]).is_file():
        return Path(job[0])
    if len(job) == 1 and job[0].endswith((".yaml", ".yml", ".sh")):
        return Path(job[0])  # which then says that it is not there
    name = "".join(one for one in Path(job[0]).name if one.isalnum() or one in "._-")[:63] or "command"
    return json.dumps(
        {
            "name": name,
            "run": shlex.join(job),
            "workdir": str(Path.cwd()),
            "resources": {"accelerators": gpus},
        }
    )


def list_jobs(
    everybody: Annotated[bool, typer.Option("--all", help="Those of all users.")] = False,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    url: Url = "",
    as_json: options.Json = False,
) -> None:
    """List jobs."""
    from stretto.client import Client

    with Client(url) as client:
        found = list(client.jobs(everybody, ended))
    if as_json:
        show_json({"jobs": found})
        return
    rows = [
        [
            one["id"],
            one["name"],
            one["user"],
            one["state"],
            _size(one),
            one["gpu_type"],
            _progress(one),
            _why(one),
        ]
        for one in found
    ]
    show_table("jobs", ["id", "name", "user", "state", "gpus", "type", "progress", "reason"], rows)


def describe(job: JobName, url: Url = "", as_json: options.Json = False) -> None:
    """Everything about one job."""
    from stretto.client import Client

    with Client(url) as client:
        found = client.describe(job)
    if as_json:
        show_json(found)
        return
    for key, value in found.items():
        if value not in (None, "", {}, []):
            typer.echo(f"{key:15} {value}")


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it is written.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Of which worker, by its index.")] = 0,
    attempt: Annotated[int, typer.Option(min=0, help="Of which attempt; 0: the last.")] = 0,
    url: Url = "",
) -> None:
    """What a job has written."""
    from stretto.client import Client

    with Client(url) as client:
        for piece in client.log(job, rank, attempt, follow):
            sys.stdout.write(piece)
            sys.stdout.flush()


def cancel(job: JobName, url: Url = "", as_json: options.Json = False) -> None:
    """End a job."""
    _change(job, "cancel", url, as_json)


def hold(job: JobName, url: Url = "", as_json: options.Json = False) -> None:
    """Keep a job from running until it is released."""
    _change(job, "hold", url, as_json)


def release(job: JobName, url: Url = "", as_json: options.Json = False) -> None:
    """Let a held job run again."""
    _change(job, "release", url, as_json)


def requeue(job: JobName, url: Url = "", as_json: options.Json = False) -> None:
    """End a job's attempt and let it wait anew."""
    _change(job, "requeue", url, as_json)


def scale(
    job: JobName,
    min_gpus: Annotated[int, typer.Option("--min", min=1, help="Fewest GPUs.")],
    max_gpus: Annotated[int, typer.Option("--max", min=1, help="Most GPUs.")],
    url: Url = "",
    as_json: options.Json = False,
) -> None:
    """Give an elastic job other bounds."""
    _change(job, "scale", url, as_json, min_gpus=min_gpus, max_gpus=max_gpus)


def _change(job: str, verb: str, url: str, as_json: bool, **values: Any) -> None:
    from stretto.client import Client

    with Client(url) as client:
        found = client.change(job, verb, **values)
    if as_json:
        show_json(found)
    else:
        typer.echo(_one_line(found))


def _one_line(job: dict[str, Any]) -> str:
    why = _why(job)
    return f"job {job['id']} {job['name']}: {job['state']}" + (f" ({why})" if why else "")


def _why(job: dict[str, Any]) -> str:
    return " ".join(filter(None, (job["reason"], job["evidence"])))


def _size(job: dict[str, Any]) -> str:
    return f"{job['gpus']}/{job['gpus_asked']}"


def _progress(job: dict[str, Any]) -> str:
    progress = job["progress"]
    parts = [f"epoch {progress['epoch']}"] if "epoch" in progress else []
    parts += [f"step {progress['step']}"] if "step" in progress else []
    return " ".join(parts)
