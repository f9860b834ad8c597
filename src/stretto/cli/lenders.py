"""The verbs for lenders of a running service: whose nodes jobs may use only while they are on loan."""

from typing import Annotated, Any

import typer

from stretto.cli import options
from stretto.cli.options import Listing
from stretto.cli.printing import show_json, show_line, show_table
from stretto.cli.service import Token, Url, service
from stretto.errors import InputError

app = typer.Typer(help="Lenders of nodes of a running service; lists them.", cls=Listing)
Name = Annotated[str, typer.Argument(help="The name of a lender.", metavar="LENDER")]


@app.command("list")
def list_lenders(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List lenders: what they need, what is on loan, and how long they waited for their nodes."""
    with service(url, token) as client:
        listed = client.lenders()
    if as_json:
        show_json({"lenders": listed})
        return
    header = ["lender", "nodes", "need", "with it", "on loan", "lacks", "waits", "longest", "guarantee"]
    show_table("", header, [_row(lender) for lender in listed], none="no lender has been set")
    for lender in listed:
        if lender["failure"]:
            show_line(f"lender {lender['name']}: nodes cannot change hands: {lender['failure']}")


def _row(lender: dict[str, Any]) -> list[str]:
    waits = "-" if lender["waits_s"] is None else f"{lender['waits_s']:.1f}s"
    return [
        lender["name"],
        str(len(lender["nodes"])),
        "-" if lender["need"] is None else f"{lender['need']:g}",
        str(lender["in_its_hands"]),
        str(lender["on_loan"]),
        str(lender["lacks"]),
        f"{waits} LATE" if lender["late"] else waits,
        f"{lender['longest_wait_s']:.1f}s" if lender["waits"] else "-",
        "-" if lender["guarantee_s"] is None else f"{lender['guarantee_s']:g}s",
    ]


@app.command("set")
def set_lender(
    name: Name,
    nodes: Annotated[str, typer.Option(help="Names of its nodes, separated by commas.", metavar="NODES")],
    headroom: Annotated[float, typer.Option(help="Share of its nodes that it never lends.")] = 0.0,
    guarantee: Annotated[
        str, typer.Option(help="Longest time from asking for nodes until it has them, such as 2m.")
    ] = "",
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Let nodes belong to a lender. Jobs use them only while they are on loan."""
    from stretto.jobfile.quantities import duration_s

    try:
        guarantee_s = duration_s(guarantee) if guarantee else 0.0
    except ValueError:
        raise InputError(f"--guarantee {guarantee}: expected a duration such as 90s or 2m") from None
    named = [node for node in (part.strip() for part in nodes.split(",")) if node]
    with service(url, token) as client:
        lender = client.set_lender(name, nodes=named, headroom=headroom, guarantee_s=guarantee_s)
    if as_json:
        show_json(lender)
    else:
        show_line(f"lender {name}: {len(lender['nodes'])} nodes, {lender['on_loan']} on loan")


@app.command("need")
def report_need(
    name: Name,
    nodes: Annotated[float, typer.Argument(help="Nodes that it needs itself.", metavar="NODES", min=0)],
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Say how many of its nodes a lender needs itself. Loans are settled at once."""
    with service(url, token) as client:
        lender = client.report_need(name, nodes=nodes)
    if as_json:
        show_json(lender)
    else:
        show_line(f"lender {name}: needs {lender['need']:g}, lacks {lender['lacks']}")


@app.command("delete")
def delete_lender(name: Name, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Delete a lender; its nodes belong to the cluster."""
    with service(url, token) as client:
        client.delete_lender(name)
    if as_json:
        show_json({"deleted": name})
    else:
        show_line(f"lender {name}: deleted")
