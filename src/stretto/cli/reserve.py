"""The verbs for GPUs that are kept for a user or a queue."""

import time
from datetime import datetime
from typing import Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import show_json, show_line, show_table
from stretto.cli.service import Token, Url, service
from stretto.errors import InputError

app = typer.Typer(help="Reservations of a running service.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="What the reservation is called.", metavar="NAME")]


@app.command("set")
def reserve(
    name: Name,
    end: Annotated[str, typer.Option(help="A date with its zone, or how long: 2h.")],
    gpus: Annotated[int, typer.Option(min=0, help="How many GPUs of --gpu-type.")] = 0,
    gpu_type: Annotated[str, typer.Option(help="Of which type.")] = "",
    node: Annotated[list[str] | None, typer.Option(help="All GPUs of a node; may be repeated.")] = None,
    user: Annotated[str, typer.Option(help="For the jobs of this user.")] = "",
    queue: Annotated[str, typer.Option(help="For the jobs of this queue.")] = "",
    start: Annotated[str, typer.Option(help="A date with its zone, or in how long; else now.")] = "",
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Keep GPUs for a user or a queue for a time; jobs in the way are moved before."""
    now_s = time.time()
    start_s = _time(start, now_s, "--start") if start else now_s
    end_s = _time(end, start_s, "--end")
    asks = {
        "end": end_s,
        "gpus": gpus,
        "gpu_type": gpu_type,
        "nodes": node or [],
        "user": user,
        "queue": queue,
    }
    with service(url, token) as client:
        reserved = client.reserve(name, **asks, **({"start": start_s} if start else {}))
    if as_json:
        show_json(reserved)
    else:
        show_line(f"reservation {name}: from {_shown(reserved['start'])} to {_shown(reserved['end'])}")


@app.command("list")
def list_reservations(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List reservations."""
    with service(url, token) as client:
        reservations = client.reservations()
    if as_json:
        show_json({"reservations": reservations})
        return
    rows = [
        [
            reservation["name"],
            ", ".join(reservation["nodes"]) or f"{reservation['gpus']} x {reservation['gpu_type']}",
            reservation["user"] or "-",
            reservation["queue"] or "-",
            _shown(reservation["start"]),
            _shown(reservation["end"]),
        ]
        for reservation in reservations
    ]
    header = ["name", "what", "user", "queue", "from", "to"]
    show_table("", header, rows, none="nothing is reserved")


@app.command("cancel")
def cancel_reservation(name: Name, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Cancel a reservation."""
    with service(url, token) as client:
        client.unreserve(name)
    if as_json:
        show_json({"cancelled": name})
    else:
        show_line(f"reservation {name}: given up")


def _time(text: str, from_s: float, option: str) -> float:
    from stretto.jobfile.quantities import when

    try:
        return when(text).seconds(from_s, 0.0)
    except (ValueError, InputError):
        raise InputError(
            f"{option} {text}: expected a date with its zone, or a duration such as 2h"
        ) from None


def _shown(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="seconds")
