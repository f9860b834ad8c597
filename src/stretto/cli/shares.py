"""The verbs for fair share: what each account is entitled to, and how much it has had."""

import sys
from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.options import Listing
from stretto.cli.printing import say, show_json, show_line, show_table
from stretto.cli.service import Token, Url, service
from stretto.errors import InputError
from stretto.service.state.messages import span_in_words

app = typer.Typer(help="Fair share of a running service; lists it.", cls=Listing)


@app.command("list")
def list_shares(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List entitlement, GPUs held, borrowed and used, by queue and user. Users see only their own."""
    with service(url, token) as client:
        answer = client.shares()
    if as_json:
        show_json(answer)
        return
    header = ["who", "shares", "entitled", "gpus", "held", "borrowed", "gpu hours", "factor"]
    rows = [_row(account) for account in answer["shares"]]
    show_table("", header, rows, tight="who", none="no queue has been set, and no user has had GPUs yet")
    if answer["orders_jobs"]:
        say(f"gpu hours count half after {span_in_words(answer['half_life_s'])}")
    else:
        say("shares order no jobs here: the service was started with --fair-share-half-life off")


def _row(account: dict[str, Any]) -> list[str]:
    borrowed = account["borrowed_gpus"]
    return [
        place_of(account),
        f"{account['shares']:g}",
        f"{account['entitled']:.1%}",
        f"{account['entitled_gpus']:.1f}",
        str(account["held_gpus"]),
        f"{borrowed:.1f}" if borrowed else "-",
        f"{account['usage_gpu_hours']:.2f}",
        f"{account['factor']:.3f}",
    ]


def place_of(one: dict[str, Any]) -> str:
    """Where it is in the tree: on a terminal below what it is in, on a pipe as a path."""
    name = one["name"] or "(nobody)"
    return "  " * len(one["queues"]) + name if sys.stdout.isatty() else "/".join((*one["queues"], name))


@app.command("set")
def set_shares(
    shares: Annotated[
        float,
        typer.Argument(help="Shares, relative to those of its siblings; 1 by default.", metavar="SHARES"),
    ],
    user: Annotated[str, typer.Option(help="The user; the shares hold in each queue.")] = "",
    queue: Annotated[str, typer.Option(help="The queue.")] = "",
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Give a user or a queue shares."""
    if bool(user) == bool(queue):
        raise InputError("expected --user or --queue, one of the two")
    if not 0 < shares <= 1e6:
        raise InputError(f"shares: expected a number above 0 and at most 1e6, got {shares:g}")
    with service(url, token) as client:
        changed = client.set_user_shares(user, shares) if user else client.set_queue(queue, shares=shares)
    if as_json:
        show_json(changed)
    else:
        show_line(f"{'user' if user else 'queue'} {user or queue}: {shares:g} shares")
