"""Which nodes are near each other: a hierarchy of domains, such as zones, leaf switches and racks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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

    def spans(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """On each level, in how many domains these nodes lie."""
        return tuple(len(set(row)) for row in self.domain[:, list(nodes)].tolist())


def topology_of(levels: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> Topology:
    """From the names of the domains of each node, outermost first; "" and names that are left out: unknown.

    Equal names in different domains of an outer level are different domains. A node of which a level is not
    known is together there with those that share all that is known outside and the first name inside.
    Where none is, it is alone.
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
