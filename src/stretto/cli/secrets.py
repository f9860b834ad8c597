"""The verbs for secrets, values that jobs need and no user may read. A value is never an argument."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import completion, options
from stretto.cli.options import Listing
from stretto.cli.printing import show_json, show_line, show_table
from stretto.cli.service import Token, Url, clock_of, service
from stretto.errors import InputError
from stretto.jobfile.parts import LONGEST_SECRET_BYTES, check_secret_name

app = typer.Typer(help="Your secrets, which jobs get as variables; lists them.", cls=Listing)
Name = Annotated[
    str,
    typer.Argument(help="The name of a secret.", metavar="NAME", autocompletion=completion.secrets),
]


@app.command("list")
def list_secrets(url: Url = "", token: Token = "", as_json: options.Json = False) -> None:
    """List secrets without their values; an admin sees those of all users."""
    with service(url, token) as client:
        secrets = client.secrets()
    if as_json:
        show_json({"secrets": secrets})
        return
    rows = [
        [secret["name"], secret["user"], clock_of(secret["set_unix_s"]), ", ".join(secret["jobs"]) or "none"]
        for secret in secrets
    ]
    none = "no secret yet: `stretto secret set NAME` keeps one"
    show_table("", ["name", "user", "set", "open jobs"], rows, none=none)


@app.command("set")
def set_secret(
    name: Name,
    from_file: Annotated[
        Path | None,
        typer.Option(help="A file whose whole content is the value; else standard input is.", metavar="FILE"),
    ] = None,
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Keep a secret, or change it; its value comes from standard input or a file, and is never shown."""
    check_secret_name("NAME", name)
    value = _typed(name) if from_file is None else _in_file(from_file)
    with service(url, token) as client:
        secret = client.set_secret(name, value)
    if as_json:
        show_json(secret)
    else:
        show_line(f"secret {name}: set")


@app.command("delete")
def delete_secret(
    name: Name,
    user: Annotated[
        str, typer.Option(help="Whose it is; else yours. Those of others are for admins.", metavar="USER")
    ] = "",
    url: Url = "",
    token: Token = "",
    as_json: options.Json = False,
) -> None:
    """Delete a secret. Workers that run keep what they have."""
    with service(url, token) as client:
        client.delete_secret(name, user)
    if as_json:
        show_json({"deleted": name})
    else:
        show_line(f"secret {name}: deleted")


def _typed(name: str) -> str:
    """The value on standard input, without one line end behind it: `echo` and people put one there."""
    if sys.stdin.isatty():
        return str(typer.prompt(f"value of {name}", hide_input=True, err=True))
    text = _text_of(sys.stdin.buffer.read(LONGEST_SECRET_BYTES + 3), "standard input")
    return text.removesuffix("\n").removesuffix("\r")


def _in_file(file: Path) -> str:
    """All of a file as it is: keys of SSH, for one, need their last line end."""
    try:
        with file.open("rb") as opened:
            return _text_of(opened.read(LONGEST_SECRET_BYTES + 1), f"--from-file {file}")
    except OSError as wrong:
        raise InputError(f"--from-file {file}: cannot be read: {wrong.strerror}") from None


def _text_of(content: bytes, where: str) -> str:
    """A value as text. Raises InputError, which shows nothing of it; the service checks the rest."""
    try:
        return content.decode()
    except UnicodeDecodeError as wrong:
        raise InputError(f"{where}: expected UTF-8 text: {wrong.reason} at byte {wrong.start}") from None
