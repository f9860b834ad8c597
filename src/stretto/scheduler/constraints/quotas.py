"""Before the policy is asked: limits are set, and what exceeds them or was borrowed is taken back."""

from dataclasses import replace
from math import inf

import numpy as np

from stretto.model import IntArray, Job, Placement, Why, lowest_gpus
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.limits import ANY, Limit
from stretto.scheduler.constraints.offers import Claim
from stretto.scheduler.constraints.reservations import reserve
from stretto.scheduler.constraints.views import open_nodes

MOST_CLAIMS = 256  # jobs for which GPUs are taken back in one decision; chosen


def make_room(draft: Draft) -> None:
    """Set the limits; take back what exceeds them, and what was borrowed from those who wait."""
    reserve(draft)
    for name, queue in draft.constraints.queues.items():
        rows = np.array([job.queue == name for job in draft.of], dtype=np.bool_)
        assert queue.quota_gpus is not None
        staying = sum(held.gpus for job, held in draft.staying() if job.queue == name)
        most = max(queue.quota_gpus + queue.borrow_gpus - staying, 0)
        draft.limits.append(Limit(rows, ANY, most, Why.QUOTA, "", name, staying))
    for limit in draft.limits:
        _shed(draft, limit)
    _give_back(draft)
    for limit in draft.limits:
        if limit.queue:
            _limit_queue(draft, limit)
        for row in np.flatnonzero(limit.rows & (draft.most > limit.most)).tolist():
            draft.cap(row, limit, limit.most)


def _shed(draft: Draft, limit: Limit) -> None:
    excess = draft.held(limit) - limit.most
    for row in draft.holders(limit) if excess > 0 else ():
        excess -= draft.take(row, excess)
        if excess <= 0:
            break


def _give_back(draft: Draft) -> None:
    """What was borrowed goes to jobs of other queues that wait within their quotas, as they need it.

    Only where it lets them start. As long as somebody could, nobody borrows more.
    """
    borrowers = [limit for limit in draft.limits if limit.queue]
    quota = {one.queue: draft.constraints.queues[one.queue].quota_gpus or 0 for one in borrowers}
    held = {one.queue: draft.held(one) + one.staying for one in borrowers}
    free = _free(draft)
    jobs, order = draft.snapshot.jobs, []
    for row in np.flatnonzero((jobs.held_gpus == 0) & (draft.most > 0)).tolist():
        job = draft.of[row]
        if held.get(job.queue, 0) + job.min_gpus <= quota.get(job.queue, inf):
            order.append(row)
    order.sort(key=lambda row: (-draft.of[row].priority, row))
    for row in order[:MOST_CLAIMS]:
        job = draft.of[row]
        if held.get(job.queue, 0) + job.min_gpus > quota.get(job.queue, inf):
            continue
        before = draft.placement
        kind = _room_for(draft, row, free, held, quota)
        if kind is None:
            continue
        if draft.placement is not before and job.queue in quota:
            draft.claimed.append(_claim(draft, job, kind, before))
        draft.claims.add(job.queue)
        free[kind] -= job.min_gpus
        if job.queue in held:
            held[job.queue] += job.min_gpus


def _room_for(
    draft: Draft, row: int, free: IntArray, held: dict[str, int], quota: dict[str, int]
) -> int | None:
    """A type of which a job can have enough once others have given back what they borrowed."""
    job = draft.of[row]
    kinds: list[int] = np.flatnonzero(draft.kinds[row]).tolist()
    for kind in kinds:
        if free[kind] >= job.min_gpus:
            return int(kind)
    for kind in kinds:
        before, placement = dict(held), draft.placement
        missing = job.min_gpus - int(free[kind])
        for limit in draft.limits:
            if not limit.queue or limit.queue == job.queue:
                continue
            for one in draft.holders(replace(limit, kind=kind)):
                over = held[limit.queue] - quota[limit.queue]
                if over <= 0 or missing <= 0:
                    break
                if _outranks(draft, one, row) and job.queue not in quota:
                    continue
                given = draft.take(one, min(over, missing))
                held[limit.queue] -= given
                missing -= given
        if missing <= 0:
            free[kind] = job.min_gpus - missing
            return int(kind)
        held.update(before)
        draft.placement = placement
    return None


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


def _free(draft: Draft) -> IntArray:
    """(types,) GPUs that anybody may have."""
    usable = draft.snapshot.usable & open_nodes(draft)
    gpus = np.where(usable, draft.placement.free, 0)
    cluster = draft.snapshot.cluster
    return np.bincount(cluster.kind, gpus, len(cluster.types)).astype(np.int64)


def _limit_queue(draft: Draft, limit: Limit) -> None:
    """No more than the quota is had anew while somebody else could start within theirs."""
    queue = draft.constraints.queues[limit.queue]
    assert queue.quota_gpus is not None
    if draft.claims - {limit.queue}:
        limit.most = min(limit.most, max(queue.quota_gpus - limit.staying, draft.held(limit)))
    lent = f", and {queue.borrow_gpus} that it may borrow" if queue.borrow_gpus else ""
    holds = draft.held(limit) + limit.staying
    limit.evidence = f"queue {limit.queue} has {queue.quota_gpus} GPUs{lent}, and holds {holds}"
