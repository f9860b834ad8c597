"""On as few nodes as can be: by need only (PL-CONS), or by preference (PL-RELAX)."""

from dataclasses import dataclass

import numpy as np

from stretto.model import BoolArray, IntArray, Pinned, Placement, Shares, Snapshot
from stretto.place.draft import Draft, Want
from stretto.place.fill import fill
from stretto.place.shapes import (
    FEWEST_FREE,
    all_in_workers,
    at,
    best_fit,
    holds_on,
    in_workers,
    over_nodes,
    pieces,
)


@dataclass(frozen=True)
class Consolidated:
    """On one node where the request fits one, else on whole nodes and one more for the rest; or not at all.

    The one node is that with the fewest free GPUs that still fits (best fit).
    """

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Every share that can be placed so."""
        return fill(snapshot, shares, (on_fewest_nodes,))


@dataclass(frozen=True)
class Relaxed:
    """Consolidated where possible; else over the fewest nodes, those with most free GPUs first."""

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Every share for which the GPUs are there, wherever they are."""
        return fill(snapshot, shares, (on_fewest_nodes, on_any_nodes))


@dataclass(frozen=True)
class OneNodeOrSpread:
    """On one node where the request fits one, or not at all; else as relaxed as it must be."""

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Every share that can be placed so."""
        return fill(snapshot, shares, (on_fewest_nodes, on_any_nodes_if_large))


def on_fewest_nodes(draft: Draft, want: Want) -> bool:
    """PL-CONS, or evenly on more nodes where the share states more. Keeps its nodes where that fits."""
    largest = int(draft.cluster.gpus_per_node[want.kind])
    if want.gpus <= largest and want.nodes <= 1:
        node = own_node_or_best_fit(draft, want)
        return node >= 0 and draft.give(want, Pinned((node,), (want.gpus,)))
    free = draft.free_of(want.kind)
    counts = _on_several(draft, free, want, largest)
    return len(counts) == (want.nodes or len(counts)) > 0 and draft.give(want, at(counts))


def own_node_or_best_fit(draft: Draft, want: Want, fit: IntArray = FEWEST_FREE) -> int:
    """The node where the job is, if the request fits there; else the tightest, -1 where there is none."""
    held = want.held
    if held is not None and len(held.nodes) == 1 and draft.has_room(held.nodes[0], want.kind, want.gpus):
        return held.nodes[0]
    return draft.best_fit(want.kind, want.gpus, fit)


def on_any_nodes(draft: Draft, want: Want) -> bool:
    """The second half of PL-RELAX; a growing job keeps what it has and adds to it."""
    free = all_in_workers(draft.free_of(want.kind), want.each)
    own = holds_on(want.held, want.kind, len(free))
    counts = over_nodes(free, want.gpus, own, np.zeros_like(free))
    return bool(counts) and draft.give(want, at(counts))


def on_any_nodes_if_large(draft: Draft, want: Want) -> bool:
    """`on_any_nodes` for what no node could hold."""
    return want.gpus > int(draft.cluster.gpus_per_node[want.kind]) and on_any_nodes(draft, want)


def _on_several(draft: Draft, free: IntArray, want: Want, largest: int) -> dict[int, int]:
    is_own = holds_on(want.held, want.kind, len(free)) > 0
    each, sizes = want.each, draft.cluster.node_gpus
    is_idle = (free == sizes) & (free >= each)
    if each > 1:  # what makes no whole worker is of no use
        free, sizes, largest = (
            all_in_workers(free, each),
            all_in_workers(sizes, each),
            in_workers(largest, each),
        )
    if not largest:
        return {}
    if want.nodes > -(-want.gpus // largest):
        return _evenly(free, is_own, pieces(want.gpus, want.nodes, largest, each))
    # Whole idle nodes first, as many as fit into the request.
    whole = np.flatnonzero(is_idle)
    whole = whole[np.lexsort((~is_own[whole], -sizes[whole]))]  # larger nodes first: fewer of them
    reached = np.cumsum(sizes[whole])
    filled = int(np.searchsorted(reached, want.gpus, side="right"))
    counts = dict(zip(whole[:filled].tolist(), sizes[whole[:filled]].tolist(), strict=True))
    rest = want.gpus - (int(reached[filled - 1]) if filled else 0)
    # What remains goes on one more node: one that it holds already, else the tightest fit.
    if rest > largest:
        return {}
    if rest:
        left = free.copy()
        left[whole[:filled]] = 0
        own_fits = np.flatnonzero(is_own & (left >= rest))
        node = int(own_fits[0]) if len(own_fits) else best_fit(left, rest)
        if node < 0:
            return {}
        counts[node] = rest
    return counts


def _evenly(free: IntArray, is_own: BoolArray, counts: tuple[int, ...]) -> dict[int, int]:
    if not counts:
        return {}
    fits = np.flatnonzero(free >= counts[0])
    fits = fits[np.lexsort((free[fits], ~is_own[fits]))][: len(counts)]
    return dict(zip(fits.tolist(), counts, strict=False)) if len(fits) == len(counts) else {}
