"""Cells on nodes: which GPUs exactly, without moving any job that stays.

UniSched (TPDS 2024), section III-C3 and proposition 1: larger cells are given first, each cut out of the
smallest free cell that holds it. Cells are aligned blocks of a power of two of GPUs, as bits of an integer.
"""

from dataclasses import dataclass

import numpy as np

from stretto.estimate.placement_runtime import PROFILE_GPUS
from stretto.model import BoolArray, IntArray, Pinned, Snapshot, lowest_gpus
from stretto.policies.unisched.estimator import Wanted, who_is_on

LEVELS = 6  # cells of 1 to 32 GPUs: a node has at most 62
ALIGNED = tuple(sum(1 << at for at in range(0, 62, 1 << level)) for level in range(LEVELS + 1))


@dataclass(frozen=True, slots=True)
class Ask:
    """What one job is to get."""

    gpus: int
    nodes: int = 0  # one GPU on each of so many nodes; 0: consolidated
    spreads: bool = True  # takes any free GPUs where no such cells are free


def give_leases(
    snapshot: Snapshot, wanted: Wanted, served: BoolArray, aside: BoolArray, joint: bool
) -> tuple[BoolArray, dict[int, Pinned]]:
    """(jobs,) which stay where they are, and the places of those that start, by row.

    A served job that holds what it asks for stays. The others get cells cut out of what is free once every
    other job has let go, larger ones first. A job without a cell is left out. aside: (nodes,) for profiling
    runs only. joint: take other GPUs where no cell is free.
    """
    cluster = snapshot.cluster
    stays = served & (wanted.kept | wanted.stays(snapshot))
    if aside.any():
        stays &= wanted.kept | (who_is_on(snapshot, aside) == wanted.profiles)
    # Everything is cut anew from what the jobs that stay leave: large ones first, urgent ones before others.
    free = _free_without(snapshot, stays)
    starts = np.flatnonzero(served & ~stays)
    starts = starts[np.lexsort((~wanted.urgent[starts], -wanted.asks[starts]))]
    places: dict[int, Pinned] = {}
    for kind in np.unique(wanted.kind[starts]).tolist():
        whole = 1 << (int(cluster.gpus_per_node[kind]).bit_length() - 1)
        most_nodes = cluster.types[kind].max_nodes_per_job or len(cluster.nodes)
        # Profiling runs come last, on nodes set aside where there are such.
        for profiles in (False, True):
            rows = starts[(wanted.kind[starts] == kind) & (wanted.profiles[starts] == profiles)].tolist()
            open_to = (cluster.kind == kind) & (aside if profiles and aside.any() else ~aside)
            there = np.where(open_to, free, 0)
            asks = [_ask(wanted, row, whole, joint) for row in rows]
            cells = give_cells(there, whole, asks, most_nodes)
            free = np.where(open_to, there, free)
            places |= {row: place for row, place in zip(rows, cells, strict=True) if place}
    return stays, places


def _ask(wanted: Wanted, row: int, whole: int, joint: bool) -> Ask:
    """Jobs that will run on several nodes are profiled on two (section III-B1)."""
    gpus = int(wanted.asks[row])
    apart = bool(wanted.profiles[row]) and gpus == PROFILE_GPUS and int(wanted.gpus[row]) > whole
    return Ask(gpus, gpus if apart else 0, joint or gpus > whole)


def _free_without(snapshot: Snapshot, stays: BoolArray) -> IntArray:
    """(nodes,) bit g set: GPU g of a usable node is free once all jobs but those that stay have let go."""
    cluster, placement = snapshot.cluster, snapshot.placement
    busy = placement.busy.copy()
    for row in np.flatnonzero((snapshot.jobs.held_gpus > 0) & ~stays).tolist():
        allocation = placement[snapshot.jobs.ids[row]]
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            busy[node] &= ~mask
    return np.where(snapshot.usable, ((1 << cluster.node_gpus) - 1) & ~busy, 0)


def give_cells(free: IntArray, whole: int, asks: list[Ask], most_nodes: int) -> list[Pinned | None]:
    """A place for each ask, in their order; None where there is none. Larger ones should come first.

    free: (nodes,) bit g set where GPU g may be taken; what is given is taken out of it. whole: GPUs of the
    largest cell of a node. most_nodes: that one job may have.
    """
    places: list[Pinned | None] = []
    for ask in asks:
        masks = _masks(free, whole, ask, most_nodes)
        if masks is None or len(masks) > most_nodes:
            places.append(None)
            continue
        nodes = tuple(sorted(masks))
        for node in nodes:
            free[node] &= ~masks[node]
        named = tuple(masks[node] for node in nodes)
        places.append(Pinned(nodes, tuple(mask.bit_count() for mask in named), named))
    return places


Masks = dict[int, int] | None  # GPUs by node


def _masks(free: IntArray, whole: int, ask: Ask, most_nodes: int) -> Masks:
    if ask.nodes:
        return _apart(free, ask.nodes)
    found = _one_cell(free, ask.gpus) if ask.gpus <= whole else _whole_nodes(free, ask.gpus, whole)
    if found is None or len(found) > most_nodes:  # a node of 6 GPUs has more than its largest cell
        return _anywhere(free, ask.gpus) if ask.spreads else None
    return found


def _one_cell(free: IntArray, gpus: int) -> Masks:
    """The lowest GPUs of the next power of two, cut from the smallest free cell that holds it."""
    level = (gpus - 1).bit_length()
    whole = free
    for below in range(level):
        whole = whole & (whole >> (1 << below)) & ALIGNED[below + 1]
    for above in range(level, LEVELS):
        merged = whole & (whole >> (1 << above)) & ALIGNED[above + 1]
        alone = whole & ~(merged | merged << (1 << above))
        node = int((alone != 0).argmax())
        if alone[node]:
            first = int(alone[node] & -alone[node])
            return {node: first * ((1 << gpus) - 1)}
        whole = merged
    return None


def _whole_nodes(free: IntArray, gpus: int, whole: int) -> Masks:
    """So many nodes with all of a largest cell free, and one cell for the rest."""
    count, rest = divmod(gpus, whole)
    block = (1 << whole) - 1
    nodes = np.flatnonzero((free & block) == block)[:count].tolist()
    if len(nodes) < count:
        return None
    masks = dict.fromkeys(nodes, block)
    if rest:
        others = free.copy()
        others[nodes] = 0
        last = _one_cell(others, rest)
        if last is None:
            return None
        masks |= last
    return masks


def _anywhere(free: IntArray, gpus: int) -> Masks:
    """On the node that fits most tightly, else on as few nodes as can be."""
    count = np.bitwise_count(free).astype(np.int64)
    fits = np.flatnonzero(count >= gpus)
    if fits.size:
        node = int(fits[count[fits].argmin()])
        return {node: lowest_gpus(int(free[node]), gpus)}
    if int(count.sum()) < gpus:
        return None
    masks = {}
    for node in np.argsort(-count, kind="stable").tolist():
        part = min(gpus, int(count[node]))
        masks[node] = lowest_gpus(int(free[node]), part)
        gpus -= part
        if not gpus:
            break
    return masks


def _apart(free: IntArray, nodes: int) -> Masks:
    """One GPU on each of the nodes with fewest free GPUs."""
    count = np.bitwise_count(free).astype(np.int64)
    some = np.flatnonzero(count)
    if len(some) < nodes:
        return None
    chosen = some[np.argsort(count[some], kind="stable")][:nodes].tolist()
    return {node: lowest_gpus(int(free[node]), 1) for node in chosen}
