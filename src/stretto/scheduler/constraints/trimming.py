"""After the policy was asked: what its plan may keep, and what is cut off it."""

from collections.abc import Iterator

import numpy as np

from stretto.model import JobId, Placement, Why
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.limits import Limit
from stretto.scheduler.constraints.parts import Parts
from stretto.scheduler.constraints.shrinking import kept_of


def tighten(draft: Draft, placement: Placement) -> bool:
    """Where a plan exceeds a limit, limit its jobs to what they may keep of it; whether any did."""
    exceeded = False
    for limit in draft.limits:
        planned = _planned(draft, limit, placement)
        if draft.constraints.parents:
            planned = _still_planned(draft, limit, planned)
        if not planned:
            continue
        exceeded = True
        served = {row for row, _ in planned}
        for row, given in _given_out(draft, limit, planned):
            draft.cap(row, limit, given)
        for row in np.flatnonzero(limit.rows & (draft.most > 0)).tolist():
            if row not in served:
                draft.cap(row, limit, 0)
    return exceeded


def is_within(draft: Draft, placement: Placement) -> bool:
    """Whether a plan exceeds no limit."""
    return not any(_planned(draft, limit, placement) for limit in draft.limits)


def cut(draft: Draft, placement: Placement) -> Placement:
    """The placement with permitted sizes only, and within every limit."""
    for name in draft.constraints.sizes:
        row, held = draft.row_of.get(JobId(name)), placement.get(JobId(name))
        if row is None or held is None or held.profiling:
            continue
        size = draft.allowed(row, held.gpus)
        if size != held.gpus:
            placement = _cut_one(draft, placement, row, size)
    for limit in draft.limits:
        planned = _planned(draft, limit, placement)
        excess = sum(gpus for _, gpus in planned) - limit.most
        least = dict(_given_out(draft, limit, planned)) if _has_parts(draft, limit) else {}
        for row, gpus in reversed(planned):
            if excess <= 0:
                break
            left = draft.allowed(row, max(gpus - excess, least.get(row, 0), _kept(draft, row)))
            if left == gpus:
                continue
            placement = _cut_one(draft, placement, row, left)
            excess -= gpus - left
            if not left:
                draft.note(row, limit)
    return _off_reserved(draft, placement)


def _planned(draft: Draft, limit: Limit, placement: Placement) -> list[tuple[int, int]]:
    """(row, GPUs) of those that are limited, by who is served first; empty where they keep to the limit."""
    rows, gpus = draft.holdings.holding(limit, placement), draft.holdings.columns(placement)[0]
    if int(gpus[rows].sum()) <= limit.most:
        return []
    found = zip(rows.tolist(), gpus[rows].tolist(), strict=True)
    return sorted(found, key=lambda one: rank(draft, one[0]))


def _still_planned(draft: Draft, limit: Limit, planned: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same without what limits of queues in this one leave out; empty where the rest keeps to it."""
    left = [(row, min(gpus, int(draft.most[row]))) for row, gpus in planned if draft.most[row] > 0]
    return left if sum(gpus for _, gpus in left) > limit.most else []


def _given_out(draft: Draft, limit: Limit, planned: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(row, GPUs) that each may keep of what was planned, in the same order.

    What a part of the limit's queue is guaranteed goes to none of its other parts, whatever their priority.
    """
    room, parts = limit.most, None
    if _has_parts(draft, limit):
        plan = [(draft.of[row].queue, gpus) for row, gpus in planned]
        parts = Parts(draft.hierarchy, limit.queue, plan)
    for row, gpus in planned:
        queue = draft.of[row].queue
        left = room if parts is None else max(room - parts.kept_for_others(queue), 0)
        given = draft.allowed(row, min(gpus, max(left, _kept(draft, row))))
        room -= given
        if parts is not None:
            parts.give(queue, gpus, given)
        yield row, given


def _has_parts(draft: Draft, limit: Limit) -> bool:
    """Whether parts of a limit's queue have guarantees; in decisions of old logs they had none there."""
    return bool(limit.queue and draft.constraints.parents and draft.constraints.quotas_kept)


def rank(draft: Draft, row: int) -> tuple[bool, int, bool, int]:
    """Who comes first where a limit is exceeded: the lowest rank."""
    job = draft.of[row]
    waits = job.id not in draft.snapshot.placement
    return (job.preemptible or waits, -job.priority, waits, row)


def _kept(draft: Draft, row: int) -> int:
    """GPUs that nobody takes from a job: what it holds, where it cannot be preempted."""
    job = draft.of[row]
    held = draft.snapshot.placement.get(job.id)
    return 0 if held is None or job.preemptible else held.gpus


def _off_reserved(draft: Draft, placement: Placement) -> Placement:
    """Who cannot be moved does not start on nodes that will be reserved before it ends."""
    cluster = draft.snapshot.cluster
    for one in draft.constraints.reservations:
        if not one.nodes or one.from_s <= draft.snapshot.now_s:
            continue
        nodes = set(one.places_on(cluster).tolist())
        for row, job in enumerate(draft.of):
            held = placement.get(job.id)
            new = held is not None and job.id not in draft.snapshot.placement
            if not new or job.preemptible or draft.serves(one, job):
                continue
            if draft.lasts(job) > one.from_s and not nodes.isdisjoint(held.nodes):
                placement = placement.changed({job.id: None})
                draft.why[row] = (Why.RESERVED, one.words)
    return placement


def _cut_one(draft: Draft, placement: Placement, row: int, gpus: int) -> Placement:
    job = draft.of[row].id
    before = draft.snapshot.placement.get(job)
    return placement.changed({job: kept_of(placement[job], gpus, before) if gpus else None})
