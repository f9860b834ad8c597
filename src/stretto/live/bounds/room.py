"""Before the policy is asked: bounds are set, and what exceeds them or was borrowed is taken back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf

import numpy as np

from stretto.live.bounds.counts import ANY, Bound
from stretto.live.bounds.desk import Desk
from stretto.live.bounds.showing import open_nodes
from stretto.live.state.reservations import Reservation
from stretto.model import IntArray, Job, Why

MOST_CLAIMS = 256  # jobs for which GPUs are taken back in one decision; chosen


def make_room(desk: Desk) -> None:
    """Set the bounds; take back what exceeds them, and what was borrowed from those who wait."""
    _reserve(desk)
    for name, queue in desk.rules.queues.items():
        rows = np.array([job.queue == name for job in desk.of], dtype=np.bool_)
        assert queue.quota_gpus is not None
        staying = sum(held.gpus for job, held in desk.staying() if job.queue == name)
        most = max(queue.quota_gpus + queue.borrow_gpus - staying, 0)
        desk.bounds.append(Bound(rows, ANY, most, Why.QUOTA, "", name, staying))
    for bound in desk.bounds:
        _shed(desk, bound)
    _give_back(desk)
    for bound in desk.bounds:
        if bound.queue:
            _bound_queue(desk, bound)
        for row in np.flatnonzero(bound.rows & (desk.most > bound.most)).tolist():
            desk.limit(row, bound, bound.most)


def _reserve(desk: Desk) -> None:
    now_s, cluster, rules = desk.snapshot.now_s, desk.snapshot.cluster, desk.rules
    near = [one for one in rules.reservations if one.from_s - rules.lead_s <= now_s]
    later = [one for one in rules.reservations if one not in near and not one.nodes]
    for one in near:
        if one.nodes:
            nodes = one.places_on(cluster)
            users = np.array([one.serves(job.user, job.queue) for job in desk.of], dtype=np.bool_)
            if now_s < one.from_s:
                users[:] = False
            desk.closed.append((one, users, nodes))
            for row, job in enumerate(desk.of):
                if not one.serves(job.user, job.queue) and job.preemptible:
                    _leave(desk, row, job, nodes)
    _reserve_counts(desk, [one for one in near if not one.nodes], lambda job: True)
    for one in later:  # who cannot be moved does not start where it would be in the way
        _reserve_counts(
            desk,
            [one],
            lambda job, one=one: desk.lasts(job) > one.from_s and not job.preemptible,  # type: ignore[misc]
        )


def _reserve_counts(desk: Desk, reservations: Sequence[Reservation], binds: Callable[[Job], bool]) -> None:
    """Whoever has none of some reservations of a type leaves as many GPUs of it as these together are."""
    cluster, capacity = desk.snapshot.cluster, desk.snapshot.capacity
    by_kind: dict[int, list[Reservation]] = {}
    for one in reservations:
        gpus_of = one.gpus_by_type(cluster)
        for name in gpus_of:
            if name in cluster.type_names:
                by_kind.setdefault(cluster.type_index(name), []).append(one)
    for kind, some in by_kind.items():
        name = cluster.type_names[kind]
        for count in range(1, len(some) + 1):
            for group in combinations(some, count):

                def is_bound(job: Job, group: Sequence[Reservation] = group) -> bool:
                    return binds(job) and not any(one.serves(job.user, job.queue) for one in group)

                rows = np.array([is_bound(job) for job in desk.of], dtype=np.bool_)
                kept = sum(one.gpus_by_type(cluster)[name] for one in group)
                words = " and ".join(one.words for one in group)
                staying = sum(  # on nodes of the capacity, which closed ones are not
                    mask.bit_count()
                    for job, held in desk.staying()
                    if held.kind == kind and is_bound(job)
                    for node, mask in zip(held.nodes, held.masks, strict=True)
                    if desk.snapshot.usable[node]
                )
                most = max(int(capacity[kind]) - kept - staying, 0)
                desk.bounds.append(Bound(rows, kind, most, Why.RESERVED, words, staying=staying))


def _leave(desk: Desk, row: int, job: Job, nodes: IntArray) -> None:
    """Off reserved nodes, with everything: what remained elsewhere would be too small for some."""
    held = desk.placement.get(job.id)
    if held is not None and not set(held.nodes).isdisjoint(nodes.tolist()):
        desk.release(job)


def _shed(desk: Desk, bound: Bound) -> None:
    excess = desk.held(bound) - bound.most
    for row in desk.holders(bound) if excess > 0 else ():
        excess -= desk.take(row, excess)
        if excess <= 0:
            break


def _give_back(desk: Desk) -> None:
    """What was borrowed goes to jobs of other queues that wait within their quotas, as they need it.

    Only where it lets them start. As long as somebody could, nobody borrows more.
    """
    borrowers = [bound for bound in desk.bounds if bound.queue]
    quota = {one.queue: desk.rules.queues[one.queue].quota_gpus or 0 for one in borrowers}
    held = {one.queue: desk.held(one) + one.staying for one in borrowers}
    free = _free(desk)
    jobs, order = desk.snapshot.jobs, []
    for row in np.flatnonzero((jobs.held_gpus == 0) & (desk.most > 0)).tolist():
        job = desk.of[row]
        if held.get(job.queue, 0) + job.min_gpus <= quota.get(job.queue, inf):
            order.append(row)
    order.sort(key=lambda row: (-desk.of[row].priority, row))
    for row in order[:MOST_CLAIMS]:
        job = desk.of[row]
        if held.get(job.queue, 0) + job.min_gpus > quota.get(job.queue, inf):
            continue
        kind = _room_for(desk, row, free, held, quota)
        if kind is None:
            continue
        desk.claims.add(job.queue)
        free[kind] -= job.min_gpus
        if job.queue in held:
            held[job.queue] += job.min_gpus


def _room_for(
    desk: Desk, row: int, free: IntArray, held: dict[str, int], quota: dict[str, int]
) -> int | None:
    """A type of which a job can have enough once others have given back what they borrowed."""
    job = desk.of[row]
    kinds: list[int] = np.flatnonzero(desk.kinds[row]).tolist()
    for kind in kinds:
        if free[kind] >= job.min_gpus:
            return int(kind)
    for kind in kinds:
        before, placement = dict(held), desk.placement
        missing = job.min_gpus - int(free[kind])
        for bound in desk.bounds:
            if not bound.queue or bound.queue == job.queue:
                continue
            for one in desk.holders(replace(bound, kind=kind)):
                over = held[bound.queue] - quota[bound.queue]
                if over <= 0 or missing <= 0:
                    break
                given = desk.take(one, min(over, missing))
                held[bound.queue] -= given
                missing -= given
        if missing <= 0:
            free[kind] = job.min_gpus - missing
            return int(kind)
        held.update(before)
        desk.placement = placement
    return None


def _free(desk: Desk) -> IntArray:
    """(types,) GPUs that anybody may have."""
    usable = desk.snapshot.usable & open_nodes(desk)
    gpus = np.where(usable, desk.placement.free, 0)
    cluster = desk.snapshot.cluster
    return np.bincount(cluster.kind, gpus, len(cluster.types)).astype(np.int64)


def _bound_queue(desk: Desk, bound: Bound) -> None:
    """No more than the quota is had anew while somebody else could start within theirs."""
    queue = desk.rules.queues[bound.queue]
    assert queue.quota_gpus is not None
    if desk.claims - {bound.queue}:
        bound.most = min(bound.most, max(queue.quota_gpus - bound.staying, desk.held(bound)))
    lent = f", and {queue.borrow_gpus} that it may borrow" if queue.borrow_gpus else ""
    holds = desk.held(bound) + bound.staying
    bound.said = f"queue {bound.queue} has {queue.quota_gpus} GPUs{lent}, and holds {holds}"
