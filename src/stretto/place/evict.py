"""Make room by moving other jobs, where counts say that there is room and its shape is wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from stretto.model import Allocation, JobId, Pinned, Shares, Snapshot
from stretto.place.draft import Draft, Want
from stretto.place.fill import Rule

LOOK = 64  # chosen: openings compared before the best is taken; one more costs some 20 microseconds
TRIES = (
    8  # chosen: openings tried before a job is left waiting; where sizes are powers of two the first works
)


class Opening(NamedTuple):
    """Room that a node could offer to one piece of a job. Smaller is better."""

    restarts: int  # running jobs that would have to move, and would not restart anyway
    moved_gpus: int  # of all that would have to move
    tie: int  # breaks ties; different for every opening
    where: Pinned
    victims: tuple[JobId, ...]


Victim = tuple[bool, int, JobId, Allocation]
"""(it would have to restart, its GPUs, the job, what it holds)"""


@dataclass(frozen=True, eq=False)
class Movable:
    """Which jobs may be moved, and for which it costs a restart.

    The policy did not pin them, and they are no running ones that may not be stopped.
    """

    snapshot: Snapshot
    shares: Shares

    @cached_property
    def _row_of(self) -> dict[JobId, int]:
        return dict(zip(self.snapshot.jobs.ids, range(len(self.snapshot.jobs)), strict=True))

    def victims_on(self, draft: Draft, node: int, smaller_than: int) -> list[Victim]:
        """Those on a node that a piece of this size may displace."""
        found = []
        for job, held in draft.on(node).items():
            if len(held.nodes) == 1 and held.gpus < smaller_than and self._may_move(job):
                restarts = self._is_settled(job) and draft.current(job) is draft.before.get(job)
                found.append((restarts, held.gpus, job, held))
        return found

    def _may_move(self, job: JobId) -> bool:
        row = self._row_of.get(job, -1)
        if row < 0 or not self.shares.gpus[row] or row in self.shares.pinned:
            return False
        jobs = self.snapshot.jobs
        return bool(jobs.preemptible[row] or not jobs.held_gpus[row])

    def _is_settled(self, job: JobId) -> bool:
        """Whether it runs on as many GPUs as it is to have, so that a move would be its only change."""
        row = self._row_of[job]
        return bool(self.snapshot.jobs.held_gpus[row] == self.shares.gpus[row])


Openings = Callable[[Draft, int, int, Movable, bool], Iterator[Opening]]
"""(draft, kind, GPUs of a piece, who is movable, whether it is one of several pieces) → what is on offer,
beginning with the nodes that have most GPUs free."""


def moving_others(
    snapshot: Snapshot,
    shares: Shares,
    sizes: Callable[[Draft, Want], tuple[int, ...]],
    openings: Openings,
    fit: Rule,
) -> Rule:
    """The rule that moves others to place a job in pieces of these sizes."""
    who = Movable(snapshot, shares)

    def rule(draft: Draft, want: Want) -> bool:
        in_pieces = sizes(draft, want)
        if not in_pieces:
            return False
        return place_by_moving_others(draft, want, in_pieces, openings, who, fit)

    return rule


def most_free_first(draft: Draft, kind: int, size: int, from_the_end: bool = False) -> Iterator[int]:
    """The nodes of a type that have so many GPUs at all, those with most free first; ties by index."""
    has = draft.cluster.node_gpus
    return (node for node in draft.nodes_of(kind).roomiest_first(from_the_end) if has[node] >= size)


def openable_first(draft: Draft, kind: int, size: int, from_the_end: bool = False) -> Iterator[int]:
    """Of these the nodes on which free GPUs and those of smaller jobs are enough, in the same order.

    Any other node has no victims that would do. On a large cluster that is full they are nearly all.
    """
    reach = draft.free + draft.held_by_size[:size].sum(axis=0)
    nodes = np.flatnonzero((draft.cluster.kind == kind) & (draft.cluster.node_gpus >= size) & (reach >= size))
    nodes = nodes[::-1] if from_the_end else nodes
    return iter(nodes[np.argsort(-draft.free[nodes], kind="stable")].tolist())


def place_by_moving_others(
    draft: Draft,
    want: Want,
    sizes: tuple[int, ...],
    openings: Openings,
    who: Movable,
    fit: Rule,
    tries: int = TRIES,
) -> bool:
    """Give a job its pieces, and every job displaced another place; all of it or nothing.

    A piece displaces only single-node jobs smaller than itself, which find room by `fit` or in the same way.
    Sizes fall at every step, so this ends. Let all sizes be powers of two, and all jobs movable. Then a node
    whose larger jobs leave room for the piece exists whenever the counts fit, so this succeeds: Sia's
    covering argument (section 3.3).
    """
    for way in islice(_ways(draft, want.kind, sizes, openings, who), tries):
        # Try one way on the draft itself; `undo` takes back all of it where a displaced job finds no place.
        mark = draft.mark()
        victims = [(job, draft.lift(job)) for opening in way for job in opening.victims]
        moved = [ask_again(draft, job, allocation) for job, allocation in victims if allocation is not None]
        if draft.give(want, _joined(way)) and all(
            fit(draft, other)
            or place_by_moving_others(draft, other, (other.gpus,), openings, who, fit, tries=1)
            for other in sorted(moved, key=lambda other: -other.gpus)
        ):
            return True
        draft.undo(mark)
    return False


def _ways(
    draft: Draft, kind: int, sizes: tuple[int, ...], openings: Openings, who: Movable
) -> Iterator[tuple[Opening, ...]]:
    """One piece: every opening, best first. Several: the best for each in turn, on nodes of their own."""
    if len(sizes) == 1:
        yield from ((offer,) for offer in sorted(islice(openings(draft, kind, sizes[0], who, False), LOOK)))
        return
    chosen: dict[int, Opening] = {}
    for size in sorted(set(sizes), reverse=True):
        wanted = len(chosen) + sizes.count(size)
        for offer in sorted(islice(openings(draft, kind, size, who, True), LOOK + 2 * wanted)):
            if len(chosen) < wanted:
                chosen.setdefault(offer.where.nodes[0], offer)
    if len(chosen) == len(sizes):
        yield tuple(chosen[node] for node in sorted(chosen))


def ask_again(draft: Draft, job: JobId, held: Allocation) -> Want:
    """What a displaced job needs elsewhere: as many GPUs of the same type, for the same use."""
    before = draft.before.get(job)
    keeps = before if before is not None and before.gpus == held.gpus and before.kind == held.kind else held
    return Want(job, held.gpus, held.kind, 1, keeps, profiling=held.profiling, cpus=held.cpus)


def _joined(way: tuple[Opening, ...]) -> Pinned:
    return Pinned(
        tuple(opening.where.nodes[0] for opening in way),
        tuple(opening.where.gpus[0] for opening in way),
        tuple(mask for opening in way for mask in opening.where.masks),
    )
