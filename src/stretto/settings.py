"""The fields of a frozen dataclass as settings: from the command line, a file, or code.

One schema, no second list: a component's parameters are its fields, with their types and defaults.
"""

import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from math import isfinite
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stretto.model import InputError
from stretto.model.spelling import did_you_mean

TRUE, FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def settings_of(component: type, given: Mapping[str, object], space: str) -> dict[str, Any]:
    """The given settings as values for the fields of a dataclass, texts turned into their types.

    space: how people call the component, for messages: `policy.skip`. Raises InputError for a name that
    is no field and for a value that does not fit.
    """
    hints = get_type_hints(component)
    names = [entry.name for entry in fields(component) if entry.init and not entry.name.startswith("_")]
    values = {}
    for name, value in given.items():
        if name not in names:
            hint = did_you_mean(name, names) if names else "there are none"
            raise InputError(f"unknown setting {space}.{name}, {hint}")
        values[name] = _as(hints[name], value, f"{space}.{name}")
    return values


def _as(hint: Any, value: object, name: str) -> Any:
    """`value` as the type that `hint` says; InputError where that cannot be."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _as_one_of(inside, value, name)
    if origin is Literal:
        return _choice({str(choice): choice for choice in inside}, value, name)
    if origin is tuple:
        return _as_tuple(inside, value, name)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice({str(choice.value): choice for choice in hint}, value, name)
    if hint is bool:
        return _as_bool(value, name)
    if hint in (int, float):
        return _as_number(hint, value, name)
    if hint is str and isinstance(value, str):
        return value
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise InputError(f"{name} must be {_words(hint)}, got {value!r}")


def _as_one_of(choices: tuple[Any, ...], value: object, name: str) -> Any:
    if type(None) in choices and (value is None or str(value).lower() in {"none", "null", ""}):
        return None
    others = [choice for choice in choices if choice is not type(None)]
    for choice in others[:-1]:
        try:
            return _as(choice, value, name)
        except InputError:
            continue
    return _as(others[-1], value, name)


def _choice(choices: Mapping[str, Any], value: object, name: str) -> Any:
    key = str(value.value) if isinstance(value, Enum) else str(value)
    if key not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {key!r}")
    return choices[key]


def _as_tuple(inside: tuple[Any, ...], value: object, name: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        parts: list[object] = [part.strip() for part in value.strip("()[] ").split(",") if part.strip()]
    elif isinstance(value, Iterable):
        parts = list(value)
    else:
        parts = [value]
    if inside[-1:] == (...,):
        return tuple(_as(inside[0], part, name) for part in parts)
    if len(parts) != len(inside):
        raise InputError(f"{name} must have {len(inside)} values separated by commas, got {value!r}")
    return tuple(_as(hint, part, name) for hint, part in zip(inside, parts, strict=True))


def _as_bool(value: object, name: str) -> bool:
    text = str(value).lower()
    if text in TRUE or text in FALSE:
        return text in TRUE
    raise InputError(f"{name} must be true or false, got {value!r}")


def _as_number(hint: type[int] | type[float], value: object, name: str) -> int | float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value) if hint is float else int(value) if isinstance(value, str | int) else None
        except ValueError:
            number = None
        if number is not None and not isfinite(number):
            raise InputError(f"{name} must be finite, got {value!r}")
        if number is not None:
            return number
    raise InputError(f"{name} must be {_words(hint)}, got {value!r}")


def _words(hint: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a text"}.get(hint, f"a {hint}")
