"""A command's options from a file, so that a service starts the same each time.

The names are those of the options, and so is what they say; what stands on the command line itself counts
before the file.
"""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from stretto.errors import InputError

if TYPE_CHECKING:
    from stretto.jobfile.yaml_tree import Tree

NOT_THERE = ("--config", "--help")
MOST_BYTES = 1 << 20


def take_config(context: typer.Context, path: Path | None) -> Path | None:
    """The callback of an eager option: what the file says becomes what the others say unless told.

    Raises InputError with the line for what is no option, or nothing that its option takes.
    """
    if path is None:
        return None
    from stretto.jobfile.yaml_tree import Section

    options = {name: each for each in context.command.params for name in each.opts if name not in NOT_THERE}
    tree = _read(path)
    if not isinstance(tree, Section):
        raise InputError(f"{path}: expected options and what they say, like policy: sia")
    defaults: dict[str, Any] = {}
    for key, value in tree.values.items():
        where, name = f"{path} line {tree.lines[key]}", "--" + key.replace("_", "-")
        option = options.get(name)
        if option is None or option.name is None:
            near = get_close_matches(name, options, 1)
            raise InputError(f"{where}: {key} is no option" + (f"; {near[0][2:]} is" if near else ""))
        words = _words(value, f"{where}: {key}")
        if option.nargs == 1 and not option.multiple and len(words) != 1:
            raise InputError(f"{where}: {key}: expected one value, got {len(words)}")
        default = words if option.multiple else words[0]
        try:
            option.process_value(context, default)
        except typer.BadParameter as wrong:
            raise InputError(f"{where}: {key}: {wrong.message}, got {', '.join(words)}") from None
        defaults[option.name] = default
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _read(path: Path) -> "Tree":
    from stretto.jobfile.yaml_tree import read_tree

    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as wrong:
        raise InputError(f"--config {path}: {wrong.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"--config {path}: expected at most {MOST_BYTES} bytes")
    try:
        return read_tree(content.decode(), str(path))
    except UnicodeDecodeError:
        raise InputError(f"--config {path}: expected UTF-8 text") from None


def _words(value: "Tree", where: str) -> list[str]:
    """What an option is told, one word for each time; a section says KEY=VALUE, as --set does."""
    from stretto.jobfile.yaml_tree import Section

    if isinstance(value, str):
        return [value]
    if isinstance(value, Section) and all(isinstance(text, str) for text in value.values.values()):
        return [f"{key}={text}" for key, text in value.values.items()]
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        return [str(text) for text in value]
    raise InputError(f"{where}: expected a value, or a list of them")
