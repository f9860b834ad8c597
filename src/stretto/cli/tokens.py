"""--token-file: a token from a file, so that it is neither in a list of processes nor in a history."""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.model import InputError

OPTION = "--token-file"
TokenFile = Annotated[
    Path | None,
    typer.Option(OPTION, help="A file with the token; else the file that STRETTO_TOKEN_FILE names."),
]


def take_token_files(app: typer.Typer) -> None:
    """Have all commands of an application, and of those below it, take --token-file beside --token."""
    for command in app.registered_commands:
        if command.callback is not None and "token" in inspect.signature(command.callback).parameters:
            command.callback = _with_token_file(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            take_token_files(group.typer_instance)


def _with_token_file(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with one option more; typer reads options from the signature."""

    @wraps(command)
    def asked(*given: Any, token_file: Path | None = None, **named: Any) -> Any:
        if token_file is not None:
            if named["token"] not in ("", os.environ.get("STRETTO_TOKEN")):
                raise InputError(f"{OPTION} {token_file}: expected it without --token")
            from stretto.client.client import token_in

            named["token"] = token_in(token_file, OPTION)
        return command(*given, **named)

    by_name = inspect.Parameter.KEYWORD_ONLY
    option = inspect.Parameter("token_file", by_name, default=None, annotation=TokenFile)
    signature = inspect.signature(command)
    parameters = [
        one.replace(kind=by_name) if name != "context" else one for name, one in signature.parameters.items()
    ]
    place = [one.name for one in parameters].index("token") + 1
    parameters.insert(place, option)
    asked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    asked.__annotations__ = {**command.__annotations__, "token_file": TokenFile}
    return asked
