"""A part of an allocation."""

from stretto.model import Allocation, lowest_gpus


def kept_of(allocation: Allocation, gpus: int, before: Allocation | None) -> Allocation:
    """So many GPUs of an allocation: those held before first, then those of the fullest nodes.

    Exactly what was held before where that is as many. Batch sizes and flexible workers are open again.
    """
    own = dict(zip(before.nodes, before.masks, strict=True)) if before is not None else {}
    both = {
        node: mask & own.get(node, 0) for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
    }
    if (
        before is not None
        and before.gpus == gpus
        and all(both.get(node, 0) == mask for node, mask in own.items())
    ):
        return before
    kept: dict[int, int] = {}
    places = list(zip(allocation.nodes, allocation.masks, strict=True))
    for pool in (both, dict(places)):
        for node, _ in sorted(places, key=lambda one: (-one[1].bit_count(), one[0])):
            rest = pool[node] & ~kept.get(node, 0)
            count = min(rest.bit_count(), gpus - sum(map(int.bit_count, kept.values())))
            if count > 0:
                kept[node] = kept.get(node, 0) | lowest_gpus(rest, count)
    nodes = tuple(sorted(kept))
    return Allocation(allocation.kind, nodes, tuple(kept[node] for node in nodes), cpus=0.0)
