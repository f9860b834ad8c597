"""The verbs for budgets of a running service."""

from typing import Annotated, Any, Literal

import typer

from stretto.cli import options
from stretto.cli.options import Listing
from stretto.cli.printing import show_json, show_line, show_table
from stretto.cli.service import Token, Url, service
from stretto.errors import InputError

app = typer.Typer(help="Budgets of a running service; lists them.", cls=Listing)
Name = Annotated[str, typer.Argument(help="The name of a budget.", metavar="BUDGET")]
UNITS = {"gpu_hours": "GPU-hours", "cost": "cost"}


@app.command("list")
def list_budgets(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List budgets with what is used of them in this period."""
    with service(url, token) as client:
        budgets = client.budgets()
    if as_json:
        show_json({"budgets": budgets})
        return
    header = ["budget", "for", "used", "of", "share", "level", "until", "waiting"]
    show_table("", header, [_row(budget) for budget in budgets], none="no budget has been set")


@app.command("set")
def set_budget(
    name: Name,
    gpu_hours: Annotated[
        float | None, typer.Option(help="GPU-hours that may be charged in a period.", metavar="HOURS")
    ] = None,
    cost: Annotated[
        float | None, typer.Option(help="What they may cost, instead of GPU-hours.", metavar="AMOUNT")
    ] = None,
    per: Annotated[Literal["day", "week", "month"], typer.Option(help="The period.")] = "month",
    zone: Annotated[
        str, typer.Option(help="The time zone in which periods begin, like Europe/Berlin.")
    ] = "UTC",
    user: Annotated[str, typer.Option(help="Whose jobs it counts.", show_default="of all users")] = "",
    queue: Annotated[
        str,
        typer.Option(help="Of which queue, with those in it.", metavar="QUEUE", show_default="of all queues"),
    ] = "",
    warn: Annotated[
        str, typer.Option(help="Share from which on it warns, or never.", metavar="SHARE")
    ] = "0.8",
    hold: Annotated[
        str,
        typer.Option(
            help="Share from which on its jobs wait for the next period, or never.", metavar="SHARE"
        ),
    ] = "never",
    running: Annotated[
        Literal["go-on", "stop"], typer.Option(help="What becomes of jobs that run when it holds.")
    ] = "go-on",
    notify: Annotated[
        list[str] | None, typer.Option(help="An address that is told; may be repeated.", metavar="URL")
    ] = None,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Set a budget; another one of that name is replaced."""
    for option, amount in (("--gpu-hours", gpu_hours), ("--cost", cost)):
        if amount is not None and not 0 < amount <= 1e12:
            raise InputError(f"{option} {amount:g}: expected a number above 0, up to 1e12")
    if (gpu_hours is None) == (cost is None):
        raise InputError("expected one of --gpu-hours and --cost")
    asked: dict[str, Any] = {
        "period": per,
        "zone": zone,
        "user": user,
        "queue": queue,
        "warn": _share("--warn", warn),
        "hold": _share("--hold", hold),
        "running": running,
        "notify": notify or [],
    }
    asked |= {"gpu_hours": gpu_hours} if gpu_hours is not None else {"cost": cost}
    with service(url, token) as client:
        budget = client.set_budget(name, asked)
    if as_json:
        show_json(budget)
    else:
        show_line(f"budget {name}: {_used(budget)} {UNITS[budget['unit']]} are used this {budget['period']}")


@app.command("delete")
def delete_budget(name: Name, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Delete a budget; no job waits for it any more."""
    with service(url, token) as client:
        client.delete_budget(name)
    if as_json:
        show_json({"deleted": name})
    else:
        show_line(f"budget {name}: deleted")


def _share(option: str, text: str) -> float | None:
    """A share of the amount; None: never. Raises InputError."""
    if text == "never":
        return None
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 10:
        raise InputError(f"{option} {text}: expected a share above 0, like 0.8, or never")
    return share


def _used(budget: dict[str, Any]) -> str:
    return f"{budget['used']:.2f} of {budget['amount']:g}"


def _row(budget: dict[str, Any]) -> list[str]:
    whom = [f"user {budget['user']}"] if budget["user"] else []
    whom += [f"queue {budget['queue']}"] if budget["queue"] else []
    return [
        budget["name"],
        ", ".join(whom) or "all jobs",
        f"{budget['used']:.2f}",
        f"{budget['amount']:g} {UNITS[budget['unit']]} a {budget['period']}",
        f"{100 * budget['share']:.0f}%",
        {"": "-", "warn": "warns", "hold": "holds"}[budget["level"]],
        budget["until"],
        str(budget["waiting"]) if budget["level"] == "hold" else "-",
    ]
