"""How many GPUs on how many nodes, and which nodes: arithmetic of counts, with no notion of jobs."""

import numpy as np

from stretto.model import Allocation, IntArray, Pinned
from stretto.model.cluster import MAX_GPUS_PER_NODE

NOT_ENOUGH = np.iinfo(np.int64).max
_ROOMY = np.arange(MAX_GPUS_PER_NODE + 1)
FEWEST_FREE = np.where(_ROOMY[:, None] <= _ROOMY, _ROOMY, NOT_ENOUGH)
"""(asked, free) how loosely a request fits the free GPUs of a node: best fit is the least."""


def pieces(gpus: int, nodes: int, node_gpus: int, each: int = 1) -> tuple[int, ...]:
    """GPUs on each of several nodes, largest first: nodes filled one by one, or evenly on more than needed.

    nodes: how many; 0 as few as can be. Empty where so few nodes do not have so many GPUs.
    each: GPUs of one worker, which divide the request; no worker lies on two nodes.
    """
    room = in_workers(node_gpus, each)
    if not room:
        return ()
    whole, rest = divmod(gpus, room)
    fewest = whole + (rest > 0)
    if nodes in (0, fewest):
        return (room,) * whole + (rest,) * (rest > 0)
    workers = gpus // each
    if not fewest < nodes <= workers:
        return ()
    fewer, more = divmod(workers, nodes)
    return ((fewer + 1) * each,) * more + (fewer * each,) * (nodes - more)


def in_workers(gpus: int, each: int) -> int:
    """As many of these GPUs as make whole workers of `each`."""
    return gpus - gpus % each


def all_in_workers(free: IntArray, each: int) -> IntArray:
    """(nodes,) the same of each node; for workers of one GPU the same array."""
    return free if each == 1 else free - free % each


def at(counts: dict[int, int]) -> Pinned:
    """GPUs on nodes, as a place."""
    nodes = tuple(sorted(counts))
    return Pinned(nodes, tuple(counts[node] for node in nodes))


def holds_on(held: Allocation | None, kind: int, nodes: int) -> IntArray:
    """(nodes,) GPUs that a job holds on each node; zeros where it holds none of this type."""
    counts = np.zeros(nodes, dtype=np.int64)
    if held is not None and held.kind == kind:
        counts[list(held.nodes)] = held.shape
    return counts


def tightest_counts(gpus: int, fit: IntArray = FEWEST_FREE) -> tuple[int, ...]:
    """Numbers of free GPUs of a node into which a request fits, the tightest first."""
    key = gpus, id(fit)
    if key not in _COUNTS:
        fits = np.flatnonzero(fit[gpus] != NOT_ENOUGH)
        _COUNTS[key] = tuple(fits[np.argsort(fit[gpus][fits], kind="stable")].tolist())
    return _COUNTS[key]


_COUNTS: dict[tuple[int, int], tuple[int, ...]] = {}  # by request and table; the few tables live for ever


def best_fit(free: IntArray, gpus: int, fit: IntArray = FEWEST_FREE) -> int:
    """The node on which a request fits most tightly, ties by index; -1 where it fits none."""
    looseness = fit[gpus][free]
    node = int(looseness.argmin())
    return node if looseness[node] != NOT_ENOUGH else -1


def over_nodes(free: IntArray, gpus: int, own: IntArray, turn: IntArray) -> dict[int, int]:
    """A request spread over nodes by increasing `turn`, then most free first; empty where it cannot be.

    free, own, turn: (nodes,). What a job owns is among the free and is used first, then the rest of the nodes
    where it owns some. A request is not smaller than what is owned.
    """
    own = np.minimum(own, free)
    spare = free - own
    order = np.lexsort((-spare, turn, own == 0))
    reached = np.cumsum(spare[order])
    missing = gpus - int(own.sum())
    if missing < 0 or reached[-1] < missing:
        return {}
    counts = own
    last = int(np.searchsorted(reached, missing))
    counts[order[:last]] += spare[order[:last]]
    counts[order[last]] += missing - (int(reached[last - 1]) if last else 0)
    used = counts.nonzero()[0]
    return dict(zip(used.tolist(), counts[used].tolist(), strict=True))
