"""Before the policy is asked: limits are set, and what exceeds them or was borrowed is taken back."""

from dataclasses import replace

import numpy as np

from stretto.model import IntArray, Job, Placement, Why, lowest_gpus
from stretto.model.fair_share import ROOT
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.limits import ANY, Limit
from stretto.scheduler.constraints.non_preemptible import (
    NonPreemptibleRoom,
    limit_non_preemptible,
    non_preemptible_room,
)
from stretto.scheduler.constraints.offers import Claim
from stretto.scheduler.constraints.reservations import reserve
from stretto.scheduler.constraints.views import open_nodes

MOST_CLAIMS = 256  # jobs for which GPUs are taken back in one decision; chosen


def make_room(draft: Draft) -> None:
    """Set the limits; take back what exceeds them, and what was borrowed from those who wait."""
    reserve(draft)
    tree = draft.hierarchy
    for name in tree.innermost_first():
        rows = np.array([name in tree.line(job.queue) for job in draft.of], dtype=np.bool_)
        staying = sum(held.gpus for job, held in draft.staying() if name in tree.line(job.queue))
        most = max(tree.most(name) - staying, 0)
        draft.limits.append(Limit(rows, ANY, most, Why.QUOTA, "", name, staying, tree.most(name)))
    limit_non_preemptible(draft)
    for limit in draft.limits:
        _shed(draft, limit)
    _give_back(draft)
    for limit in draft.limits:
        if limit.queue:
            _limit_queue(draft, limit)
        for row in np.flatnonzero(limit.rows & (draft.most > limit.most)).tolist():
            draft.cap(row, limit, limit.most)


def _shed(draft: Draft, limit: Limit) -> None:
    """What is held beyond a limit is taken, where queues in it hold more than their quota first."""
    excess = draft.held(limit) - limit.most
    if excess <= 0:
        return
    tree = draft.hierarchy
    if limit.queue and draft.constraints.parents:
        held = _held_by_queue(draft)
        for row in draft.holders(limit):
            spare = tree.spare(held, draft.of[row].queue, within=limit.queue)
            if spare is not None and spare > 0 and excess > 0:
                given = draft.take(row, min(excess, spare))
                tree.add(held, draft.of[row].queue, -given)
                excess -= given
    for row in draft.holders(limit) if excess > 0 else ():
        excess -= draft.take(row, excess)
        if excess <= 0:
            break


def _held_by_queue(draft: Draft) -> dict[str, int]:
    """GPUs that each queue with a quota holds, with all that is in it."""
    return {one.queue: draft.held(one) + one.staying for one in draft.limits if one.queue}


def _give_back(draft: Draft) -> None:
    """What was borrowed goes to jobs of other queues that wait within their quotas, as they need it.

    Only where it lets them start. As long as somebody could, nobody borrows more.
    """
    tree, held = draft.hierarchy, _held_by_queue(draft)
    free, room = _free(draft), non_preemptible_room(draft)
    jobs = draft.snapshot.jobs
    waiting = np.flatnonzero((jobs.held_gpus == 0) & (draft.most > 0)).tolist()
    order = [row for row in waiting if _claims(draft, draft.of[row], held, room)]
    order.sort(key=lambda row: (-draft.of[row].priority, row))
    for row in order[:MOST_CLAIMS]:
        job = draft.of[row]
        claims = _claims(draft, job, held, room)
        if not claims:
            continue
        before = draft.placement
        kind = _room_for(draft, row, claims, free, held)
        if kind is None:
            continue
        if draft.placement is not before and tree.guarded(job.queue):
            draft.claimed.append(_claim(draft, job, kind, before))
        draft.claims |= set(claims)
        draft.promised[job.queue] += job.min_gpus
        free[kind] -= job.min_gpus
        tree.add(held, job.queue, job.min_gpus)
        room.take(job)


Claims = list[tuple[str, str | None]]


def _claims(draft: Draft, job: Job, held: dict[str, int], room: NonPreemptibleRoom) -> Claims:
    """Where a job that waits is within what is guaranteed, nearest first; see `Hierarchy.claims`."""
    tree = draft.hierarchy
    if not room.fits(job):
        return []
    return [
        (around, part)
        for around, part in tree.claims(job.queue)
        if part not in held or held[part] + job.min_gpus <= tree.quota(part)
    ]


def _room_for(draft: Draft, row: int, claims: Claims, free: IntArray, held: dict[str, int]) -> int | None:
    """A type of which a job can have enough once others have given back what they borrowed.

    Parts of the same queue give back first, then parts of what that is in.
    """
    job, tree = draft.of[row], draft.hierarchy
    for kind in np.flatnonzero(draft.kinds[row]).tolist():
        if free[kind] >= job.min_gpus and not _lacks(draft, job, held):
            return int(kind)
    for kind in np.flatnonzero(draft.kinds[row]).tolist():
        before, placement = dict(held), draft.placement
        missing = job.min_gpus - int(free[kind])
        for around, part in claims:
            lacks = max(missing, _lacks(draft, job, held, within=around))
            for limit in draft.limits:
                if not limit.queue or limit.queue == part or tree.parent(limit.queue) != around:
                    continue
                for one in draft.holders(replace(limit, kind=kind)):
                    over = tree.spare(held, draft.of[one].queue, beside=job.queue)
                    if over is not None and over <= 0 and not draft.constraints.parents:
                        break
                    if over is None or over <= 0 or lacks <= 0:
                        continue
                    if _outranks(draft, one, row) and not tree.guarded(job.queue):
                        continue
                    given = draft.take(one, min(over, lacks))
                    tree.add(held, draft.of[one].queue, -given)
                    missing -= given
                    lacks -= given
        if missing <= 0 and not _lacks(draft, job, held):
            free[kind] = job.min_gpus - missing
            return int(kind)
        held.clear()
        held.update(before)
        draft.placement = placement
    return None


def _lacks(draft: Draft, job: Job, held: dict[str, int], within: str | None = None) -> int:
    """GPUs that queues around a job hold too many for it to start; within: only this one and those around."""
    tree = draft.hierarchy
    line = tree.guarded(job.queue) if within is None else tree.guarded_path(within)
    return max(0, *(held[one] + job.min_gpus - tree.most(one) for one in line), 0)


def _outranks(draft: Draft, holder: int, row: int) -> bool:
    """Whether a holder has the higher priority: it would take back what no guarantee protects."""
    return draft.constraints.priorities_act and draft.of[holder].priority > draft.of[row].priority


def _claim(draft: Draft, job: Job, kind: int, before: Placement) -> Claim:
    """The GPUs on which a job can start now: those that were given back for it, then others that are free."""
    cluster, busy = draft.snapshot.cluster, draft.placement.busy
    full = (np.int64(1) << cluster.node_gpus) - 1
    for one in draft.claimed:
        for node, mask in one.masks.items():
            full[node] &= ~mask
    usable = draft.snapshot.usable & open_nodes(draft) & (cluster.kind == kind)
    masks: dict[int, int] = {}
    missing = job.min_gpus
    for pool in (before.busy & ~busy & full, ~busy & full):
        for node in np.flatnonzero(usable & (pool > 0)).tolist():
            rest = int(pool[node]) & ~masks.get(node, 0)
            mask = lowest_gpus(rest, min(rest.bit_count(), missing))
            missing -= mask.bit_count()
            if mask:
                masks[node] = masks.get(node, 0) | mask
    return Claim(job.id, job.priority, masks)


def _growth(draft: Draft, queue: str) -> int:
    """GPUs by which a queue can grow without a job that is within its quota making room for it.

    Those that are free and promised to nobody else, as far as queues around it let it have them, and those
    that other queues hold beyond their quotas.
    """
    tree, held = draft.hierarchy, _held_by_queue(draft)
    promised = sum(gpus for name, gpus in draft.promised.items() if queue not in tree.line(name))
    most = max(int(_free(draft).sum()) - promised, 0) + _lent(draft, queue, ROOT, held)
    for around in tree.path(queue)[:-1]:
        if around in held:
            slack = max(tree.most(around) - held[around], 0)
            most = min(most, slack + _lent(draft, queue, around, held))
    return most


def _lent(draft: Draft, queue: str, within: str, held: dict[str, int]) -> int:
    """GPUs that queues in this one hold beyond their quotas, beside those that the queue is in."""
    tree, line = draft.hierarchy, draft.hierarchy.path(queue)
    around = [ROOT, *line[:-1]]
    levels = around[around.index(within) :]
    return sum(
        max(held[one] - tree.quota(one), 0) for one in held if one not in line and tree.parent(one) in levels
    )


def _free(draft: Draft) -> IntArray:
    """(types,) GPUs that anybody may have."""
    usable = draft.snapshot.usable & open_nodes(draft)
    gpus = np.where(usable, draft.placement.free, 0)
    cluster = draft.snapshot.cluster
    return np.bincount(cluster.kind, gpus, len(cluster.types)).astype(np.int64)


def _limit_queue(draft: Draft, limit: Limit) -> None:
    """No more than the quota is had anew while somebody else could start within theirs."""
    queue, around = draft.hierarchy.queues[limit.queue], draft.hierarchy.parent(limit.queue)
    quota_gpus = draft.hierarchy.quota(limit.queue)
    if any(claim[0] == around and claim[1] != limit.queue for claim in draft.claims):
        limit.most = min(limit.most, max(quota_gpus - limit.staying, draft.held(limit)))
    elif (
        draft.constraints.priorities_act
    ):  # else a policy that stops jobs for others would do so for borrowers
        room = draft.held(limit) + _growth(draft, limit.queue)
        limit.most = min(limit.most, max(quota_gpus - limit.staying, room))
    lent = f", and {queue.borrow_gpus} that it may borrow" if queue.borrow_gpus else ""
    holds = draft.held(limit) + limit.staying
    limit.evidence = f"queue {limit.queue} has {queue.quota_gpus} GPUs{lent}, and holds {holds}"
