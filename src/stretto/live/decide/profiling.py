"""Which job is to run on one GPU of which type, so that what is not known of its model becomes known.

Sia (SOSP 2023), section 3.2, profiles every model on one GPU of each type before it is scheduled. Here the
first job of a model trains on one worker of one type after the other, moving as jobs do, so that nothing of
it is wasted; once a type has been measured, or has had its time, it is done with. Later jobs of the model
know the points and are free from the beginning.
"""

from collections.abc import Mapping

import numpy as np

from stretto.live.state.records import JobRecord
from stretto.live.state.state import State
from stretto.model import Adaptivity, BoolArray

LONGEST_S = 120.0  # on one type, if nothing is reported meanwhile; chosen: reports come every 30 s


def profiles_of(state: State, now_s: float) -> Mapping[str, int]:
    """By job, the type on which it is to run with one worker now; the oldest of each model."""
    cluster, placement = state.cluster, state.placement
    if cluster is None or placement is None or len(cluster.types) < 2:
        return {}
    found: dict[str, int] = {}
    models: set[str] = set()
    free = np.bincount(cluster.kind, np.where(state.usable(), placement.free, 0), len(cluster.types))
    for record in state.open_jobs():
        model = record.spec.model
        if not model or model in models or not _may_profile(record):
            continue
        models.add(model)
        allowed = np.array(
            [not record.job.gpu_types or name in record.job.gpu_types for name in cluster.type_names]
        )
        kind = _next_type(state, record, allowed, free >= record.job.gpus_per_worker, now_s)
        if kind is not None:
            found[record.id] = kind
    return found


def _may_profile(record: JobRecord) -> bool:
    """Whether it can run on one worker, and go on elsewhere; who was profiled beforehand need not."""
    job = record.job
    fits = job.adaptivity is not Adaptivity.RIGID and job.min_gpus <= job.gpus_per_worker
    speaks = record.speaks is not False and (record.speaks or not record.attempt)
    waits = record.held or bool(record.ending)
    return bool(fits and speaks and job.preemptible and not waits and not record.learned.profile)


def _next_type(
    state: State, record: JobRecord, allowed: BoolArray, is_free: BoolArray, now_s: float
) -> int | None:
    """The type that it holds while that is unknown, else the first unknown one that is free."""
    prior = state.models.get(record.spec.model)
    each = record.job.gpus_per_worker
    known = {int(point[0]) for point in (prior.points if prior is not None else ()) if point[2] <= each}
    books = record.books
    for kind in np.flatnonzero(allowed).tolist():
        here_s = now_s - books.held_since_s if books.held_gpus and books.kind == kind else 0.0
        if books.on_type_s.get(kind, 0.0) + here_s >= LONGEST_S:
            known.add(kind)
    unknown = [kind for kind in np.flatnonzero(allowed).tolist() if kind not in known]
    if books.held_gpus and books.kind in unknown:
        return books.kind
    return next((kind for kind in unknown if is_free[kind]), None)
