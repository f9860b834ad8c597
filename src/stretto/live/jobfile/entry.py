"""Values of a section by key; what is wrong gets one line: file, line, key, value, expectation."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stretto.live.jobfile.checks import plain, shown
from stretto.live.jobfile.tree import Section, Tree, kind_of
from stretto.model import InputError
from stretto.model.spelling import did_you_mean

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Entry:
    """A section and where it stands: `where` names the file, `path` the keys that lead to it."""

    where: str
    section: Section
    path: str = ""

    def check_keys(self, keys: Collection[str]) -> None:
        """Raise InputError for a key that is not among these."""
        for key in self.section.values:
            if key not in keys:
                under = f" under {self.path}" if self.path else ""
                raise InputError(
                    f"{self.at(key)}: unknown key {shown(key)}{under}, {did_you_mean(key, keys)}"
                )

    def at(self, key: str) -> str:
        """File and line of a key."""
        return f"{self.where} line {self.section.lines.get(key, self.section.line)}"

    def name(self, key: str) -> str:
        """A key with those that lead to it."""
        return f"{self.path}.{plain(key)}" if self.path else plain(key)

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self.section.values.get(key) is not None

    def tree(self, key: str) -> Tree:
        """Whatever is there; None where nothing is."""
        return self.section.values.get(key)

    def text(self, key: str, default: str = "") -> str:
        """A text as it stands in the file, a number as well."""
        value = self.section.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return value

    def read(self, key: str, read: Callable[[str], Value], expected: str, default: Value) -> Value:
        """What `read` makes of the text; it raises ValueError for what is not as expected."""
        return default if not self.has(key) else self._read(key, self.section.values[key], read, expected)

    def reads(self, key: str, read: Callable[[str], Value], expected: str) -> tuple[Value, ...]:
        """What `read` makes of each text of a list, or of a single text; empty where nothing is."""
        value = self.section.values.get(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(self._read(key, item, read, expected) for item in items)

    def texts(self, key: str) -> dict[str, str]:
        """Keys and texts; a key without a value has the empty text."""
        entry = self.entry(key)
        if entry is None:
            return {}
        return {name: entry.text(name) for name in entry.section.values}

    def entry(self, key: str, keys: Sequence[str] | None = None) -> "Entry | None":
        """The section under a key, with no keys but these; None where nothing is."""
        value = self.section.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Section):
            raise self.wrong(key, "keys and values", value)
        entry = Entry(self.where, value, self.name(key))
        if keys is not None:
            entry.check_keys(keys)
        return entry

    def items(self, key: str) -> Sequence[Tree]:
        """The list under a key; empty where nothing is."""
        value = self.section.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.wrong(key, "a list", value)
        return value

    def wrong(self, key: str, expected: str, value: Tree) -> InputError:
        """What to raise for a value."""
        return InputError(f"{self.at(key)}: {self.name(key)} must be {expected}, got {kind_of(value)}")

    def _read(self, key: str, value: Tree, read: Callable[[str], Value], expected: str) -> Value:
        if not isinstance(value, str):
            raise self.wrong(key, expected, value)
        try:
            return read(value.strip())
        except ValueError:
            raise self.wrong(key, expected, value) from None
        except InputError as error:  # of a part that checks itself when it is built
            raise InputError(f"{self.at(key)}: {error}") from None
