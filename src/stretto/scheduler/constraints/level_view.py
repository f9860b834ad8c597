"""What one level is shown: its own jobs, and nodes that are smaller by what it may not have."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stretto.model import (
    NO_CONSTRAINTS,
    Adaptivity,
    Allocation,
    IntArray,
    Job,
    JobId,
    Memory,
    Plan,
    Snapshot,
    no_placement,
)
from stretto.scheduler.asking import Ask
from stretto.scheduler.constraints.offers import Sizes
from stretto.scheduler.constraints.shared_nodes import Lens, smaller
from stretto.scheduler.constraints.tables import some_of

Masks = IntArray  # (nodes,) bit g set: GPU g


@dataclass(frozen=True)
class Attempt:
    """One answer of the policy to what a level was shown."""

    rows: IntArray  # of the snapshot, that were shown
    offered: Masks  # of lower jobs
    used: Masks  # of these
    plan: Plan  # in terms of what was shown
    allocations: Mapping[JobId, Allocation]  # on the nodes as they are
    caps: Mapping[int, int]  # by row, how many GPUs a job was limited to

    @property
    def gpus(self) -> int:
        """GPUs that the level would hold."""
        return sum(held.gpus for held in self.allocations.values())


def ask_level(
    snapshot: Snapshot,
    ask: Ask,
    rows: IntArray,
    memory: Memory,
    own: Mapping[JobId, Allocation],
    free: Masks,
    offered: Masks,
    caps: Mapping[int, int],
    sizes: Sizes,
) -> Attempt:
    """Ask the policy about some rows, on their own GPUs, free ones, and those that are offered.

    caps: by row, fewer GPUs than a job may have; 0: it is not shown.
    """
    shown_rows = rows
    if caps:
        shown_rows = np.array([row for row in rows.tolist() if caps.get(row, 1)], dtype=np.int64)
    lens = _lens(snapshot, own, free | offered)
    requests = {**_running_below_request(snapshot, shown_rows, lens, sizes)}
    for row in shown_rows.tolist():
        job = requests.get(row, snapshot.jobs[row])
        most = max(caps.get(row, job.max_gpus), job.min_gpus)
        if most < job.max_gpus:
            requests[row] = replace(job, max_gpus=most, gpus=min(job.gpus, most))
    seen = replace(
        snapshot,
        jobs=some_of(snapshot.jobs, shown_rows, requests, lens.placement),
        placement=lens.placement,
        memory=memory,
        constraints=NO_CONSTRAINTS,
    )
    plan = ask(lens.snapshot(seen))
    allocations = _on_free_first(dict(lens.outward(plan.placement)), own, free, offered)
    used = np.zeros_like(offered)
    for held in allocations.values():
        used[list(held.nodes)] |= np.array(held.masks, dtype=np.int64)
    return Attempt(shown_rows, offered, used & offered, plan, allocations, caps)


def _lens(snapshot: Snapshot, own: Mapping[JobId, Allocation], open_gpus: Masks) -> Lens:
    cluster = snapshot.cluster
    placement = no_placement(cluster).changed(own)
    full = (np.int64(1) << cluster.node_gpus) - 1
    hidden = full & ~open_gpus & ~placement.busy
    visible = {node: int(full[node] & ~hidden[node]) for node in np.flatnonzero(hidden).tolist()}
    sizes = tuple((node, max(mask.bit_count(), 1)) for node, mask in visible.items())
    return Lens(placement, smaller(cluster, sizes) if sizes else cluster, visible)


def _running_below_request(snapshot: Snapshot, rows: IntArray, lens: Lens, sizes: Sizes) -> dict[int, Job]:
    """Jobs that run on less than they ask for, asking for as much as is left: none is stopped for the rest.

    A policy that gives jobs what they ask for, or nothing, would stop one that was made smaller.
    """
    found: dict[int, Job] = {}
    free: IntArray | None = None
    for row in rows.tolist():
        job = snapshot.jobs[row]
        held = lens.placement.get(job.id)
        if held is None or held.gpus >= job.gpus or job.adaptivity is Adaptivity.RIGID:
            continue
        if held.gpus < job.min_gpus or snapshot.cluster.stand_ins[held.kind] > 1:
            continue
        if free is None:
            free = _free_by_kind(snapshot, lens)
        more = sizes.at_most(job, min(job.gpus, held.gpus + int(free[held.kind])))
        asked = max(more, held.gpus)
        free[held.kind] -= asked - held.gpus
        found[row] = replace(job, gpus=asked)
    return found


def _free_by_kind(snapshot: Snapshot, lens: Lens) -> IntArray:
    """(types,) GPUs that are shown, and that nobody who is shown holds."""
    inside = lens.inward(lens.placement)
    free = np.where(lens.usable(snapshot.usable), inside.free, 0)
    return np.bincount(lens.shown.kind, free, len(lens.shown.types)).astype(np.int64)


def _on_free_first(
    allocations: dict[JobId, Allocation], own: Mapping[JobId, Allocation], free: Masks, offered: Masks
) -> dict[JobId, Allocation]:
    """The same counts on every node, on free GPUs before those of lower jobs."""
    if not offered.any():
        return allocations
    left = free.copy()
    for held in allocations.values():
        left[list(held.nodes)] &= ~np.array(held.masks, dtype=np.int64)
    for job, held in allocations.items():
        if held is own.get(job) or held.flexible:
            continue
        masks = list(held.masks)
        for place, (node, mask) in enumerate(zip(held.nodes, held.masks, strict=True)):
            for gpu in range(mask.bit_length()):
                spare = int(left[node])
                if mask >> gpu & 1 and int(offered[node]) >> gpu & 1 and spare:
                    lowest = spare & -spare
                    left[node] ^= lowest
                    masks[place] ^= 1 << gpu | lowest
        if tuple(masks) != held.masks:
            allocations[job] = replace(held, masks=tuple(masks))
    return allocations
