"""Frozen dataclasses to JSON values and back, exactly, by the types of their fields."""

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any, Union, get_args, get_origin, get_type_hints

from stretto.live.jobfile.checks import plain, shown, wrong
from stretto.model import InputError
from stretto.model.spelling import did_you_mean


def encoded(value: Any) -> Any:
    """JSON values: objects for dataclasses and mappings, lists for tuples, values for members."""
    if is_dataclass(value):
        return {entry.name: encoded(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: encoded(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [encoded(inner) for inner in value]
    return value


def decoded(hint: Any, value: Any, name: str) -> Any:
    """The value of type `hint` that `encoded` wrote as `value`. Raises InputError."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = next(one for one in get_args(hint) if one is not type(None))
        return None if value is None else decoded(inner, value, name)
    if is_dataclass(hint):
        return _record(hint, value, name)
    if origin is tuple:
        if not isinstance(value, list):
            raise wrong(name, "a list", value)
        return tuple(decoded(get_args(hint)[0], one, name) for one in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not (isinstance(value, dict) and all(isinstance(k, str) for k in value)):
            raise wrong(name, "an object", value)
        return {
            key: decoded(get_args(hint)[1], inner, f"{name}.{plain(key)}") for key, inner in value.items()
        }
    if issubclass(hint, Enum):
        return _member(hint, value, name)
    return _plain(hint, value, name)


def _record(hint: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise wrong(name, "an object", value)
    hints = _hints(hint)
    for key in value:
        if key not in hints:
            raise InputError(f"{name}: unknown key {shown(key)}, {did_you_mean(str(key), hints)}")
    made = {key: decoded(hints[key], inner, f"{name}.{key}") for key, inner in value.items()}
    try:
        return hint(**made)
    except TypeError as error:  # a field without a default is missing
        raise InputError(f"{name}: {error}") from None


def _member(hint: type[Enum], value: Any, name: str) -> Enum:
    choices = {str(one.value): one for one in hint}
    if not isinstance(value, str) or value not in choices:
        raise wrong(name, f"one of {', '.join(choices)}", value)
    return choices[value]


def _plain(hint: Any, value: Any, name: str) -> Any:
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


@cache
def _hints(hint: Any) -> Mapping[str, Any]:
    return get_type_hints(hint)
