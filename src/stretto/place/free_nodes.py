"""The nodes of one GPU type by how many of their GPUs are free, so that none has to be looked for."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np

from stretto.model import IntArray


class FreeNodes:
    """Groups of nodes with equally many free GPUs, in each by index."""

    def __init__(self, nodes: IntArray, free: IntArray, most: int) -> None:
        """nodes: of the type, ascending; free: (nodes,) of these; most: GPUs of the largest."""
        by_free = np.argsort(free, kind="stable")
        ends = np.searchsorted(free[by_free], np.arange(most + 2))
        ordered = nodes[by_free].tolist()
        self._groups: list[list[int]] = [ordered[ends[count] : ends[count + 1]] for count in range(most + 1)]

    def move(self, node: int, before: int, now: int) -> None:
        """A node has another number of free GPUs."""
        if before == now:
            return
        group = self._groups[before]
        del group[bisect_left(group, node)]
        insort(self._groups[now], node)

    def first_of(self, counts: Sequence[int]) -> int:
        """The first node with so many free GPUs, the counts tried in turn; -1 where there is none."""
        for count in counts:
            if count < len(self._groups) and self._groups[count]:
                return self._groups[count][0]
        return -1

    def tightest_first(self, size: int) -> Iterator[int]:
        """Nodes with room, those with fewest free GPUs first; of equals the last one first."""
        for count in range(size, len(self._groups)):
            yield from reversed(self._groups[count])

    def roomiest_first(self, from_the_end: bool) -> Iterator[int]:
        """All nodes, those with most free GPUs first; of equals the first one first, or the last."""
        for group in reversed(self._groups):
            yield from reversed(group) if from_the_end else group
