"""After the policy was asked: what its plan may keep, and what is cut off it."""

import numpy as np

from stretto.live.bounds.counts import Bound
from stretto.live.bounds.desk import Desk
from stretto.live.bounds.keeping import kept_of
from stretto.model import JobId, Placement, Why


def tighten(desk: Desk, placement: Placement) -> bool:
    """Where a plan exceeds a bound, limit its jobs to what they may keep of it; whether any did."""
    exceeded = False
    for bound in desk.bounds:
        planned = _planned(desk, bound, placement)
        if not planned:
            continue
        exceeded, room = True, bound.most
        served = {row for row, _ in planned}
        for row, gpus in planned:
            given = gpus if not _rank(desk, row)[0] else desk.allowed(row, min(gpus, room))
            desk.limit(row, bound, given)
            room -= given
        for row in np.flatnonzero(bound.rows & (desk.most > 0)).tolist():
            if row not in served:
                desk.limit(row, bound, 0)
    return exceeded


def cut(desk: Desk, placement: Placement) -> Placement:
    """The placement with permitted sizes only, and within every bound."""
    for name in desk.rules.sizes:
        row, held = desk.row_of.get(JobId(name)), placement.get(JobId(name))
        if row is None or held is None or held.profiling:
            continue
        size = desk.allowed(row, held.gpus)
        if size != held.gpus:
            placement = _cut_one(desk, placement, row, size)
    for bound in desk.bounds:
        planned = _planned(desk, bound, placement)
        excess = sum(gpus for _, gpus in planned) - bound.most
        for row, gpus in reversed(planned):
            if excess <= 0 or not _rank(desk, row)[0]:
                break
            left = desk.allowed(row, max(gpus - excess, 0))
            placement = _cut_one(desk, placement, row, left)
            excess -= gpus - left
            if not left:
                desk.note(row, bound)
    return _off_reserved(desk, placement)


def _planned(desk: Desk, bound: Bound, placement: Placement) -> list[tuple[int, int]]:
    """(row, GPUs) of those that are bound, by who is served first; empty where they keep to the bound."""
    rows, gpus = desk.counts.holding(bound, placement), desk.counts.columns(placement)[0]
    if int(gpus[rows].sum()) <= bound.most:
        return []
    found = zip(rows.tolist(), gpus[rows].tolist(), strict=True)
    return sorted(found, key=lambda one: _rank(desk, one[0]))


def _rank(desk: Desk, row: int) -> tuple[bool, int, bool, int]:
    job = desk.of[row]
    waits = job.id not in desk.snapshot.placement
    return (job.preemptible or waits, -job.priority, waits, row)


def _off_reserved(desk: Desk, placement: Placement) -> Placement:
    """Who cannot be moved does not start on nodes that will be reserved before it ends."""
    cluster = desk.snapshot.cluster
    for one in desk.rules.reservations:
        if not one.nodes or one.from_s <= desk.snapshot.now_s:
            continue
        nodes = set(one.places_on(cluster).tolist())
        for row, job in enumerate(desk.of):
            held = placement.get(job.id)
            new = held is not None and job.id not in desk.snapshot.placement
            if not new or job.preemptible or one.serves(job.user, job.queue):
                continue
            if desk.lasts(job) > one.from_s and not nodes.isdisjoint(held.nodes):
                placement = placement.changed({job.id: None})
                desk.why[row] = (Why.RESERVED, one.words)
    return placement


def _cut_one(desk: Desk, placement: Placement, row: int, gpus: int) -> Placement:
    job = desk.of[row].id
    before = desk.snapshot.placement.get(job)
    return placement.changed({job: kept_of(placement[job], gpus, before) if gpus else None})
