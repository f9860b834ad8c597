"""What a job keeps when a node is closed: what trains there stays, what had not begun there does not come."""

from collections.abc import Iterable

from stretto.live.state.records import JobRecord
from stretto.model import Allocation, Placement


def kept_of(record: JobRecord, placement: Placement, node: int) -> Allocation | None:
    """What a job is to hold once nobody new comes to a node; what it was to hold where that changes nothing.

    A resize that was to take it there is called off: it does without those GPUs where its sizes allow that,
    else it goes on with what it has, else it waits anew (None).
    """
    wanted = placement[record.job.id]
    own = _masks_of_those_who_train(record)
    wanted_masks = dict(zip(wanted.nodes, wanted.masks, strict=True))
    there = wanted_masks[node] & own.get(node, 0)
    if there == wanted_masks[node]:
        return wanted
    if not own:
        return None
    others = placement.changed({record.job.id: None}).busy
    for masks in ({**wanted_masks, node: there}, own):
        kept = {one: mask for one, mask in sorted(masks.items()) if mask}
        gpus = sum(mask.bit_count() for mask in kept.values())
        free = not any(int(others[one]) & mask for one, mask in kept.items())
        if gpus and free and _may_have(record, gpus):
            kind = next(worker.kind for worker in record.workers.values())
            return Allocation(kind, tuple(kept), tuple(kept.values()))
    return None


def _may_have(record: JobRecord, gpus: int) -> bool:
    if record.spec.elastic is None:
        return gpus == record.job.gpus
    sizes, job = record.spec.elastic.sizes, record.job
    in_range = job.min_gpus <= gpus <= job.max_gpus and gpus % job.gpus_per_worker == 0
    return in_range and (not sizes or gpus in sizes)


def _masks_of_those_who_train(record: JobRecord) -> dict[int, int]:
    """By node, the GPUs of workers that stay unless somebody asks them to end; newcomers are none of them."""
    masks: dict[int, int] = {}
    names: Iterable[str] = record.members.workers or record.workers
    for worker in (record.workers[name] for name in names):
        if worker in record.alive and not worker.stopped:
            masks[worker.node] = masks.get(worker.node, 0) | worker.mask
    return masks
