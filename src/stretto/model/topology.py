"""Which nodes are near each other: a hierarchy of domains, such as zones, leaf switches and racks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from stretto.model.arrays import IntArray, frozen, ints


@dataclass(frozen=True, eq=False)
class Topology:
    """The domain of every node on every level, as integers.

    `levels` come outermost first: each domain lies within one domain of the level before. Domains of a level
    are numbered from 0 in the order of their first node.
    """

    levels: tuple[str, ...]  # their names; empty: nothing is known
    domain: IntArray  # (levels, nodes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of domains of each level."""
        return tuple((self.domain.max(axis=1, initial=-1) + 1).tolist())

    @cached_property
    def column(self) -> IntArray:
        """(levels, nodes) as `domain`, but numbered through over all levels."""
        return frozen(self.domain + self._first[:, None])

    @cached_property
    def _first(self) -> IntArray:
        return ints([0, *accumulate(self.sizes)])[: len(self.levels)]

    def columns_of(self, level: int) -> slice:
        """The domains of a level among those of all."""
        first = int(self._first[level])
        return slice(first, first + self.sizes[level])

    def parents_of(self, level: int) -> IntArray:
        """(domains of a level,) the domain of the level before in which each lies."""
        return self._parents[level]

    @cached_property
    def _parents(self) -> list[IntArray]:
        """The first level lies within nothing."""
        rows: list[IntArray] = [np.zeros(size, dtype=np.int64) for size in self.sizes]
        for level in range(1, len(rows)):
            rows[level][self.domain[level]] = self.domain[level - 1]
        return rows

    def nodes_of(self, level: int, domains: Sequence[int]) -> IntArray:
        """The nodes of some domains, ascending; of level -1: all nodes."""
        if level < 0:
            return np.arange(self.domain.shape[1])
        by_domain, ends = self._members[level]
        parts = [by_domain[ends[each] : ends[each + 1]] for each in domains]
        return np.sort(np.concatenate(parts))

    @cached_property
    def _members(self) -> list[tuple[IntArray, IntArray]]:
        """By level, nodes by domain, and where each domain begins there."""
        return [
            (np.argsort(row, kind="stable"), np.searchsorted(np.sort(row), np.arange(size + 1)))
            for row, size in zip(self.domain, self.sizes, strict=True)
        ]

    def spans(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """On each level, in how many domains these nodes lie."""
        return tuple(len(set(row)) for row in self.domain[:, list(nodes)].tolist())

    def crossed(self, nodes: Sequence[int]) -> int:
        """The number of levels on which these nodes lie in several domains."""
        return sum(count > 1 for count in self.spans(nodes)) if len(nodes) > 1 and self.levels else 0


def topology_of(levels: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> Topology:
    """From the names of the domains of each node, outermost first; "" and names that are left out: unknown.

    Equal names in different domains of an outer level are different domains. Where a level of a node is not
    known, the first name further inside takes its place. Where none is known either, the node is alone.
    """
    numbers: list[dict[object, int]] = [{} for _ in levels]
    ids_of: dict[tuple[str, ...], tuple[int, ...]] = {}
    rows: list[tuple[int, ...]] = []
    for node, path in enumerate(paths if levels else ()):
        ids = ids_of.get(path)
        if ids is None:
            named = (*path, *("",) * (len(levels) - len(path)))
            ids = tuple(
                numbers[level].setdefault(_identity(named, level, node), len(numbers[level]))
                for level in range(len(levels))
            )
            if named[-1]:  # others of the same names are in the same domains
                ids_of[path] = ids
        rows.append(ids)
    shape = (len(paths), len(levels))
    return Topology(levels, frozen(ints(rows).reshape(shape).T.copy()))


def _identity(path: tuple[str, ...], level: int, node: int) -> object:
    """What tells a domain from all others of its level."""
    for inner in range(level, len(path)):
        if path[inner]:
            return path[:level], inner, path[inner]
    return node
