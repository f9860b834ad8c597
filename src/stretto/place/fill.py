"""From shares to a placement: the steps that all rules have in common."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from stretto.model import Allocation, BadPlan, BoolArray, Cluster, Pinned, Placement, Shares, Snapshot
from stretto.place.draft import Draft, Want, shrunk
from stretto.place.topology import narrow
from stretto.place.whole_workers import (
    fewer_workers,
    keeps_workers,
    on_idle_nodes,
    with_workers,
    without_broken,
)

Rule = Callable[[Draft, Want], bool]
"""Gives a job that holds nothing what it wants, of one GPU type. False: nothing done."""


class Placer(Protocol):
    """Which GPUs, exactly?"""

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """A placement of every share that can be placed; a job left out waits."""


def fill(
    snapshot: Snapshot,
    shares: Shares,
    rules: Sequence[Rule],
    moving: Sequence[Rule] = (),
    may_split: bool = True,
) -> Placement:
    """Place what changed, by the first of `rules` that finds room; the rest stays exactly as it is.

    moving: rules that move other jobs to make room, tried after all others.

    1. A job whose share is what it holds keeps its GPUs, and so does one that the snapshot does not list.
    2. What shrinks keeps a part of its GPUs; what stops, moves or lost a node lets go of them. With
       `may_split` off, a job that would fit a node is not left on several: it is placed anew.
    3. Shares that say exactly where (`shares.pinned`) get exactly that.
    4. The others take turns: in the order that the policy states, else larger first, ties by row. Until
       then a growing job holds on to its GPUs.
    5. A job of several nodes goes into the smallest domain of the network that can hold it, where the cluster
       has a topology (`topology.narrow`). No job is moved for that.
    6. A running job for which no room is found stays where it is, if its GPUs are still free.
    7. A job of workers of several GPUs has whole ones, where the world asks for it. A pin that breaks one is
       no pin. Where the rules find no room it has idle nodes, or as many workers as there is room for.

    A node that is only closed to these jobs is not lost to one that may not be preempted
    (`Snapshot.kept_on_closed`).

    Python loops run over changed jobs only; a decision that changes nothing returns the same placement.
    """
    if shares.pinned and snapshot.large_workers is not None:
        shares = without_broken(snapshot, shares)
    rows, lost = rows_to_settle(snapshot, shares)
    if not rows:
        return snapshot.placement
    draft = Draft(snapshot)
    near_rules, moving = [*map(near, rules)], [*map(kept_near, moving)]
    rules = [*near_rules, *moving]
    for_workers = [*map(keeps_workers, near_rules), near(on_idle_nodes), *map(keeps_workers, moving)]
    wants = {row: _want(snapshot, shares, row) for row in rows}
    for row in rows:
        # Steps 1 and 2: what is settled by letting go, or by keeping a part, is done.
        if _lets_go(draft, wants[row], row in lost or row in shares.pinned, may_split):
            del wants[row]
    # Step 3; where an order is stated, a pin that fails blocks all that wait behind it.
    blocked = not _pin(draft, shares, wants)
    for row in _turns(shares, list(wants)):
        want = wants[row]
        # Steps 4 to 6. Behind a job that found no room nothing new starts; what runs goes on.
        if blocked and want.held is None:
            continue
        placed = _settle(draft, snapshot, row, want, for_workers if want.workers else rules)
        blocked = blocked or (shares.in_order and not placed)
    return draft.placement()


def near(rule: Rule) -> Rule:
    """The rule, which finds a job of several nodes a place in a small domain of the network."""

    def place(draft: Draft, want: Want) -> bool:
        if not rule(draft, want):
            return False
        wide = draft.current(want.job)
        if wide is None or len(wide.nodes) == 1 or (want.within < 0 and not draft.cluster.levels):
            return True
        draft.lift(want.job)
        for nodes in narrow(draft, want, wide):
            with draft.only(nodes):
                if rule(draft, want):
                    return True
        if want.within < 0:
            draft.put(want.job, wide)
        return want.within < 0

    return place


def kept_near(rule: Rule) -> Rule:
    """The rule, which finds no place for a job where that would be further apart than the job may be."""

    def place(draft: Draft, want: Want) -> bool:
        before = draft.mark()
        if not rule(draft, want):
            return False
        allocation = draft.current(want.job)
        if want.within < 0 or (allocation is not None and len(allocation.nodes) == 1):
            return True
        draft.undo(before)
        return False

    return place


def rows_to_settle(snapshot: Snapshot, shares: Shares) -> tuple[list[int], set[int]]:
    """The rows whose share is not what they hold, in order, and which of them lost a node."""
    jobs = snapshot.jobs
    if snapshot.all_usable and shares.keep_all(jobs):
        return [], set()
    differs = shares.gpus != jobs.held_gpus
    elsewhere = (shares.kind != jobs.held_kind) & (shares.kind >= 0)
    elsewhere |= (shares.nodes != jobs.held_nodes) & (shares.nodes > 0)
    differs |= elsewhere & (shares.gpus > 0)
    lost = set() if snapshot.all_usable else _rows_on_lost_nodes(snapshot)
    if lost:
        differs[list(lost)] = True
    for row, pin in shares.pinned.items():
        if shares.gpus[row] > 0:
            allocation = snapshot.placement.get(jobs[row].id)
            differs[row] = row in lost or allocation is None or not is_at(allocation, pin)
    if shares.profiling is not None or shares.cpus is not None:
        differs |= _differs_in_kind(snapshot, shares) & (shares.gpus > 0)
    return differs.nonzero()[0].tolist(), lost


def _differs_in_kind(snapshot: Snapshot, shares: Shares) -> BoolArray:
    """(jobs,) whether what a running job holds its GPUs for changes: to profile or to train, or its cores."""
    differs = np.zeros(len(shares.gpus), dtype=np.bool_)
    for row in snapshot.jobs.held_gpus.nonzero()[0].tolist():
        held = snapshot.placement[snapshot.jobs[row].id]
        differs[row] = (held.profiling, held.cpus) != _kind_of_run(shares, row)
    return differs


def _kind_of_run(shares: Shares, row: int) -> tuple[bool, float]:
    profiling = shares.profiling is not None and bool(shares.profiling[row])
    return profiling, float(shares.cpus[row]) if shares.cpus is not None else 0.0


def _rows_on_lost_nodes(snapshot: Snapshot) -> set[int]:
    placement = snapshot.placement
    lost = set(np.flatnonzero(~snapshot.usable & (placement.busy != 0)).tolist())
    if not lost:
        return set()
    running = snapshot.jobs.held_gpus.nonzero()[0].tolist()
    rows = {row for row in running if not lost.isdisjoint(placement[snapshot.jobs[row].id].nodes)}
    return rows - snapshot.kept_on_closed


def _want(snapshot: Snapshot, shares: Shares, row: int) -> Want:
    job = snapshot.jobs[row]
    gpus, kind, nodes = int(shares.gpus[row]), int(shares.kind[row]), int(shares.nodes[row])
    run = _kind_of_run(shares, row)
    within = _level(snapshot.cluster, job.within) if job.within else -1
    before = snapshot.placement.get(job.id)
    want = Want(job.id, gpus, kind, nodes, before, job.heterogeneous, *run, within)
    large = snapshot.large_workers
    if large is None or not large[row]:
        return want
    return with_workers(snapshot.cluster, want, snapshot.worker_gpus(row))


def _level(cluster: Cluster, name: str) -> int:
    """A level by name; one further inside than all, of single nodes, where the cluster does not have it."""
    return cluster.levels.index(name) if name in cluster.levels else len(cluster.levels)


def _lets_go(draft: Draft, want: Want, moves: bool, may_split: bool) -> bool:
    """Release what a job no longer holds for sure; True where nothing is left to do for it."""
    allocation = want.held
    if want.gpus == 0:
        draft.lift(want.job)
        return True
    if allocation is None:
        return False
    if moves or want.kind not in (-1, allocation.kind):
        draft.lift(want.job)
    elif want.gpus < allocation.gpus:
        draft.lift(want.job)
        smaller = shrunk(draft.cluster, allocation, want)
        split = len(smaller.nodes) > 1 and want.gpus <= draft.cluster.gpus_per_node[smaller.kind]
        if want.nodes == len(smaller.nodes) or (want.nodes == 0 and (may_split or not split)):
            draft.put(want.job, smaller)
            return True
    return False


def _pin(draft: Draft, shares: Shares, wants: dict[int, Want]) -> bool:
    """Place what is pinned and forget it; whether that blocks no job behind it."""
    if not shares.pinned:
        return True
    pinned = [row for row in wants if row in shares.pinned]
    failed = []
    for row in sorted(pinned, key=lambda row: not shares.pinned[row].masks):  # named GPUs come first
        want = wants.pop(row)
        check_pin(draft.cluster, want, shares.pinned[row])
        if not draft.give_exactly(want, shares.pinned[row]):
            failed.append(want)
    stayed = [_stays(draft, want, want.held) for want in failed]
    return all(stayed) or not shares.in_order


def _turns(shares: Shares, rows: list[int]) -> list[int]:
    if len(rows) < 2:
        return rows
    by_size = sorted(rows, key=lambda row: -int(shares.gpus[row]))
    if shares.order is None:
        return by_size
    waiting = np.zeros(len(shares.gpus), dtype=np.bool_)
    waiting[rows] = True
    stated: list[int] = shares.order[waiting[shares.order]].tolist()
    waiting[stated] = False
    return stated + [row for row in by_size if waiting[row]]


def _settle(draft: Draft, snapshot: Snapshot, row: int, want: Want, rules: Sequence[Rule]) -> bool:
    current = draft.lift(want.job)  # may be elsewhere than in the snapshot: a rule may have moved it
    kinds = _kinds(draft, snapshot, row, want)
    for rule in rules:
        for kind in kinds:
            if rule(draft, want if kind == want.kind else want._replace(kind=kind)):
                return True
    if want.workers and _has_fewer(draft, snapshot, row, want, kinds, rules):
        return True
    return _stays(draft, want, current or want.held)


def _has_fewer(
    draft: Draft, snapshot: Snapshot, row: int, want: Want, kinds: Sequence[int], rules: Sequence[Rule]
) -> bool:
    """Give a job fewer workers than it is to have. Counts cannot tell the policy how many are whole."""
    for kind in kinds:
        fewest, step = int(snapshot.jobs.fewest_gpus[row, kind]), int(snapshot.jobs.worker_gpus[row, kind])
        for fewer in fewer_workers(draft, want._replace(kind=kind), fewest, step):
            if any(rule(draft, fewer) for rule in rules):
                return True
    return False


def _stays(draft: Draft, want: Want, at: Allocation | None) -> bool:
    """Leave a job that ran where it was, without what its share no longer covers, if that is still free."""
    kept = shrunk(draft.cluster, at, want) if at else None
    if kept is None or not draft.is_free(kept):
        return False
    draft.put(want.job, kept)
    return True


def _kinds(draft: Draft, snapshot: Snapshot, row: int, want: Want) -> Sequence[int]:
    """The GPU types to try: the stated one, else that which it holds, else those with most GPUs free."""
    if want.kind >= 0:
        return (want.kind,)
    jobs, cluster = snapshot.jobs, draft.cluster
    allowed = jobs.requests.allowed_kinds[jobs.rows[row]]
    if len(cluster.types) == 1:
        return (0,) if allowed[0] else ()
    free = _free_by_kind(cluster, draft)
    kind_before = want.held.kind if want.held else -1
    accepted = [kind for kind in range(len(free)) if allowed[kind] and (free[kind] >= want.gpus)]
    return sorted(accepted, key=lambda kind: (kind != kind_before, -free[kind]))


def _free_by_kind(cluster: Cluster, draft: Draft) -> list[int]:
    counts: list[int] = np.bincount(cluster.kind, draft.free, len(cluster.types)).astype(np.int64).tolist()
    return counts


# Shares that say exactly where a job is to run.


def is_at(held: Allocation, pin: Pinned) -> bool:
    """Whether what a job holds is what the pin says, batch sizes and flexible workers included."""
    if (held.nodes, held.local_batch, held.flexible) != (pin.nodes, pin.local_batch, pin.flexible):
        return False
    return held.masks == pin.masks if pin.masks else held.shape == pin.gpus


def check_pin(cluster: Cluster, want: Want, pin: Pinned) -> None:
    """Raise BadPlan where a pin contradicts itself, the share or the types that the job may have."""
    # The counts, the named GPUs, the order of nodes, the flexible ones; last the type.
    if sum(pin.gpus) != want.gpus or min(pin.gpus, default=0) < 1 or len(pin.gpus) != len(pin.nodes):
        raise BadPlan(
            f"job {want.job} is pinned to {pin.gpus} GPUs of nodes {pin.nodes}, expected {want.gpus} in all"
        )
    if pin.masks and tuple(mask.bit_count() for mask in pin.masks) != pin.gpus:
        named = ", ".join(f"{mask:b}" for mask in pin.masks)
        raise BadPlan(f"job {want.job} is pinned to GPUs {named}, expected {pin.gpus} of them")
    if any(a >= b for a, b in zip(pin.nodes, pin.nodes[1:], strict=False)):
        raise BadPlan(f"job {want.job} is pinned to nodes {pin.nodes}, expected them in increasing order")
    if pin.flexible and (
        len(pin.flexible) != len(pin.masks)
        or any(some & ~mask for some, mask in zip(pin.flexible, pin.masks, strict=True))
    ):
        raise BadPlan(f"job {want.job} is pinned with flexible GPUs that are not among those it is to hold")
    if want.mixes:
        return
    kinds = {int(cluster.kind[node]) for node in pin.nodes}
    if len(kinds) > 1 or want.kind not in (-1, *kinds):
        names = [cluster.type_names[kind] for kind in sorted(kinds)]
        stated = "one type" if want.kind < 0 else cluster.type_names[want.kind]
        raise BadPlan(f"job {want.job} is pinned to GPUs of {names}, expected {stated}")
