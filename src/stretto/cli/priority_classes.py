"""The verbs for named priorities of a running service."""

from typing import Annotated, Literal

import typer

from stretto.cli import options
from stretto.cli.options import Listing
from stretto.cli.printing import show_json, show_line, show_table
from stretto.cli.service import Token, Url, service

app = typer.Typer(help="Priority classes of a running service; lists them.", cls=Listing)
Name = Annotated[str, typer.Argument(help="The name of a class.", metavar="CLASS")]


@app.command("list")
def list_classes(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List classes, the highest first."""
    with service(url, token) as client:
        classes = client.priority_classes()
    if as_json:
        show_json({"priority_classes": classes})
        return
    rows = [
        [
            priority_class["name"],
            str(priority_class["value"]),
            priority_class["preempts"],
            "yes" if priority_class["default"] else "no",
        ]
        for priority_class in classes
    ]
    header = ["class", "value", "preempts", "default"]
    show_table("", header, rows, none="no priority class has been set")


@app.command("set", context_settings=options.NEGATIVE_NUMBERS)
def set_class(
    name: Name,
    value: Annotated[int, typer.Argument(help="A larger value is scheduled sooner.", metavar="VALUE")],
    default: Annotated[
        bool, typer.Option("--default", help="The class of jobs that name no priority.")
    ] = False,
    preempts: Annotated[
        Literal["lower", "never"], typer.Option(help="Which jobs its jobs may take GPUs from.")
    ] = "lower",
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Set a class: a priority with a name. Jobs that are there keep theirs."""
    with service(url, token) as client:
        changed = client.set_priority_class(name, value=value, default=default, preempts=preempts)
    if as_json:
        show_json(changed)
    else:
        of_all = ", of jobs that say nothing" if changed["default"] else ""
        show_line(f"priority class {name}: {changed['value']}, preempts {changed['preempts']}{of_all}")


@app.command("delete")
def delete_class(name: Name, url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """Delete a class; jobs that are there keep their priority."""
    with service(url, token) as client:
        client.delete_priority_class(name)
    if as_json:
        show_json({"deleted": name})
    else:
        show_line(f"priority class {name}: deleted")
