"""The verbs for the user's contexts: services by name, with their tokens, and which one is meant."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import completion, options
from stretto.cli.options import Listing
from stretto.cli.printing import say, show_json, show_line, show_table
from stretto.errors import InputError

if TYPE_CHECKING:
    from stretto.client.contexts import Context

app = typer.Typer(help="Services by name, in a file of yours; lists them.", cls=Listing)

Name = Annotated[
    str, typer.Argument(help="The name of a context.", metavar="NAME", autocompletion=completion.contexts)
]


@app.command("list")
def list_contexts(as_json: options.Json = False) -> None:
    """List contexts; a star marks the current one."""
    from stretto.client import contexts

    all_contexts = contexts.read()
    listed = sorted(all_contexts.by_name.items())
    if as_json:
        shown = {name: _as_json(context) for name, context in listed}
        show_json({"file": str(contexts.file()), "current": all_contexts.current or None, "contexts": shown})
        return
    rows = [
        ["*" if name == all_contexts.current else "", name, ", ".join(context.url), _token_in_words(context)]
        for name, context in listed
    ]
    none = "no context yet: `stretto context set NAME --url URL` makes one"
    show_table("", ["", "name", "url", "token"], rows, none=none)


@app.command("set")
def set_context(
    name: Name,
    url: Annotated[
        str, typer.Option(help="Address of the service, or several of the same with commas between them.")
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with your token; with - the token itself is read from standard input."),
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of the authorities that certify the service.")
    ] = None,
    use_it: Annotated[bool, typer.Option("--use", help="Make it the current one.")] = False,
) -> None:
    """Make a context, or change what is given of one; the first becomes the current one."""
    from stretto.client import Client, contexts
    from stretto.client.trust import certificates_in

    all_contexts = contexts.read()
    context = all_contexts.by_name.get(contexts.checked_name(name), contexts.Context(url=()))
    if url:
        context = replace(context, url=tuple(each.strip() for each in url.split(",")))
    if not context.url:
        raise InputError(f"context {name}: expected --url, the address of its service")
    if token_file is not None:
        context = _with_token(context, token_file)
    if ca_file is not None:
        certificates_in(ca_file)
        context = replace(context, ca_file=str(ca_file.absolute()))
    Client(context.addresses, None, ca_file=context.authorities).http.close()  # refuses what is no address
    changed = all_contexts.with_context(name, context)
    path = contexts.write(replace(changed, current=name) if use_it else changed)
    show_line(f"{name}: {', '.join(context.url)}")
    if not use_it and changed.current != name:
        say(f"the current context stays {changed.current}; `stretto context use {name}` changes that")
    say(f"written to {path}")


@app.command()
def use(name: Name) -> None:
    """Make a context the current one."""
    from stretto.client import contexts

    all_contexts = contexts.read()
    context = all_contexts.named(name, "context use")
    contexts.write(replace(all_contexts, current=name))
    show_line(f"{name}: {', '.join(context.url)}")


@app.command()
def delete(name: Name) -> None:
    """Delete a context; its service, and its token there, stay as they are."""
    from stretto.client import contexts

    all_contexts = contexts.read()
    all_contexts.named(name, "context delete")
    contexts.write(all_contexts.without(name))
    if all_contexts.current == name and len(all_contexts.by_name) > 1:
        say("no context is the current one now; `stretto context use NAME` chooses one")


def _with_token(context: "Context", file: Path) -> "Context":
    from stretto.client.tokens import checked_token, token_in

    if str(file) != "-":
        token_in(file, "--token-file")
        return replace(context, token="", token_file=str(file.absolute()))
    typed = typer.prompt("token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    return replace(context, token=checked_token(typed.strip(), "--token-file -"), token_file="")


def _as_json(context: "Context") -> dict[str, Any]:
    """What is shown of a context to programs: never the token."""
    has_token = bool(context.token or context.token_file)
    return {"url": list(context.url), "has_token": has_token, "ca_file": context.ca_file or None}


def _token_in_words(context: "Context") -> str:
    return context.token_file or ("in the file of contexts" if context.token else "-")
