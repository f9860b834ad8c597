"""Levels of the network in a cluster file: which there are, and in which domains the nodes of a group lie."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from stretto.clusters.entries import Entry, entry_of, shown
from stretto.errors import InputError


@dataclass
class Levels:
    """The levels of a file, outermost first, and how its domains have been numbered so far."""

    names: tuple[str, ...]
    usual: Mapping[str, int]  # nodes of a domain, of groups that say nothing else
    numbered: Counter[str] = field(default_factory=Counter)  # by level

    def of_group(self, entry: Entry, count: int) -> Sequence[tuple[str, ...]]:
        """The domains of each node of a group, outermost first; empty tuples where nothing is said."""
        stated: Mapping[str, Any] = self.usual
        if "in" in entry.values:
            where = f"{entry.where}: in"
            own = entry_of(entry.values["in"], where, self.names).values if self.names else None
            if own is None:
                raise InputError(
                    f"{entry.at('in')}: in needs levels: topology must name them, outermost first"
                )
            stated = {**self.usual, **own}
        known = [level for level in self.names if level in stated]
        for level in known:
            _check(entry, level, stated[level])
        missing = [level for level in self.names[: len(known)] if level not in stated]
        if missing:
            raise InputError(f"{entry.at('in')}: in must say {missing[0]}, which is around {known[-1]}")
        counted = [level for level in known if isinstance(stated[level], int)]
        for outer, inner in pairwise(counted):
            if stated[outer] % stated[inner]:
                raise InputError(
                    f"{entry.at('in')}: {outer} must have a multiple of {stated[inner]} nodes, "
                    f"as many as {inner} has, got {stated[outer]}"
                )
        columns = [self._names_of(level, stated[level], count) for level in known]
        return list(zip(*columns, strict=True)) if columns else [()] * count

    def _names_of(self, level: str, stated: str | int, count: int) -> Sequence[str]:
        if isinstance(stated, str):
            return [stated] * count
        first = self.numbered[level]
        self.numbered[level] += -(-count // stated)
        return [f"{level}-{first + index // stated}" for index in range(count)]


def levels_of(file: Entry) -> Levels:
    """The levels that a cluster file has: a list of their names, or names with the nodes of a domain."""
    stated = file.values.get("topology", [])
    where = f"{file.where}: topology"
    if isinstance(stated, dict):
        usual = entry_of(stated, where)
        return Levels(tuple(stated), {level: usual.count(level) for level in stated})
    names = file.texts("topology")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{file.at('topology')}: topology: levels must differ, got {twice[0]!r} twice")
    return Levels(names, {})


def _check(entry: Entry, level: str, stated: object) -> None:
    is_text = isinstance(stated, str) and stated
    is_count = isinstance(stated, int) and not isinstance(stated, bool) and stated >= 1
    if not (is_text or is_count):
        raise InputError(
            f"{entry.at('in')}: in: {level} must be the name of one, or how many nodes each has, "
            f"got {shown(stated)}"
        )
