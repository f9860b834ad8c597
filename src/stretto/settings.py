"""The fields of a frozen dataclass as settings: from the command line, a file, or code.

One schema, no second list: a component's parameters are its fields, with their types, defaults and ranges.
"""

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import Enum
from itertools import pairwise, takewhile
from math import isfinite
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stretto.errors import InputError
from stretto.suggestions import did_you_mean

TRUE, FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
RANGE = "range"  # key of a field's metadata

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Range:
    """Which values a setting may have beside its type; of a tuple, each of its entries."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    nonzero: bool = False
    increasing: bool = False  # of a tuple: each entry is greater than the one before
    multiple_of: str = ""  # another setting of the same component, which is > 0

    def __str__(self) -> str:
        """What is expected, as it follows "must be": `> 0 and <= 1`."""
        bounds = ((">", self.above), (">=", self.at_least), ("<", self.below), ("<=", self.at_most))
        parts = ["increasing"] if self.increasing else []
        parts += [f"{sign} {_text(bound)}" for sign, bound in bounds if bound is not None]
        parts += ["not 0"] if self.nonzero else []
        parts += [f"a multiple of {self.multiple_of}"] if self.multiple_of else []
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)

    def permits(self, number: float) -> bool:
        """Whether one number lies within the bounds; NaN never does."""
        return (
            (self.above is None or number > self.above)
            and (self.at_least is None or number >= self.at_least)
            and (self.below is None or number < self.below)
            and (self.at_most is None or number <= self.at_most)
            and not (self.nonzero and number == 0)
        )


def setting(
    default: Value,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    nonzero: bool = False,
    increasing: bool = False,
    multiple_of: str = "",
) -> Value:
    """A field of a dataclass, by its default and its range: `setting(60.0, above=0)`.

    The range is checked in texts by `settings_of`, and whenever a dataclass of `CheckedSettings` is built.
    """
    limits = Range(above, at_least, below, at_most, nonzero, increasing, multiple_of)
    return field(default=default, metadata={RANGE: limits})


class CheckedSettings:
    """Base of a dataclass whose settings are held to their ranges when it is built.

    `class Themis(CheckedSettings, space="policy")`: the space is how people call the component. A class with
    a `__post_init__` of its own calls this one first. Raises InputError.
    """

    space: ClassVar[str] = ""

    def __init_subclass__(cls, space: str = "", **more: Any) -> None:
        """Keep the space; a class derived from a component has that of its parent."""
        super().__init_subclass__(**more)
        if space:
            cls.space = space

    def __post_init__(self) -> None:
        """Check every field that has a range."""
        ranged = [entry for entry in fields(self) if RANGE in entry.metadata]  # type: ignore[arg-type]
        for entry in ranged:
            _check(entry, getattr(self, entry.name), f"{self.space}.{entry.name}")
        for entry in ranged:  # what compares two settings comes when each is known to be a number
            if other := entry.metadata[RANGE].multiple_of:
                value, unit = getattr(self, entry.name), getattr(self, other)
                _check_multiple(value, f"{self.space}.{entry.name}", other, unit)


def _check(entry: Field[Any], value: Any, name: str) -> None:
    """Hold a value to its field's range; None is none, and belongs to the type."""
    limits = entry.metadata.get(RANGE)
    if limits is None or value is None:
        return
    numbers = value if isinstance(value, tuple) else (value,)
    if not all(isfinite(number) for number in numbers):
        raise InputError(f"{name} must be finite, got {_text(value)}")
    rising = all(first < second for first, second in pairwise(numbers))
    if not all(limits.permits(number) for number in numbers) or (limits.increasing and not rising):
        raise InputError(f"{name} must be {limits}, got {_text(value)}")


def _check_multiple(value: float, name: str, other: str, unit: float) -> None:
    times = value / unit if unit > 0 else 0.0
    if times < 1 or times != int(times):
        raise InputError(f"{name} must be a multiple of {other}={_text(unit)}, got {_text(value)}")


def _text(value: object) -> str:
    """A value as people write it: 5.0 is 5."""
    return re.sub(r"\.0(?![0-9])", "", repr(value))


def settings_of(component: type, settings: Mapping[str, object], space: str) -> dict[str, Any]:
    """The given settings as values for the fields of a dataclass, texts turned into their types.

    space: how people call the component, for messages: `policy.skip`. Raises InputError for a name that
    is no field and for a value that does not fit.
    """
    hints = get_type_hints(component)
    entries = {entry.name: entry for entry in setting_fields(component)}
    names = list(entries)
    values = {}
    for name, value in settings.items():
        if name not in names:
            hint = did_you_mean(name, names) if names else "there are none"
            raise InputError(f"unknown setting {space}.{name}, {hint}")
        values[name] = _as(hints[name], value, f"{space}.{name}")
        _check(entries[name], values[name], f"{space}.{name}")
    return values


def texts_of(component: object) -> dict[str, str]:
    """Every setting of a dataclass, by name, as a text that `settings_of` reads back as the same value.

    A value that no text stands for, which only code can have set, is left out.
    """
    hints = get_type_hints(type(component))
    texts = {}
    for entry in setting_fields(type(component)):
        value = getattr(component, entry.name)
        with suppress(InputError):
            if _as(hints[entry.name], _shown(value), entry.name) == value:
                texts[entry.name] = _shown(value)
    return texts


def resolved_settings(parts: Mapping[str, object]) -> dict[str, str]:
    """Every setting of components by their spaces, as `SPACE.NAME` → text; None: there is no such part."""
    return {
        f"{space}.{name}": text
        for space, part in parts.items()
        if part is not None
        for name, text in texts_of(part).items()
    }


def setting_fields(component: type) -> tuple[Field[Any], ...]:
    """The fields of a dataclass that people may set."""
    return tuple(entry for entry in fields(component) if entry.init and not entry.name.startswith("_"))


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """One setting, for people to read."""

    name: str
    default: str  # "" where it must be set
    expects: str  # its type, choices and range in words
    about: str  # the comment beside the field: unit, meaning, origin


def describe_settings(component: type) -> tuple[SettingDescription, ...]:
    """The settings of a component in the order of its fields."""
    hints, comments = get_type_hints(component), _comments(component)
    rows = []
    for entry in setting_fields(component):
        expects = _words(hints[entry.name], entry.metadata.get(RANGE))
        default = "" if entry.default is MISSING else _shown(entry.default)
        rows.append(SettingDescription(entry.name, default, expects, comments.get(entry.name, "")))
    return tuple(rows)


def _comments(component: type) -> dict[str, str]:
    """The comment beside or above each field, of a class and its parents; none without a source file."""
    comments: dict[str, str] = {}
    for ancestor in reversed(component.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(ancestor))
        except (OSError, TypeError):
            continue
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                beside = lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset :].decode().strip()
                before = (line.strip() for line in lines[node.lineno - 2 :: -1])
                above = takewhile(lambda line: line.startswith("#"), before)
                comment = [beside] if beside else [*above][::-1]
                comments[node.target.id] = " ".join(line.removeprefix("#").strip() for line in comment)
    return comments


def _shown(value: object) -> str:
    """A default as one would type it."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ", ".join(_shown(part) for part in value)
    return value if isinstance(value, str) else _text(value).lower()


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


def _words(hint: Any, limits: Range | None = None) -> str:
    """A type, with the range within it, as it follows "must be"."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        others = [_words(choice, limits) for choice in inside if choice is not type(None)]
        return " or ".join([*others, "none"] if type(None) in inside else others)
    if origin is Literal:
        return f"one of {', '.join(str(choice) for choice in inside)}"
    if origin is tuple:
        parts = [_words(part, limits and replace(limits, increasing=False)) for part in inside if part != ...]
        rising = ", increasing" if limits and limits.increasing else ""
        return f"{', '.join(parts)}{', or several' if ... in inside else ''}{rising}, separated by commas"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(str(choice.value) for choice in hint)}"
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return plain.get(hint, f"a {hint}") + (f" {limits}" if limits else "")
