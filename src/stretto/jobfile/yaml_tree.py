"""YAML as texts, lists and sections that know their lines, and how values are read from them.

A YAML text becomes a tree of texts, lists and sections; what a value means, its reader says.

Nothing is guessed from how a scalar looks: `007`, `1e3`, `on` and `12:30` stay the texts that they are. Only
what is handed on to a foreign API, as `values_of` does, is read as JSON would have it. Built from the
parser's events, with bounds: no object is ever made from a tag, and aliases count as what they stand for.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import yaml

from stretto.errors import InputError
from stretto.jobfile.parts import plain, shown
from stretto.suggestions import did_you_mean

MOST_NODES = 50_000  # chosen: an array or environment as large as may be, and some more
DEEPEST = 40

PARSER: Any = getattr(yaml, "CLoader", yaml.Loader)  # only its events are used, which make no objects
EMPTY = {"", "~", "null", "Null", "NULL"}
PLAIN_TAGS = {None, "!"} | {
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
}


class Quoted(str):
    """A text that stood in quotes, or in a block: for a foreign API it is no number and no truth."""

    __slots__ = ()


@dataclass(slots=True)
class Section:
    """Keys and values, and the line on which each key stands."""

    line: int
    values: "dict[str, Tree]" = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


Tree: TypeAlias = "str | list[Tree] | Section | None"


@dataclass(slots=True)
class _Open:
    """A list or section that is being read."""

    made: "list[Tree] | Section"
    anchor: str | None
    nodes: int = 1  # of the tree below, aliases counted in full
    key: str | None = None  # of a section: whose value comes next
    key_line: int = 0
    merged: "list[tuple[int, Tree]]" = field(default_factory=list)


def read_tree(text: str, where: str) -> Tree:
    """The tree of the one document in a text. Raises InputError, with the line where there is one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: expected UTF-8 text") from None
    try:
        return _built(yaml.parse(text, Loader=PARSER), where)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        # The parser looks ahead. Since PyYAML 6.0.4 it has a bound of its own, and may meet it before ours.
        is_deep = "nesting depth" in str(error.problem)
        problem = f"expected at most {DEEPEST} levels" if is_deep else error.problem
        raise InputError(f"{where}{line}: {problem}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from None


def _built(events: Iterator[Any], where: str) -> Tree:
    """The root, from events; a loop and not a recursion, so that depth costs nothing."""
    root: Tree = None
    documents = 0
    stack: list[_Open] = []
    anchors: dict[str, tuple[Tree, int]] = {}
    total = 0

    for event in events:
        line = event.start_mark.line + 1
        position = f"{where} line {line}"
        done: tuple[Tree, int] | None = None
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise InputError(f"{position}: expected one document, got a second one")
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise InputError(f"{position}: unknown or unfinished anchor {shown(event.anchor)}")
            done = anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            _check_tag(event.tag, position)
            plain = event.implicit[0] and not event.style
            text = event.value if plain else Quoted(event.value)
            done = (None if plain and event.value in EMPTY else text), 1
            if event.anchor:
                anchors[event.anchor] = done
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            _check_tag(event.tag, position)
            if len(stack) >= DEEPEST:
                raise InputError(f"{position}: expected at most {DEEPEST} levels")
            made: list[Tree] | Section = Section(line) if isinstance(event, yaml.MappingStartEvent) else []
            stack.append(_Open(made, event.anchor))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            ended = stack.pop()
            _merge(ended, where)
            done = ended.made, ended.nodes
            if ended.anchor:
                anchors[ended.anchor] = done
        if done is None:
            continue
        # An open list or section counts its children; what is done counts as a whole towards its parent.
        value, nodes = done
        total += nodes if not isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent) else 1
        if total > MOST_NODES:
            raise InputError(f"{position}: expected at most {MOST_NODES} values, aliases counted in full")
        if stack:
            _put(stack[-1], value, nodes, line, position)
        else:
            root = value
    return root


def _put(into: _Open, value: Tree, nodes: int, line: int, position: str) -> None:
    into.nodes += nodes
    if isinstance(into.made, list):
        into.made.append(value)
    elif into.key is None:
        if not isinstance(value, str):
            raise InputError(f"{position}: a key must be a text, got {_kind(value)}")
        if value in into.made.values:
            raise InputError(f"{position}: key {shown(value)} is there twice")
        into.key, into.key_line = str(value), line
    elif into.key == "<<":
        into.merged.append((into.key_line, value))
        into.key = None
    else:
        into.made.values[into.key] = value
        into.made.lines[into.key] = into.key_line
        into.key = None


def _merge(ended: _Open, where: str) -> None:
    """Fill in from the sections under `<<` what the section does not say itself; the first one wins."""
    if not isinstance(ended.made, Section):
        return
    for line, value in ended.merged:
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, Section):
                raise InputError(f"{where} line {line}: '<<' must be keys and values, got {_kind(source)}")
            for key, inner in source.values.items():
                if key not in ended.made.values:
                    ended.made.values[key] = inner
                    ended.made.lines[key] = source.lines[key]


def _check_tag(tag: str | None, at: str) -> None:
    if tag not in PLAIN_TAGS:
        raise InputError(f"{at}: a tag must be one of YAML's own, got {shown(tag)}")


def _kind(value: Tree) -> str:
    """A tree in a few words, however large it is."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return shown(value)
    return "a list" if isinstance(value, list) else "keys and values"


kind_of = _kind


NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")  # as JSON writes it


def values_of(tree: Tree) -> Any:
    """A tree as values of JSON: what stands without quotes and looks like a number or a truth is one."""
    if isinstance(tree, Section):
        return {str(key): values_of(value) for key, value in tree.values.items()}
    if isinstance(tree, list):
        return [values_of(value) for value in tree]
    if tree is None or isinstance(tree, Quoted):
        return None if tree is None else str(tree)
    if tree in ("true", "false"):
        return tree == "true"
    return json.loads(tree) if NUMBER.fullmatch(tree) else tree


def without_quotes(tree: Tree) -> Tree:
    """The same with every text of the type `str` itself: a value that is kept tells nothing of its file."""
    if isinstance(tree, list):
        return [without_quotes(value) for value in tree]
    return str(tree) if isinstance(tree, Quoted) else tree


def as_mapping(tree: Tree) -> Mapping[str, Tree]:
    """The keys and values of a section; empty for anything else."""
    return tree.values if isinstance(tree, Section) else {}


# ── values of a section by key; what is wrong gets one line: file, line, key, value, expectation ────────────


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
        return without_quotes(self.section.values.get(key))

    def values(self, key: str) -> Any:
        """Whatever is there as values of JSON, for a foreign API: see `values_of`."""
        return values_of(self.section.values.get(key))

    def text(self, key: str, default: str = "") -> str:
        """A text as it stands in the file, a number as well."""
        value = self.section.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a text", value)
        return str(value)

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
        return [without_quotes(item) for item in value]

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
