"""A YAML text becomes a tree of texts, lists and sections; what a value means, its reader says.

Nothing is guessed from how a scalar looks: `007`, `1e3`, `on` and `12:30` stay the texts that they are.
Built from the parser's events, with bounds: no object is ever made from a tag, and aliases count as what
they stand for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from stretto.live.jobfile.checks import shown
from stretto.model import InputError

MOST_NODES = 50_000  # chosen: an array or environment as large as may be, and some more
DEEPEST = 40

PARSER: Any = getattr(yaml, "CLoader", yaml.Loader)  # only its events are used, which make no objects
EMPTY = {"", "~", "null", "Null", "NULL"}
PLAIN_TAGS = {None, "!"} | {
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
}


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
        raise InputError(f"{where}{line}: {error.problem}") from None
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
        at = f"{where} line {line}"
        done: tuple[Tree, int] | None = None
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise InputError(f"{at}: expected one document, got a second one")
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise InputError(f"{at}: unknown or unfinished anchor {shown(event.anchor)}")
            done = anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            _check_tag(event.tag, at)
            plain = event.implicit[0] and not event.style
            done = (None if plain and event.value in EMPTY else event.value), 1
            if event.anchor:
                anchors[event.anchor] = done
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            _check_tag(event.tag, at)
            if len(stack) >= DEEPEST:
                raise InputError(f"{at}: expected at most {DEEPEST} levels")
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
            raise InputError(f"{at}: expected at most {MOST_NODES} values, aliases counted in full")
        if stack:
            _put(stack[-1], value, nodes, line, at)
        else:
            root = value
    return root


def _put(into: _Open, value: Tree, nodes: int, line: int, at: str) -> None:
    into.nodes += nodes
    if isinstance(into.made, list):
        into.made.append(value)
    elif into.key is None:
        if not isinstance(value, str):
            raise InputError(f"{at}: a key must be a text, got {_kind(value)}")
        if value in into.made.values:
            raise InputError(f"{at}: key {shown(value)} is there twice")
        into.key, into.key_line = value, line
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


def as_mapping(tree: Tree) -> Mapping[str, Tree]:
    """The keys and values of a section; empty for anything else."""
    return tree.values if isinstance(tree, Section) else {}
