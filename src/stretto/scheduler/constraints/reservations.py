"""What reservations keep from all other jobs: nodes that they close, and GPUs that must stay free.

The users of reserved nodes are decided on these nodes first, and everything else afterwards on the rest. So
the policy plans parts of the cluster one after the other. One question cannot do it, since a policy is told
which types a job may use, not which nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from stretto.model import (
    BoolArray,
    IntArray,
    Job,
    Placement,
    Reservation,
    Snapshot,
    Why,
    ints,
)
from stretto.scheduler.constraints.context import DecisionContext, Limit
from stretto.scheduler.constraints.job_rows import select_jobs


def reserve(context: DecisionContext) -> None:
    """Close reserved nodes, and limit all other jobs to what reservations of a type leave."""
    now_s, cluster, constraints = context.snapshot.now_s, context.snapshot.cluster, context.constraints
    near = [
        reservation
        for reservation in constraints.reservations
        if reservation.from_s - constraints.lead_s <= now_s
    ]
    later = [
        reservation
        for reservation in constraints.reservations
        if reservation not in near and not reservation.nodes
    ]
    # Named nodes: its users may use them once it has begun; others that can be stopped leave before that.
    for reservation in near:
        if reservation.nodes:
            nodes = reservation.places_on(cluster)
            users = np.array([context.may_use(job, reservation) for job in context.jobs], dtype=np.bool_)
            for job, is_user in zip(context.jobs, users.tolist(), strict=True):
                if not is_user and job.preemptible:
                    _leave(context, job, nodes)
            if now_s < reservation.from_s:
                users[:] = False
            context.closed.append((users, nodes))
    keep_nodes(context)
    # GPUs by number: all others leave so many.
    _reserve_counts(context, [reservation for reservation in near if not reservation.nodes], lambda job: True)
    # A job that cannot be moved does not start where it would be in the way later.
    for reservation in later:
        from_s = reservation.from_s
        _reserve_counts(
            context,
            [reservation],
            lambda job, from_s=from_s: context.ends_s(job) > from_s and not job.preemptible,  # type: ignore[misc]
        )


def keep_nodes(context: DecisionContext) -> None:
    """Close nodes that take only some jobs to all others; jobs for which too little is left wait.

    A node that is reserved as well takes jobs that may use both.
    """
    for kept in context.constraints.kept:
        able = np.array([job.id in kept.jobs for job in context.jobs], dtype=np.bool_)
        left, reserved = {*kept.nodes}, context.closed.copy()
        context.closed.clear()
        for users, nodes in reserved:
            both = left & {*nodes.tolist()}
            left -= both
            context.closed.append((users, ints([node for node in nodes.tolist() if node not in both])))
            context.closed.append((users & able, ints(sorted(both))))
        context.closed.append((able, ints(sorted(left))))
    if context.constraints.kept:
        _hold_others(context, "; ".join(kept.words for kept in context.constraints.kept))


def _hold_others(context: DecisionContext, words: str) -> None:
    """Leave out jobs that would fit with closed nodes only, and may use none of them."""
    snapshot, jobs = context.snapshot, context.snapshot.jobs
    cluster, rest = snapshot.cluster, snapshot.usable & open_nodes(context)
    gpus = np.bincount(cluster.kind, np.where(rest, cluster.node_gpus, 0), len(cluster.types))
    too_few = (jobs.fewest_gpus > gpus) & (jobs.fewest_gpus <= snapshot.capacity)
    waits = ~jobs.heterogeneous & (~jobs.allowed_kinds | (jobs.fewest_gpus > gpus)).all(axis=1)
    waits &= (jobs.allowed_kinds & too_few).any(axis=1)
    for users, nodes in context.closed:
        waits &= ~users | (nodes.size == 0)
    for row in np.flatnonzero(waits).tolist():
        if context.jobs[row].id not in context.placement:
            context.most[row], context.why[row] = 0, (Why.RESERVED, words)


def _leave(context: DecisionContext, job: Job, nodes: IntArray) -> None:
    """Off reserved nodes, with everything: what remained elsewhere would be too small for some."""
    allocation = context.placement.get(job.id)
    if allocation is not None and not set(allocation.nodes).isdisjoint(nodes.tolist()):
        context.release(job)


def _reserve_counts(
    context: DecisionContext, reservations: Sequence[Reservation], binds: Callable[[Job], bool]
) -> None:
    """A job that may use none of some reservations of a type leaves as many GPUs as these together are."""
    cluster, capacity = context.snapshot.cluster, context.snapshot.capacity
    by_type: dict[int, list[Reservation]] = {}
    for reservation in reservations:
        for name in reservation.gpus_by_type(cluster):
            if name in cluster.type_names:
                by_type.setdefault(cluster.type_index(name), []).append(reservation)
    # A job may use some of them, and is limited by the others only: so each combination is a limit.
    for gpu_type, of_type in by_type.items():
        name = cluster.type_names[gpu_type]
        for count in range(1, len(of_type) + 1):
            for group in combinations(of_type, count):

                def is_limited(job: Job, group: Sequence[Reservation] = group) -> bool:
                    return binds(job) and not any(context.may_use(job, member) for member in group)

                rows = np.array([is_limited(job) for job in context.jobs], dtype=np.bool_)
                reserved_gpus = sum(member.gpus_by_type(cluster)[name] for member in group)
                words = " and ".join(member.words for member in group)
                staying = sum(  # on nodes of the capacity, which closed ones are not
                    mask.bit_count()
                    for job, allocation in context.staying()
                    if is_limited(job)
                    for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
                    if context.snapshot.usable[node] and cluster.kind[node] == gpu_type
                )
                most = max(int(capacity[gpu_type]) - reserved_gpus - staying, 0)
                context.limits.append(Limit(rows, gpu_type, most, Why.RESERVED, words, staying=staying))


def keep_clear_of_reservations(context: DecisionContext, placement: Placement) -> Placement:
    """Without starts of jobs that cannot be moved, on nodes that will be reserved while they are there."""
    cluster = context.snapshot.cluster
    for reservation in context.constraints.reservations:
        if not reservation.nodes or reservation.from_s <= context.snapshot.now_s:
            continue
        nodes = set(reservation.places_on(cluster).tolist())
        for row, job in enumerate(context.jobs):
            allocation = placement.get(job.id)
            starts = allocation is not None and job.id not in context.snapshot.placement
            if not starts or job.preemptible or context.may_use(job, reservation):
                continue
            if context.ends_s(job) > reservation.from_s and not nodes.isdisjoint(allocation.nodes):
                placement = placement.changed({job.id: None})
                context.why[row] = (Why.RESERVED, reservation.words)
    return placement


# ── parts of the cluster ──────────────────────────────────────────────────────────────────────────


def open_nodes(context: DecisionContext) -> BoolArray:
    """(nodes,) that no reservation keeps."""
    is_open = np.ones(len(context.snapshot.cluster.nodes), dtype=np.bool_)
    for _, nodes in context.closed:
        is_open[nodes] = False
    return is_open


def reserved_partitions(context: DecisionContext) -> Iterator[tuple[BoolArray, BoolArray]]:
    """(nodes, jobs that may use them), of each reservation of named nodes that is in force."""
    waits = np.array([job.id not in context.placement for job in context.jobs], dtype=np.bool_)
    for users, nodes in context.closed:
        if users.any() and nodes.size:
            inside = np.zeros(len(context.snapshot.cluster.nodes), dtype=np.bool_)
            inside[nodes] = True
            yield inside, users & (holds_some_of(context, context.placement, inside) | waits)


def holds_some_of(context: DecisionContext, placement: Placement, nodes: BoolArray) -> BoolArray:
    """(jobs,) which hold GPUs of some of these nodes."""
    allocations = [placement.get(job.id) for job in context.jobs]
    return np.array(
        [one is not None and bool(nodes[list(one.nodes)].any()) for one in allocations], dtype=np.bool_
    )


def filter_snapshot(
    context: DecisionContext, placement: Placement, rows: BoolArray, nodes: BoolArray
) -> Snapshot:
    """The snapshot with only these jobs, as far as they may have anything, and only these nodes.

    Jobs that may not be preempted stay on the others, as far as they are there already.
    """
    snapshot = context.snapshot
    visible = np.flatnonzero(rows & (context.most > 0))
    # Jobs that may have less than they asked for ask for less.
    names = snapshot.cluster.type_names
    fewer_types = (context.gpu_types != snapshot.jobs.allowed_kinds).any(axis=1)
    limited = fewer_types | (context.most < snapshot.jobs.max_gpus)
    requests: dict[int, Job] = {}
    for row in visible[limited[visible]].tolist():
        job, most = context.jobs[row], int(context.most[row])
        if most < job.max_gpus:
            job = replace(job, max_gpus=most, gpus=min(job.gpus, most))
        if fewer_types[row]:
            allowed = np.flatnonzero(context.gpu_types[row]).tolist()
            job = replace(job, gpu_types=tuple(names[gpu_type] for gpu_type in allowed))
        requests[row] = job
    return replace(
        snapshot,
        usable=snapshot.usable & nodes,
        closed=snapshot.usable & ~nodes if context.constraints.parts_kept else None,
        jobs=select_jobs(snapshot.jobs, visible, requests, placement),
        placement=placement,
        constraints=snapshot.constraints.of_users,
    )
