"""Where the fewest jobs are (PL-SPREAD), as Gandiva does for a low load."""

from dataclasses import dataclass

from stretto.model import Pinned, Placement, Shares, Snapshot
from stretto.place.draft import Draft, Want
from stretto.place.fill import fill
from stretto.place.shapes import NOT_ENOUGH, all_in_workers, at, holds_on, over_nodes


@dataclass(frozen=True)
class Spread:
    """On the node with the fewest jobs that has room, else over nodes by fewest jobs; most free breaks ties.

    Gandiva (Xiao et al., OSDI 2018), as far as its placement goes. Deviation: nodes are not reserved for
    jobs of one size, and no GPU is shared.
    """

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Every share for which the GPUs are there."""
        return fill(snapshot, shares, (on_fewest_jobs,))


def on_fewest_jobs(draft: Draft, want: Want) -> bool:
    """PL-SPREAD. A growing job keeps its GPUs."""
    free = draft.free_of(want.kind)
    allocation = want.held
    own = holds_on(allocation, want.kind, len(free))
    if want.nodes <= 1 and (allocation is None or own.sum() == 0 or len(allocation.nodes) == 1):
        node = _least_loaded(draft, want)
        if node >= 0:
            return draft.give(want, Pinned((node,), (want.gpus,)))
    if want.nodes == 1:
        return False
    counts = over_nodes(all_in_workers(free, want.each), want.gpus, own, draft.jobs_on)
    return bool(counts) and draft.give(want, at(counts))


def _least_loaded(draft: Draft, want: Want) -> int:
    free = draft.free_of(want.kind)
    if want.held is not None and free[want.held.nodes[0]] >= want.gpus:
        return want.held.nodes[0]
    load = draft.jobs_on * 64 + (63 - free)  # a node has at most 62 GPUs: fewest jobs, then most free
    load[free < want.gpus] = NOT_ENOUGH
    node = int(load.argmin())
    return node if load[node] != NOT_ENOUGH else -1
