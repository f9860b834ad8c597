"""What the policy is shown: which jobs, of which nodes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stretto.live.bounds.desk import Desk
from stretto.live.bounds.rows import some_of
from stretto.model import BoolArray, Job, Placement, Snapshot


def open_nodes(desk: Desk) -> BoolArray:
    """(nodes,) that are kept for nobody."""
    found = np.ones(len(desk.snapshot.cluster.nodes), dtype=np.bool_)
    for _, _, nodes in desk.closed:
        found[nodes] = False
    return found


def enclaves(desk: Desk) -> Iterator[tuple[BoolArray, BoolArray]]:
    """(nodes, jobs that may use them), of each reservation of named nodes that is in force."""
    for _, users, nodes in desk.closed:
        if users.any():
            there = np.zeros(len(desk.snapshot.cluster.nodes), dtype=np.bool_)
            there[nodes] = True
            mine = on_nodes(desk, desk.placement, there) | _holds_nothing(desk)
            yield there, users & mine


def _holds_nothing(desk: Desk) -> BoolArray:
    return np.array([job.id not in desk.placement for job in desk.of], dtype=np.bool_)


def on_nodes(desk: Desk, placement: Placement, nodes: BoolArray) -> BoolArray:
    """(jobs,) which hold GPUs of some of these nodes."""
    held = [placement.get(job.id) for job in desk.of]
    return np.array([one is not None and bool(nodes[list(one.nodes)].any()) for one in held], dtype=np.bool_)


def shown(desk: Desk, placement: Placement, rows: BoolArray, nodes: BoolArray) -> Snapshot:
    """The snapshot with only these jobs, as far as they are shown, and only these nodes."""
    visible = np.flatnonzero(rows & (desk.most > 0))
    changed: dict[int, Job] = {}
    names = desk.snapshot.cluster.type_names
    other = (desk.kinds != desk.snapshot.jobs.allowed_kinds).any(axis=1)
    limited = other | (desk.most < desk.snapshot.jobs.max_gpus)
    for row in visible[limited[visible]].tolist():
        job, most = desk.of[row], int(desk.most[row])
        if most < job.max_gpus:
            job = replace(job, max_gpus=most, gpus=min(job.gpus, most))
        if other[row]:
            job = replace(job, gpu_types=tuple(names[kind] for kind in np.flatnonzero(desk.kinds[row])))
        changed[row] = job
    return replace(
        desk.snapshot,
        usable=desk.snapshot.usable & nodes,
        jobs=some_of(desk.snapshot.jobs, visible, changed, placement),
        placement=placement,
    )
