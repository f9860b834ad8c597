"""Frozen dataclasses to JSON values and back, exactly, by the types of their fields."""

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any, Union, get_args, get_origin, get_type_hints

from stretto.live.jobfile.checks import plain, shown, wrong
from stretto.model import InputError
from stretto.model.spelling import did_you_mean

PLAIN = frozenset({str, int, float, bool, type(None)})


def encoded(value: Any) -> Any:
    """JSON values: objects for dataclasses and mappings, lists for tuples, values for members."""
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if names := _names(kind):
        return {name: encoded(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: encoded(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [encoded(inner) for inner in value]
    return value


def decoded(hint: Any, value: Any, name: str) -> Any:
    """The value of type `hint` that `encoded` wrote as `value`. Raises InputError."""
    return _decoder(hint)(value, name)


Decoder = Callable[[Any, str], Any]  # of a value and its name


@cache
def _decoder(hint: Any) -> Decoder:
    """How a type is read: looked at once, since whole logs are decoded."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = _decoder(next(one for one in get_args(hint) if one is not type(None)))
        return lambda value, name: None if value is None else inner(value, name)
    if is_dataclass(hint):
        return _record(hint)
    if origin is tuple:
        return _tuple(_decoder(get_args(hint)[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_decoder(get_args(hint)[1]))
    if issubclass(hint, Enum):
        return lambda value, name: _member(hint, value, name)
    return lambda value, name: _plain(hint, value, name)


def _tuple(inner: Decoder) -> Decoder:
    def decode(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong(name, "a list", value)
        return tuple(inner(one, name) for one in value)

    return decode


def _mapping(inner: Decoder) -> Decoder:
    def decode(value: Any, name: str) -> dict[str, Any]:
        if not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
            raise wrong(name, "an object", value)
        return {key: inner(one, f"{name}.{plain(key)}") for key, one in value.items()}

    return decode


def _record(hint: Any) -> Decoder:
    hints = get_type_hints(hint)

    def decode(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(name, "an object", value)
        for key in value:
            if key not in hints:
                raise InputError(f"{name}: unknown key {shown(key)}, {did_you_mean(str(key), hints)}")
        made = {key: _decoder(hints[key])(inner, f"{name}.{key}") for key, inner in value.items()}
        try:
            return hint(**made)
        except TypeError as error:  # a field without a default is missing
            raise InputError(f"{name}: {error}") from None

    return decode


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass; none of anything else."""
    return tuple(entry.name for entry in fields(kind)) if is_dataclass(kind) else ()


def _member(hint: type[Enum], value: Any, name: str) -> Enum:
    choices = {str(one.value): one for one in hint}
    if not isinstance(value, str) or value not in choices:
        raise wrong(name, f"one of {', '.join(choices)}", value)
    return choices[value]


def _plain(hint: Any, value: Any, name: str) -> Any:
    if hint is str and type(value) is str:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if not isfinite(number):
            raise wrong(name, "a finite number", value)
        return number
    if type(value) is not hint:
        expected = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[hint]
        raise wrong(name, expected, value)
    return value
