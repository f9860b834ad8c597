"""On which buddy cells may a job run, and do so many cells fit? The allocation policies of UniSched.

UniSched (TPDS 2024), section III-C3. A cell of level g is an aligned block of 2^g GPUs of one node, g = 0 to
3. An allocation policy says how many cells of each level a job gets, as the quadruple (c0, c1, c2, c3).
"""

from functools import lru_cache

import numpy as np

from stretto.model import Cluster, IntArray, frozen, ints, virtual_nodes

TOP_LEVEL = 3  # a node of 8 GPUs is one cell of this level
LEVELS = TOP_LEVEL + 1
MOST_ENUMERATED_GPUS = 16  # beyond, whole nodes and the binary cells of the rest only [paper]

Cells = tuple[int, ...]  # how many cells of each level, level 0 first


@lru_cache(maxsize=1024)
def policies_for(gpus: int, top_level: int = TOP_LEVEL) -> tuple[Cells, ...]:
    """Every allocation policy for a number of GPUs, the most consolidated first: A_i of the paper.

    All ways to add cells up to exactly that many. In front of them comes the one next larger cell where the
    number is less than a node and no power of two. More than 16 GPUs: whole nodes and the binary cells of the
    rest.
    """
    if gpus > MOST_ENUMERATED_GPUS:
        return (_binary(gpus, top_level),)
    exact = sorted(_sums(gpus, top_level), key=lambda cells: (sum(cells), cells))
    level = (gpus - 1).bit_length()
    if gpus & (gpus - 1) and level <= top_level:
        return (_one(level), *exact)
    return tuple(exact)


def rows_of(cells: Cells) -> IntArray:
    """(levels,) what a policy takes of each capacity row g: the sum over h >= g of 2^(h-g) A(h)."""
    taken = ints(cells)
    for level in reversed(range(len(cells) - 1)):
        taken[level] += 2 * taken[level + 1]
    return taken


def gpus_of(cells: Cells) -> int:
    """GPUs in all the cells together: row 0."""
    return sum(count << level for level, count in enumerate(cells))


def is_one_node(cells: Cells) -> bool:
    """Whether the cells are sure to lie on one node: a single cell. A conservative rule."""
    return sum(cells) == 1


def fit_together(demand: IntArray, free: IntArray) -> bool:
    """Whether so many cells can be cut out of the free ones (equation 14).

    demand, free: (levels,) cells of each level asked for and free. Enough from an empty cluster: larger
    cells are given first and the rest is split (proposition 1).
    """
    return bool((rows_of(tuple(demand.tolist())) <= rows_of(tuple(free.tolist()))).all())


@lru_cache(maxsize=64)
def cells_of_nodes(cluster: Cluster, usable: bytes) -> IntArray:
    """(types, levels) cells of the usable nodes when no job holds anything. `usable`: the array's bytes.

    A node is its binary powers, largest first; powers above level 3 count as so many cells of level 3.
    """
    cells = np.zeros((len(cluster.types), LEVELS), dtype=np.int64)
    there = np.flatnonzero(np.frombuffer(usable, dtype=np.bool_)).tolist()
    for node in there:
        for power in virtual_nodes(int(cluster.node_gpus[node])):
            level = min(power.bit_length() - 1, TOP_LEVEL)
            cells[cluster.kind[node], level] += power >> level
    return frozen(cells)


@lru_cache(maxsize=1024)
def offers(gpus: int, top_level: int = TOP_LEVEL) -> tuple[tuple[int, bool], ...]:
    """(GPUs that the cells take, one node for sure) of the policies worth considering, at most two.

    Where free nodes are whole, row 0 of the capacity implies the others: cells compete for GPUs only. Of the
    policies that are equally fast (on one node, or not) the one that takes fewest GPUs beats the rest. Of
    equals the more consolidated one does.
    """
    fewest: dict[bool, int] = {}
    for cells in policies_for(gpus, top_level):
        on_one = is_one_node(cells)
        fewest[on_one] = min(fewest.get(on_one, gpus_of(cells)), gpus_of(cells))
    if len(fewest) == 2 and fewest[True] <= fewest[False]:
        del fewest[False]
    return tuple((cells, on_one) for on_one, cells in sorted(fewest.items(), reverse=True))


def _sums(gpus: int, level: int) -> list[Cells]:
    """All multisets of cells up to a level that add up to a number of GPUs, padded to every level."""
    if level == 0:
        return [(gpus, *([0] * TOP_LEVEL))]
    sums = []
    for count in range(gpus >> level, -1, -1):
        for rest in _sums(gpus - (count << level), level - 1):
            cells = list(rest)
            cells[level] = count
            sums.append(tuple(cells))
    return sums


def _binary(gpus: int, top_level: int) -> Cells:
    whole, rest = divmod(gpus, 1 << top_level)
    cells = [rest >> level & 1 for level in range(LEVELS)]
    cells[top_level] = whole
    return tuple(cells)


def _one(level: int) -> Cells:
    return tuple(int(at == level) for at in range(LEVELS))
