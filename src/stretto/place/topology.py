"""Near each other: a job of several nodes goes into the smallest domain of the network that can hold it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stretto.model import Allocation, BoolArray, IntArray, Topology

if TYPE_CHECKING:
    from stretto.place.draft import Draft, Want

TRIES = 8  # chosen: domains of a level that a rule tries; one without whole nodes enough may have no place


class Room:
    """What may be taken in each domain of each level, of one GPU type; a column is a domain of some level.

    Counts follow from each step of a draft, so that no decision sums over all nodes twice.
    """

    def __init__(self, topology: Topology, is_kind: BoolArray, free: IntArray, node_gpus: IntArray) -> None:
        """is_kind: (nodes,) which are of the type; free, node_gpus: (nodes,) of all."""
        self._topology, self._node_gpus = topology, node_gpus
        columns = sum(topology.sizes)
        free = np.where(is_kind, free, 0)
        idle = is_kind & (free == node_gpus)

        def summed(values: IntArray) -> IntArray:
            total = np.zeros(columns)
            for row in topology.column:
                total += np.bincount(row, values, columns)
            return total.astype(np.int64)

        self.free = summed(free)  # (columns,) GPUs
        self.whole = summed(np.where(idle, free, 0))  # (columns,) GPUs of nodes of which all are free
        self.idle = summed(idle.astype(np.int64))  # (columns,) such nodes

    def move(self, node: int, before: int, now: int) -> None:
        """A node has another number of free GPUs."""
        columns, size = self._topology.column[:, node], int(self._node_gpus[node])
        self.free[columns] += now - before
        was_idle, is_idle = before == size, now == size
        if was_idle != is_idle:
            sign = 1 if is_idle else -1
            self.whole[columns] += sign * size
            self.idle[columns] += sign


def narrow(draft: "Draft", want: "Want", wide: Allocation) -> Iterator[IntArray]:
    """Nodes among which to look for a place, the best choice first.

    wide: what a rule gives the job among all nodes, now taken back. Domains of the innermost level that can
    hold the job come first. Of one level, it is to need the fewest domains of the next, and to leave the
    fewest GPUs free; ties by index. What is wanted on more than one domain goes to those with most free GPUs,
    and the rest to the tightest. A job that runs stays where it is: only domains around all of its nodes are
    looked at, and its own domains come first.
    """
    topology, room = draft.cluster.topology, draft.room_of(want.kind)
    own = [node for node in want.held.nodes if draft.has_room(node, want.kind, 1)] if want.held else []
    for level in reversed(range(-1, len(topology.levels))):
        if level < want.within:
            return
        for capacity, is_strict in ((room.whole, True), (room.free, False)):
            pieces = len(wide.nodes) if is_strict else 0
            parents = _holders(topology, room, level, capacity, want.gpus, pieces, own)
            for parent in parents[:TRIES]:
                yield from reversed(_narrowing(topology, level, parent, capacity, want.gpus, own))


def _holders(
    topology: Topology,
    room: Room,
    level: int,
    capacity: IntArray,
    gpus: int,
    pieces: int,
    own: Sequence[int],
) -> list[int]:
    """Domains of a level that can hold a job by count, in the order of `narrow`; of level -1, all is one."""
    if level < 0:
        return [0]
    columns = topology.columns_of(level)
    holds = (capacity[columns] >= gpus) & (room.idle[columns] >= pieces)
    if own:
        holds &= _only(topology.domain[level, own], len(holds))
    domains = np.flatnonzero(holds)
    needed = np.zeros(len(domains), dtype=np.int64)
    if level + 1 < len(topology.levels):
        needed = _children_needed(topology, level + 1, capacity, gpus)[domains]
    ordered: list[int] = domains[np.lexsort((room.free[columns][domains], needed))].tolist()
    return ordered


def _only(domains: IntArray, count: int) -> BoolArray:
    """(count,) the domain of all own nodes; none where they are in several."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[domains[0]] = bool((domains == domains[0]).all())
    return mask


def _children_needed(topology: Topology, level: int, capacity: IntArray, gpus: int) -> IntArray:
    """(domains of the level before,) of how many domains of a level within each the largest are enough."""
    parents, room = topology.parents_of(level), capacity[topology.columns_of(level)]
    order = np.lexsort((-room, parents))
    reached = np.cumsum(room[order])
    is_first = np.r_[True, np.diff(parents[order]) != 0]
    before = reached - room[order]
    before -= np.maximum.accumulate(np.where(is_first, before, 0))
    return np.bincount(parents[order], before < gpus, topology.sizes[level - 1]).astype(np.int64)


def _narrowing(
    topology: Topology, level: int, parent: int, capacity: IntArray, gpus: int, own: Sequence[int]
) -> list[IntArray]:
    """The nodes of a domain, and then those of fewer and fewer domains of each level within it."""
    sets = [topology.nodes_of(level, [parent])]
    chosen = [parent]
    for inner in range(level + 1, len(topology.levels)):
        children = np.flatnonzero(np.isin(topology.parents_of(inner), chosen)) if inner else None
        children = np.arange(topology.sizes[0]) if children is None else children
        room = capacity[topology.columns_of(inner)][children]
        chosen = _fewest(children, room, np.isin(children, topology.domain[inner, own]), gpus)
        if not chosen:
            break
        sets.append(topology.nodes_of(inner, chosen))
    return sets


def _fewest(domains: IntArray, room: IntArray, is_own: BoolArray, gpus: int) -> list[int]:
    """As few domains as hold so many GPUs: own ones, the largest, and one in which the rest fits tightly."""
    order = np.lexsort((-room, ~is_own))
    reached = np.cumsum(room[order])
    if not len(reached) or reached[-1] < gpus:
        return []
    last = int(np.searchsorted(reached, gpus))
    rest = gpus - (int(reached[last - 1]) if last else 0)
    tail = order[last:]
    fits = tail[:1] if is_own[tail[0]] else tail[room[tail] >= rest]
    tightest = fits[np.lexsort((domains[fits], room[fits]))[0]]
    chosen: list[int] = domains[[*order[:last], tightest]].tolist()
    return chosen
