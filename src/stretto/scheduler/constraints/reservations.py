"""What reservations keep from everybody else: nodes that they close, and GPUs that must stay free."""

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from stretto.model import IntArray, Job, Reservation, Why
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.limits import Limit


def reserve(draft: Draft) -> None:
    """Close reserved nodes, and limit everybody else to what reservations of a type leave."""
    now_s, cluster, constraints = draft.snapshot.now_s, draft.snapshot.cluster, draft.constraints
    near = [one for one in constraints.reservations if one.from_s - constraints.lead_s <= now_s]
    later = [one for one in constraints.reservations if one not in near and not one.nodes]
    for one in near:
        if one.nodes:
            nodes = one.places_on(cluster)
            users = np.array([draft.serves(one, job) for job in draft.of], dtype=np.bool_)
            if now_s < one.from_s:
                users[:] = False
            draft.closed.append((one, users, nodes))
            for row, job in enumerate(draft.of):
                if not draft.serves(one, job) and job.preemptible:
                    _leave(draft, row, job, nodes)
    _reserve_counts(draft, [one for one in near if not one.nodes], lambda job: True)
    for one in later:  # who cannot be moved does not start where it would be in the way
        _reserve_counts(
            draft,
            [one],
            lambda job, one=one: draft.lasts(job) > one.from_s and not job.preemptible,  # type: ignore[misc]
        )


def _reserve_counts(draft: Draft, reservations: Sequence[Reservation], binds: Callable[[Job], bool]) -> None:
    """Whoever has none of some reservations of a type leaves as many GPUs of it as these together are."""
    cluster, capacity = draft.snapshot.cluster, draft.snapshot.capacity
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

                def is_limited(job: Job, group: Sequence[Reservation] = group) -> bool:
                    return binds(job) and not any(draft.serves(one, job) for one in group)

                rows = np.array([is_limited(job) for job in draft.of], dtype=np.bool_)
                kept = sum(one.gpus_by_type(cluster)[name] for one in group)
                words = " and ".join(one.words for one in group)
                staying = sum(  # on nodes of the capacity, which closed ones are not
                    mask.bit_count()
                    for job, held in draft.staying()
                    if held.kind == kind and is_limited(job)
                    for node, mask in zip(held.nodes, held.masks, strict=True)
                    if draft.snapshot.usable[node]
                )
                most = max(int(capacity[kind]) - kept - staying, 0)
                draft.limits.append(Limit(rows, kind, most, Why.RESERVED, words, staying=staying))


def _leave(draft: Draft, row: int, job: Job, nodes: IntArray) -> None:
    """Off reserved nodes, with everything: what remained elsewhere would be too small for some."""
    held = draft.placement.get(job.id)
    if held is not None and not set(held.nodes).isdisjoint(nodes.tolist()):
        draft.release(job)
