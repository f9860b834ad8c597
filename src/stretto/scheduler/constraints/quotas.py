"""Quotas: what a queue is guaranteed, what it may borrow, and how borrowed GPUs are taken back.

A queue may hold what it is guaranteed and what it may borrow. What it borrows goes back as soon as a job of
another queue waits within the guarantee of that queue, and can start with it. Jobs that cannot be preempted
borrow nothing, since what they hold cannot be taken back.
"""

from dataclasses import dataclass, replace

import numpy as np

from stretto.model import IntArray, Job, Placement, Why, lowest_gpus
from stretto.model.queue import ROOT
from stretto.scheduler.constraints.context import ANY_TYPE, DecisionContext, Limit
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.preemption import Claim
from stretto.scheduler.constraints.reservations import open_nodes

MOST_CLAIMS = 256  # jobs for which GPUs are taken back in one decision; chosen

QueueClaims = list[tuple[str, str | None]]  # (queue around, part of it): see `Hierarchy.claims`

# ── limits ────────────────────────────────────────────────────────────────────────────────────────


def limit_queues(context: DecisionContext) -> None:
    """Limit the jobs in each queue to its quota and what it may borrow."""
    tree = context.hierarchy
    for name in tree.innermost_first():
        rows = np.array([name in tree.line(job.queue) for job in context.jobs], dtype=np.bool_)
        staying = sum(
            allocation.gpus for job, allocation in context.staying() if name in tree.line(job.queue)
        )
        most = max(tree.most(name) - staying, 0)
        context.limits.append(Limit(rows, ANY_TYPE, most, Why.QUOTA, "", name, staying, tree.most(name)))


def limit_non_preemptible(context: DecisionContext) -> None:
    """Limit jobs that cannot be preempted to the quota of each queue around them, together.

    They are never stopped nor made smaller, so all that they hold counts. Where a queue borrows nothing, its
    own limit says the same.
    """
    tree, fixed = context.hierarchy, ~context.snapshot.jobs.preemptible
    if not context.constraints.quotas_kept or not fixed.any():
        return
    # Queues that may borrow. Where none may, as without quotas, no job needs to be looked at.
    borrowing = [name for name in tree.innermost_first() if tree.most(name) != tree.quota(name)]
    if not borrowing:
        return
    waits = np.array([job.id not in context.placement for job in context.jobs], dtype=np.bool_)
    for name in borrowing:
        quota_gpus = tree.quota(name)
        # The limit, with what jobs on closed nodes hold taken off it.
        inside = np.array([name in tree.line(job.queue) for job in context.jobs], dtype=np.bool_)
        staying = sum(
            allocation.gpus
            for job, allocation in context.staying()
            if not job.preemptible and name in tree.line(job.queue)
        )
        most = max(quota_gpus - staying, 0)
        limit = Limit(fixed & inside, ANY_TYPE, most, Why.MAY_NOT_BORROW, "", staying=staying)
        limit.ever = None if tree.queues[name].is_default else quota_gpus
        holds = context.usage_of(limit)
        limit.evidence = (
            f"queue {name} is guaranteed {quota_gpus} GPUs, of which jobs that cannot be preempted "
            f"hold {holds + staying}"
        )
        # A job that waits gets at most what those that run leave: they will not give any of it back.
        room = max(limit.most - holds, 0)
        for row in np.flatnonzero(limit.rows & waits & (context.most > room)).tolist():
            context.cap(row, limit, room)
        context.limits.append(limit)


def shed_excess(context: DecisionContext) -> None:
    """Take what is held beyond the limits."""
    for limit in context.limits:
        _shed(context, limit)


def _shed(context: DecisionContext, limit: Limit) -> None:
    """Take what is held beyond one, where queues in it hold more than their quota first."""
    excess = context.usage_of(limit) - limit.most
    if excess <= 0:
        return
    tree = context.hierarchy
    # First what parts of the queue hold beyond their own quotas ...
    if limit.queue and context.constraints.parents:
        usage = _usage_by_queue(context)
        for row in context.victims(limit):
            queue = context.jobs[row].queue
            spare = tree.spare(usage, queue, within=limit.queue)
            if spare is not None and spare > 0 and excess > 0:
                given_up = context.take(row, min(excess, spare))
                tree.add(usage, queue, -given_up)
                excess -= given_up
    # ... then whatever there is.
    for row in context.victims(limit) if excess > 0 else ():
        before = context.held(row, limit.gpu_type)
        context.take(row, excess, limit.gpu_type)
        excess -= before - context.held(row, limit.gpu_type)
        if excess <= 0:
            break


def cap_jobs(context: DecisionContext) -> None:
    """Let no queue borrow what others could use, and no job have more than its limits."""
    for limit in context.limits:
        if limit.queue:
            _limit_borrowing(context, limit)
        for row in np.flatnonzero(limit.rows & (context.most > limit.most)).tolist():
            context.cap(row, limit, limit.most)


def _limit_borrowing(context: DecisionContext, limit: Limit) -> None:
    """No more than the quota is had anew while a job of another queue could start within its own."""
    tree = context.hierarchy
    queue, around, quota_gpus = tree.queues[limit.queue], tree.parent(limit.queue), tree.quota(limit.queue)
    if any(claim[0] == around and claim[1] != limit.queue for claim in context.claims):
        limit.most = min(limit.most, max(quota_gpus - limit.staying, context.usage_of(limit)))
    elif context.constraints.priorities_act:
        # Else a policy that stops jobs for others would do so for borrowers.
        room = context.usage_of(limit) + _growth(context, limit.queue)
        limit.most = min(limit.most, max(quota_gpus - limit.staying, room))
    lent = f", and {queue.borrow_gpus} that it may borrow" if queue.borrow_gpus else ""
    holds = context.usage_of(limit) + limit.staying
    limit.evidence = f"queue {limit.queue} has {queue.quota_gpus} GPUs{lent}, and holds {holds}"


def _growth(context: DecisionContext, queue: str) -> int:
    """GPUs by which a queue can grow without a job that is within its quota making room for it.

    Those that are free and promised to no other queue, as far as queues around it let it have them. Those
    that other queues hold beyond their quotas count too.
    """
    tree, usage = context.hierarchy, _usage_by_queue(context)
    promised = sum(gpus for name, gpus in context.promised.items() if queue not in tree.line(name))
    most = max(int(_free_by_type(context).sum()) - promised, 0) + _lent(context, queue, ROOT, usage)
    for around in tree.path(queue)[:-1]:
        if around in usage:
            slack = max(tree.most(around) - usage[around], 0)
            most = min(most, slack + _lent(context, queue, around, usage))
    return most


def _lent(context: DecisionContext, queue: str, within: str, usage: dict[str, int]) -> int:
    """GPUs that queues in this one hold beyond their quotas, beside those that the queue is in."""
    tree, line = context.hierarchy, context.hierarchy.path(queue)
    around = [ROOT, *line[:-1]]
    levels = around[around.index(within) :]
    return sum(
        max(gpus - tree.quota(name), 0)
        for name, gpus in usage.items()
        if name not in line and tree.parent(name) in levels
    )


# ── borrowed GPUs are taken back ──────────────────────────────────────────────────────────────────


def preempt_borrowers(context: DecisionContext) -> None:
    """Take back what was borrowed for jobs of other queues that wait within their quotas, as they need it.

    Only where it lets them start. As long as one could, no queue borrows more.
    """
    if not context.hierarchy.queues:
        return
    tree, usage = context.hierarchy, _usage_by_queue(context)
    free, room = _free_by_type(context), _non_preemptible_room(context)
    # Jobs that wait within a guarantee, the highest priority first, then by submission.
    waiting = np.flatnonzero((context.snapshot.jobs.held_gpus == 0) & (context.most > 0)).tolist()
    in_order = [row for row in waiting if _claims_of(context, context.jobs[row], usage, room)]
    in_order.sort(key=lambda row: (-context.jobs[row].priority, row))
    for row in in_order[:MOST_CLAIMS]:
        job, before = context.jobs[row], context.placement
        claims = _claims_of(context, job, usage, room)  # again: those before it have taken some
        gpu_type = _make_room(context, row, claims, free, usage) if claims else None
        if gpu_type is None:
            continue
        # It can start: jobs of higher priority leave it what was given back for it.
        if context.placement is not before and tree.guarded(job.queue):
            context.claimed.append(_claim_gpus(context, job, gpu_type, before))
        context.claims |= set(claims)
        context.promised[job.queue] += job.min_gpus
        free[gpu_type] -= job.min_gpus
        tree.add(usage, job.queue, job.min_gpus)
        room.take(job)


def _claims_of(
    context: DecisionContext, job: Job, usage: dict[str, int], room: "NonPreemptibleRoom"
) -> QueueClaims:
    """Where a job that waits is within what is guaranteed, nearest first."""
    tree = context.hierarchy
    if not room.fits(job):
        return []
    return [
        (around, part)
        for around, part in tree.claims(job.queue)
        if part not in usage or usage[part] + job.min_gpus <= tree.quota(part)
    ]


def _make_room(
    context: DecisionContext, row: int, claims: QueueClaims, free: IntArray, usage: dict[str, int]
) -> int | None:
    """A type of which a job can have enough once others have given back what they borrowed; None for none.

    Parts of the same queue give back first, then parts of what that is in.
    """
    job, tree = context.jobs[row], context.hierarchy
    gpu_types = np.flatnonzero(context.gpu_types[row]).tolist()
    # Free GPUs may be enough.
    for gpu_type in gpu_types:
        if free[gpu_type] >= job.min_gpus and not _excess_with(context, job, usage):
            return int(gpu_type)
    # Else borrowers give back GPUs of one type, until it can start; where it cannot, they keep them.
    for gpu_type in gpu_types:
        usage_before, placement = dict(usage), context.placement
        missing = job.min_gpus - int(free[gpu_type])
        for around, part in claims:
            excess = max(missing, _excess_with(context, job, usage, within=around))
            for limit in context.limits:
                if not limit.queue or limit.queue == part or tree.parent(limit.queue) != around:
                    continue
                for victim in context.victims(replace(limit, gpu_type=gpu_type)):
                    queue = context.jobs[victim].queue
                    spare = tree.spare(usage, queue, beside=job.queue)
                    if spare is not None and spare <= 0 and not context.constraints.parents:
                        break
                    if spare is None or spare <= 0 or excess <= 0:
                        continue
                    # No guarantee protects a job without a quota from one that outranks it.
                    if _outranks(context, victim, row) and not tree.guarded(job.queue):
                        continue
                    of_type = context.held(victim, gpu_type)
                    given_up = context.take(victim, min(spare, excess), gpu_type)
                    tree.add(usage, queue, -given_up)
                    missing -= of_type - context.held(victim, gpu_type)
                    excess -= given_up
        if missing <= 0 and not _excess_with(context, job, usage):
            free[gpu_type] = job.min_gpus - missing
            return int(gpu_type)
        usage.clear()
        usage.update(usage_before)
        context.placement = placement
    return None


def _excess_with(context: DecisionContext, job: Job, usage: dict[str, int], within: str | None = None) -> int:
    """GPUs that queues around a job hold too many for it to start; within: only this one and those around."""
    tree = context.hierarchy
    line = tree.guarded(job.queue) if within is None else tree.guarded_path(within)
    return max(0, *(usage[name] + job.min_gpus - tree.most(name) for name in line), 0)


def _outranks(context: DecisionContext, holder: int, row: int) -> bool:
    """Whether a holder has the higher priority: it would take back what no guarantee protects."""
    priority = context.jobs[holder].priority
    return context.constraints.priorities_act and priority > context.jobs[row].priority


def _claim_gpus(context: DecisionContext, job: Job, gpu_type: int, before: Placement) -> Claim:
    """The GPUs on which a job can start now: those that were given back for it, then others that are free."""
    cluster, busy = context.snapshot.cluster, context.placement.busy
    unclaimed = (np.int64(1) << cluster.node_gpus) - 1
    for claim in context.claimed:
        for node, mask in claim.masks.items():
            unclaimed[node] &= ~mask
    usable = context.snapshot.usable & open_nodes(context) & (cluster.kind == gpu_type)
    masks: dict[int, int] = {}
    missing = job.min_gpus
    for pool in (before.busy & ~busy & unclaimed, ~busy & unclaimed):
        for node in np.flatnonzero(usable & (pool > 0)).tolist():
            rest = int(pool[node]) & ~masks.get(node, 0)
            mask = lowest_gpus(rest, min(rest.bit_count(), missing))
            missing -= mask.bit_count()
            if mask:
                masks[node] = masks.get(node, 0) | mask
    return Claim(job.id, job.priority, masks)


def _usage_by_queue(context: DecisionContext) -> dict[str, int]:
    """GPUs that each queue with a quota holds, with all that is in it."""
    return {limit.queue: context.usage_of(limit) + limit.staying for limit in context.limits if limit.queue}


def _free_by_type(context: DecisionContext) -> IntArray:
    """(types,) GPUs that are free and kept for no reservation."""
    usable = context.snapshot.usable & open_nodes(context)
    gpus = np.where(usable, context.placement.free, 0)
    cluster = context.snapshot.cluster
    return np.bincount(cluster.kind, gpus, len(cluster.types)).astype(np.int64)


@dataclass
class NonPreemptibleRoom:
    """GPUs that jobs that cannot be preempted may still get in each queue with a quota."""

    tree: Hierarchy
    left: dict[str, int]

    def fits(self, job: Job) -> bool:
        """Whether a job may start on its least size."""
        return job.preemptible or all(
            self.left[name] >= job.min_gpus for name in self.tree.guarded(job.queue) if name in self.left
        )

    def take(self, job: Job) -> None:
        """A job starts on its least size."""
        if not job.preemptible:
            self.tree.add(self.left, job.queue, -job.min_gpus)


def _non_preemptible_room(context: DecisionContext) -> NonPreemptibleRoom:
    """What is left for them now; nothing is bounded where they may borrow."""
    tree = context.hierarchy
    names = tree.innermost_first() if context.constraints.quotas_kept else []
    room = NonPreemptibleRoom(tree, {name: tree.quota(name) for name in names})
    if not names:
        return room
    holding = [(job, context.placement[job.id]) for job in context.jobs if job.id in context.placement]
    for job, allocation in [*holding, *context.staying()]:
        if not job.preemptible:
            tree.add(room.left, job.queue, -allocation.gpus)
    return room
