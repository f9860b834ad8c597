"""Words from a command line as values of a dataclass field's type."""

import types
import typing
from enum import Enum
from typing import Any

from stretto.model.errors import InputError


def convert(name: str, word: str, to: Any) -> Any:
    """A word as a value of a field's type; InputError names the setting and what was expected."""
    if isinstance(to, str):
        raise TypeError(f"{name}: the type of a setting must be a type, got the text {to!r}")
    origin = typing.get_origin(to)
    if origin in (typing.Union, types.UnionType):
        return _optional(name, word, typing.get_args(to))
    if origin is tuple:
        inside = typing.get_args(to)[0]
        return tuple(convert(name, part.strip(), inside) for part in word.split(",") if part.strip())
    if to is bool:
        return _truth(name, word)
    if isinstance(to, type) and issubclass(to, Enum):
        return _member(name, word, to)
    if to in (int, float, str):
        return _number(name, word, to)
    raise InputError(f"{name}: cannot be set from the command line")


def _optional(name: str, word: str, choices: tuple[Any, ...]) -> Any:
    if types.NoneType in choices and word.lower() == "none":
        return None
    (inside,) = (choice for choice in choices if choice is not types.NoneType)
    return convert(name, word, inside)


def _truth(name: str, word: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if word.lower() not in words:
        raise InputError(f"{name} must be true or false, got {word!r}")
    return words[word.lower()]


def _member(name: str, word: str, to: type[Enum]) -> Enum:
    try:
        return to(word)
    except ValueError:
        raise InputError(f"{name} must be one of {[one.value for one in to]}, got {word!r}") from None


def _number(name: str, word: str, to: Any) -> Any:
    try:
        value = to(word)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[to]
        raise InputError(f"{name} must be {kind}, got {word!r}") from None
    if value != value:
        raise InputError(f"{name} must be a number, got {word!r}")
    return value
