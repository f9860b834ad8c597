"""Workers of several GPUs: no two nodes share one, whatever the rule and the policy say."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from stretto.model import Cluster, Shares, Snapshot
from stretto.place.draft import Draft, Want
from stretto.place.shapes import all_in_workers, at, best_fit, holds_on, in_workers

TRIES = 8  # chosen: numbers of workers that are tried where there is no room for all


def with_workers(cluster: Cluster, want: Want, sizes: tuple[int, ...]) -> Want:
    """The wish of a job for whole workers of these sizes by type, on as many nodes as they need at least."""
    want = want._replace(workers=sizes)
    if not want.nodes or want.kind < 0:
        return want
    room = in_workers(int(cluster.gpus_per_node[want.kind]), sizes[want.kind])
    return want._replace(nodes=max(want.nodes, -(-want.gpus // room))) if room else want


def without_broken(snapshot: Snapshot, shares: Shares) -> Shares:
    """The shares, but pins that would break a worker are none: the placer has its way there."""
    large, jobs, kind_of = snapshot.large_workers, snapshot.jobs, snapshot.cluster.kind
    broken = [
        row
        for row, pin in shares.pinned.items()
        if large is not None and large[row] and not jobs.heterogeneous[row]
        if any(gpus % snapshot.worker_gpus(row)[kind_of[pin.nodes[0]]] for gpus in pin.gpus)
    ]
    if not broken:
        return shares
    nodes = shares.nodes.copy()
    nodes[broken] = 0
    pinned = {row: pin for row, pin in shares.pinned.items() if row not in broken}
    return replace(shares, pinned=pinned, nodes=nodes)


def keeps_workers(rule: Callable[[Draft, Want], bool]) -> Callable[[Draft, Want], bool]:
    """The rule, which finds no place for a job where that would break one of its workers."""

    def place(draft: Draft, want: Want) -> bool:
        before = draft.mark()
        if not rule(draft, want):
            return False
        allocation = draft.current(want.job)
        each = want.workers[want.kind]
        if allocation is None or not any(gpus % each for gpus in allocation.shape):
            return True
        draft.undo(before)
        return False

    return place


def on_idle_nodes(draft: Draft, want: Want) -> bool:
    """Nodes of which all GPUs are free, those with room for most workers first, and a tight one at last.

    On an empty cluster this finds a place for all that fits, also where pieces of one size would not.
    """
    each = want.workers[want.kind]
    free = draft.free_of(want.kind)
    left = all_in_workers(np.where(free == draft.cluster.node_gpus, free, 0), each)
    is_own = holds_on(want.held, want.kind, len(free)) > 0
    counts: dict[int, int] = {}
    rest = want.gpus
    for node in np.lexsort((-left, ~is_own)).tolist():
        if left[node] > rest:  # this is more than the rest needs: the tightest does
            node = best_fit(left, rest)
        if rest == 0 or left[node] == 0:
            break
        counts[node] = min(int(left[node]), rest)
        rest -= counts[node]
        left[node] = 0
    if rest or want.gpus % each or want.nodes not in (0, len(counts)):
        return False
    return draft.give(want, at(counts))


def fewer_workers(draft: Draft, want: Want, fewest: int, step: int) -> Iterator[Want]:
    """What a job may have instead where there is no room for all its workers: most first.

    fewest: GPUs on which it can run on this type. A job that runs is only asked whether it may grow.
    step: by how many GPUs it grows; a number of whole workers.
    """
    each, fewest = want.workers[want.kind], max(fewest, step)
    if want.held is not None and want.held.kind == want.kind:
        fewest = max(fewest, want.held.gpus + step)
    rooms = np.sort(all_in_workers(draft.free_of(want.kind), each))[::-1]
    limit = draft.cluster.types[want.kind].max_nodes_per_job
    room = int(rooms[: limit or None].sum())
    most = in_workers(min(room, want.gpus - 1), step)
    for gpus in range(most, max(fewest - 1, most - TRIES * step), -step):
        yield want._replace(gpus=gpus, nodes=0)
