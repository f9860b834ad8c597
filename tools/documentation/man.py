"""Man pages of all commands, made from the texts of `--help`: `make man`.

One page a command, and one for `stretto` that lists them. The form is that of man(7).
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import typer.main
from tools.documentation.reference import leaves

from stretto import __version__
from stretto.cli.app import app as commands

FOLDER = Path(__file__).resolve().parents[2] / "build" / "man"


def pages() -> Iterator[tuple[str, str]]:
    """File names and pages."""
    root = typer.main.get_command(commands)
    with typer.Context(root, info_name="stretto") as context:
        every = list(leaves(root, context))
    yield "stretto.1", _overview(root, every)
    for name, command in every:
        yield f"{name.replace(' ', '-')}.1", _page(name, command)


def _overview(root: Any, every: list[tuple[str, Any]]) -> str:
    lines = [_head("stretto", root.help), ".SH SYNOPSIS", ".B stretto", ".I COMMAND", ".SH COMMANDS"]
    for name, command in every:
        lines += [".TP", f".BR {_plain(name.replace(' ', '-'))} (1)", _plain(_first(command.help))]
    lines += [
        ".SH EXIT STATUS",
        "0 done, 1 failed, 2 the input is wrong, 69 no service answers, 130 interrupted.",
    ]
    return "\n".join(lines) + "\n"


def _page(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    synopsis = " ".join(_named(each) for each in arguments)
    lines = [
        _head(name, command.help),
        ".SH SYNOPSIS",
        f".B {_plain(name)}",
        rf"[\fIOPTION\fR]... {_plain(synopsis)}",
    ]
    lines += [".SH DESCRIPTION", _plain(" ".join(inspect.cleandoc(command.help or "").split()))]
    for title, parameters in (("ARGUMENTS", arguments), ("OPTIONS", options)):
        if parameters:
            lines.append(f".SH {title}")
        for each in parameters:
            words = _named(each) if title == "ARGUMENTS" else ", ".join([*each.opts, *each.secondary_opts])
            variable = f" Environment: {each.envvar}." if getattr(each, "envvar", None) else ""
            lines += [
                ".TP",
                rf"\fB{_plain(words)}\fR",
                _plain(" ".join((each.help or "").split()) + variable),
            ]
    lines += [".SH SEE ALSO", ".BR stretto (1)"]
    return "\n".join(lines) + "\n"


def _head(name: str, about: str | None) -> str:
    title = name.replace(" ", "-")
    header = f'.TH "{title.upper()}" 1 "" "stretto {__version__}" "Stretto"'
    return f"{header}\n.SH NAME\n{_plain(title)} \\- {_plain(_first(about))}"


def _named(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _first(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split()).removesuffix(".")


def _plain(text: str) -> str:
    """A text that troff shows as it is: backslashes, hyphens, and no line that begins as a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.M)


def main() -> int:
    """Write all pages; the exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(list(FOLDER.glob('*.1')))} pages in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
