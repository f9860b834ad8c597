"""Values out of a YAML document, each checked, with one clear line for what is wrong."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from reprlib import Repr
from typing import Any

import yaml

from stretto.errors import InputError
from stretto.suggestions import did_you_mean

MOST_BYTES = 16 << 20  # of a file that people write; chosen
MOST = 2**31 - 1  # of anything that is counted; chosen: arrays can hold it
MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`


class Section(dict[Any, Any]):
    """Keys and values of a file, and the lines on which they stand."""

    file = ""  # as messages call it
    line = 0  # of the section itself
    lines: Mapping[Any, int] = {}  # by key

    def at(self, where: str, key: object = None) -> str:
        """`where`, which begins with the file, with the line of a key in it, or else of the section."""
        rest = where.removeprefix(self.file)
        return f"{self.file} line {self.lines.get(key, self.line)}{rest}"


def place_of(values: object, where: str, key: object = None) -> str:
    """Where a key of a mapping stands, for messages; of one that was not read from a file, as it is."""
    return values.at(where, key) if isinstance(values, Section) and where.startswith(values.file) else where


class _Short(Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict = 3, 12, 12
        self.maxstring, self.maxlong, self.maxother = 200, 60, 200

    def repr_Section(self, section: Section, level: int) -> str:  # noqa: N802  (Repr looks it up by its class)
        return self.repr_dict(section, level)


_SHORT = _Short()


def shown(value: object) -> str:
    """A value for a message, in some hundred characters.

    A few lines of YAML may stand for gigabytes, by aliases within aliases.
    """
    return _SHORT.repr(value)


@dataclass(frozen=True, slots=True)
class Entry:
    """A mapping of a document and where it stands, for messages."""

    where: str
    values: Mapping[str, Any]

    def at(self, key: str = "") -> str:
        """Where a key stands, else the entry itself, for messages: with its line where that is known."""
        return place_of(self.values, self.where, key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; numbers are refused, since YAML reads 007 and 1e3 as such."""
        value = self._value(key, default)
        if not isinstance(value, str) or (not value and default is None):
            raise self._wrong(key, "a text", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, empty where there is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise self._wrong(key, "a list of texts", value)
        return tuple(value)

    def number(self, key: str, default: float, above: float = -inf, at_least: float = 0.0) -> float:
        """A finite number, within bounds."""
        value = self._value(key, default)
        expected = f"a number > {above:g}" if above > -inf else f"a number >= {at_least:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, expected, value)
        try:
            number = float(value)
        except OverflowError:  # a whole number of hundreds of digits
            raise self._wrong(key, "a number below 1e308", value) from None
        if not isfinite(number) or number < at_least or number <= above:
            raise self._wrong(key, expected, value)
        return number

    def count(self, key: str, default: int | None = None, at_least: int = 1) -> int:
        """A whole number, at least so many."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= MOST:
            most = f" and at most {MOST}" if isinstance(value, int) and value > MOST else ""
            raise self._wrong(key, f"a whole number >= {at_least}{most}", value)
        return value

    def _value(self, key: str, default: Any) -> Any:
        if key in self.values:
            return self.values[key]
        if default is None:
            raise InputError(f"{place_of(self.values, self.where)}: missing {key}")
        return default

    def _wrong(self, key: str, expected: str, value: object) -> InputError:
        return InputError(f"{self.at(key)}: {key} must be {expected}, got {shown(value)}")


def entry_of(value: Any, where: str, keys: Sequence[str] | None = None) -> Entry:
    """A mapping as an entry. Raises InputError for anything else and for keys that are not among `keys`."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected keys and values, got {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            place = place_of(value, where, key)
            raise InputError(f"{place}: a key must be a text, got {shown(key)}; write it in quotes")
        if keys is not None and key not in keys:
            raise InputError(f"{place_of(value, where, key)}: unknown key {key!r}, {did_you_mean(key, keys)}")
    return Entry(where, value)


def items_of(entry: Entry, key: str) -> Sequence[Any]:
    """The list under a key, empty where there is none."""
    value = entry.values.get(key, [])
    if not isinstance(value, list):
        raise InputError(f"{entry.at(key)}: {key} must be a list, got {shown(value)}")
    return value


def read_yaml(text: str, where: str) -> Any:
    """The document in a text. Raises InputError for bad syntax and for keys that are there twice."""
    try:
        loader = _Strict(text)  # a SafeLoader that also refuses double keys, and keeps lines
        loader.file = where
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:  # of the loader, which goes down once a level
        raise InputError(f"{where}: expected a file of a few levels, got hundreds") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from None
    except ValueError as error:  # a day that there is not, or a number of thousands of digits
        raise InputError(f"{where}: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError where it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES >> 20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text: {error.reason} at byte {error.start}") from error


class _Strict(yaml.SafeLoader):
    """PyYAML keeps the last of equal keys; here they are an error. Mappings know their lines."""

    file = ""

    def construct_yaml_map(self, node: yaml.MappingNode) -> Generator[dict[Any, Any], None, None]:
        """As PyYAML does it: the mapping first, for those that refer to it, and then what is in it."""
        section = Section()
        section.file, section.line = self.file, node.start_mark.line + 1
        yield section
        section.update(self.construct_mapping(node))
        # By now the node has what it merges from others, in front of what it says itself.
        section.lines = {
            self.construct_object(key, deep=True): key.start_mark.line + 1 for key, _ in node.value
        }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[Any] = set()
        for key, _ in node.value:
            if key.tag == MERGE:  # what it merges from another mapping may be there, too
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, str) and name in names:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} is there twice", key.start_mark
                )
            names.add(name if isinstance(name, str) else id(key))
        return super().construct_mapping(node, deep)


_Strict.add_constructor("tag:yaml.org,2002:map", _Strict.construct_yaml_map)
