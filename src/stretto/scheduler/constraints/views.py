"""What the policy is shown: which jobs, of which nodes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stretto.model import NO_CONSTRAINTS, BoolArray, Job, Placement, Snapshot
from stretto.scheduler.constraints.draft import Draft
from stretto.scheduler.constraints.tables import some_of


def open_nodes(draft: Draft) -> BoolArray:
    """(nodes,) that are kept for nobody."""
    found = np.ones(len(draft.snapshot.cluster.nodes), dtype=np.bool_)
    for _, _, nodes in draft.closed:
        found[nodes] = False
    return found


def enclaves(draft: Draft) -> Iterator[tuple[BoolArray, BoolArray]]:
    """(nodes, jobs that may use them), of each reservation of named nodes that is in force."""
    for _, users, nodes in draft.closed:
        if users.any():
            there = np.zeros(len(draft.snapshot.cluster.nodes), dtype=np.bool_)
            there[nodes] = True
            mine = on_nodes(draft, draft.placement, there) | _holds_nothing(draft)
            yield there, users & mine


def _holds_nothing(draft: Draft) -> BoolArray:
    return np.array([job.id not in draft.placement for job in draft.of], dtype=np.bool_)


def on_nodes(draft: Draft, placement: Placement, nodes: BoolArray) -> BoolArray:
    """(jobs,) which hold GPUs of some of these nodes."""
    held = [placement.get(job.id) for job in draft.of]
    return np.array([one is not None and bool(nodes[list(one.nodes)].any()) for one in held], dtype=np.bool_)


def shown(draft: Draft, placement: Placement, rows: BoolArray, nodes: BoolArray) -> Snapshot:
    """The snapshot with only these jobs, as far as they are shown, and only these nodes."""
    visible = np.flatnonzero(rows & (draft.most > 0))
    changed: dict[int, Job] = {}
    names = draft.snapshot.cluster.type_names
    other = (draft.kinds != draft.snapshot.jobs.allowed_kinds).any(axis=1)
    limited = other | (draft.most < draft.snapshot.jobs.max_gpus)
    for row in visible[limited[visible]].tolist():
        job, most = draft.of[row], int(draft.most[row])
        if most < job.max_gpus:
            job = replace(job, max_gpus=most, gpus=min(job.gpus, most))
        if other[row]:
            job = replace(job, gpu_types=tuple(names[kind] for kind in np.flatnonzero(draft.kinds[row])))
        changed[row] = job
    return replace(
        draft.snapshot,
        usable=draft.snapshot.usable & nodes,
        jobs=some_of(draft.snapshot.jobs, visible, changed, placement),
        placement=placement,
        constraints=NO_CONSTRAINTS,
    )
