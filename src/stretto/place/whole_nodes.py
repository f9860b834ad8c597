"""Sia's placement (section 3.3): parts of a node stay together, larger jobs take whole nodes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from stretto.model import IntArray, Pinned, Placement, Shares, Snapshot, virtual_nodes
from stretto.place.consolidate import own_node_or_best_fit
from stretto.place.draft import Draft, Want
from stretto.place.evict import Movable, Opening, Victim, moving_others, openable_first
from stretto.place.fill import Rule, fill
from stretto.place.shapes import FEWEST_FREE, NOT_ENOUGH, at, pieces


@dataclass(frozen=True)
class WholeNodes:
    """(a) What fits a node is not split; (b) what does not takes whole nodes; (c) if need be, others move.

    No two jobs of several nodes share a node. A valid set of shares is always placed in full, if every job
    may be moved. Valid are powers of two within a node, or whole nodes, within capacity at each size. Then
    and otherwise as few running jobs are moved as this greedy way finds. Several nodes are taken from the
    high end and parts from the low end, so that they meet late.

    A node whose size is no power of two counts as virtual nodes of its binary powers (12 = 8 + 4). They
    need no book-keeping: of powers of two, a node holds by count exactly what its virtual nodes hold.

    A rigid job may ask for anything: 6 GPUs stay together on a node that has them. On nodes of 8, 12 GPUs
    take one whole and 4 of another, which if possible is free as a whole when they come. Its other 4 are left
    to single-node jobs, since the policy counts on them (deviation from rounding the job up).
    """

    evict: bool = True  # rule (c); without it a job waits until its shape is free

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Every share that can be placed so."""
        moving: tuple[Rule, ...] = ()
        if self.evict:
            moving = (moving_others(snapshot, shares, sizes_of, _openings, by_whole_nodes),)
        return fill(snapshot, shares, (by_whole_nodes,), moving, may_split=False)


def sizes_of(draft: Draft, want: Want) -> tuple[int, ...]:
    """GPUs on each node that a job takes, largest first; empty where the stated nodes are too few."""
    largest = int(draft.cluster.gpus_per_node[want.kind])
    if want.gpus <= largest and want.nodes <= 1:
        return (want.gpus,)
    unit = largest_virtual_node(largest)
    if want.gpus == want.nodes * unit and unit % want.each == 0:
        return (unit,) * want.nodes
    return pieces(want.gpus, want.nodes, largest, want.each)


def largest_virtual_node(gpus: int) -> int:
    """The largest power of two within a node."""
    return 1 << (gpus.bit_length() - 1)


def by_whole_nodes(draft: Draft, want: Want) -> bool:
    """Rules (a) and (b), moving no job. A job stays on its nodes where that fits."""
    sizes = sizes_of(draft, want)
    if len(sizes) == 1:
        power = want.gpus & (want.gpus - 1) == 0
        node = own_node_or_best_fit(draft, want, _fewest_free_virtual() if power else FEWEST_FREE)
        return node >= 0 and draft.give(want, Pinned((node,), (want.gpus,)))
    counts = _several_nodes(draft, want, sizes)
    return len(counts) == len(sizes) > 0 and draft.give(want, at(counts))


def _several_nodes(draft: Draft, want: Want, sizes: tuple[int, ...]) -> dict[int, int]:
    """GPUs on each of the nodes that the pieces go to; fewer than the pieces where there is no room for all.

    Nodes on which the job is come first, then the tightest.
    """
    own = _own_nodes(want)
    counts: dict[int, int] = {}
    for size in sorted(set(sizes), reverse=True):
        missing = sizes.count(size)
        for node in _in_order(draft, want.kind, size, own, is_rest=size < sizes[0]):
            if node not in counts and (_is_whole(draft, node) or not _has_part_of_larger(draft, node)):
                counts[node] = size
                missing -= 1
            if missing == 0:
                break
    return counts


def _own_nodes(want: Want) -> frozenset[int]:
    """The nodes of the wanted type on which a job is."""
    held = want.held
    return frozenset(held.nodes if held is not None and held.kind == want.kind else ())


def _in_order(draft: Draft, kind: int, size: int, own: frozenset[int], is_rest: bool) -> Iterator[int]:
    """Nodes with room for a piece: those where the job is first, each part as its neighbours."""
    mine = [node for node in own if draft.has_room(node, kind, size)]
    mine.sort(key=lambda node: (is_rest and not _is_whole(draft, node), draft.free[node], -node))
    yield from mine
    others = (node for node in draft.nodes_of(kind).tightest_first(size) if node not in own)
    if not is_rest:
        yield from others
        return
    # A rest prefers a node of its own.
    broken = []
    for node in others:
        if _is_whole(draft, node):
            yield node
        else:
            broken.append(node)
    yield from broken


def _is_whole(draft: Draft, node: int) -> bool:
    """Whether all GPUs of a node may be taken."""
    return bool(draft.free[node] == draft.cluster.node_gpus[node])


def _has_part_of_larger(draft: Draft, node: int) -> bool:
    return any(len(held.nodes) > 1 for held in draft.on(node).values())


def _openings(draft: Draft, kind: int, size: int, who: Movable, several: bool) -> Iterator[Opening]:
    """Nodes that have room for a piece once some smaller jobs are gone."""
    for node in openable_first(draft, kind, size, from_the_end=several):
        if several and _has_part_of_larger(draft, node):
            continue
        lacking = size - int(draft.free[node])
        victims = _fewest(who.victims_on(draft, node, smaller_than=size), lacking)
        if lacking <= 0 or victims:
            restarts, moved_gpus = sum(v[0] for v in victims), sum(v[1] for v in victims)
            where = Pinned((node,), (size,))
            jobs = tuple(victim[2] for victim in victims)
            yield Opening(restarts, moved_gpus, -node if several else node, where, jobs)


def _fewest(victims: list[Victim], lacking: int) -> list[Victim]:
    """Victims that free as many GPUs as are lacking, those without restart and small ones first."""
    if sum(victim[1] for victim in victims) < lacking:
        return []
    taken: list[Victim] = []
    freed = 0
    for victim in sorted(victims, key=lambda victim: victim[:3]):
        if freed >= lacking:
            break
        taken.append(victim)
        freed += victim[1]
    for victim in sorted(taken, key=lambda victim: victim[:3], reverse=True):
        if freed - victim[1] >= lacking:  # a later, larger one makes it needless
            taken.remove(victim)
            freed -= victim[1]
    return taken


@cache
def _fewest_free_virtual() -> IntArray:
    """(asked, free) how loosely a power of two fits the virtual nodes into which free GPUs fall apart.

    The smallest virtual node that has room counts first, then the free GPUs. So 4 GPUs take the small part of
    a node of 12 before they break an 8.
    """
    table = np.full_like(FEWEST_FREE, NOT_ENOUGH)
    for asked in (1 << power for power in range(len(table).bit_length())):
        for free in range(asked, table.shape[1]):
            smallest = min(part for part in virtual_nodes(free) if part >= asked)
            table[asked, free] = smallest * 64 + free
    return table
