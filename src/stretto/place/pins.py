"""Shares that say exactly where a job is to run."""

from stretto.model import Allocation, BadPlan, Cluster, Pinned
from stretto.place.draft import Want


def is_at(held: Allocation, pin: Pinned) -> bool:
    """Whether what a job holds is what the pin says, batch sizes and flexible workers included."""
    if (held.nodes, held.local_batch, held.flexible) != (pin.nodes, pin.local_batch, pin.flexible):
        return False
    return held.masks == pin.masks if pin.masks else held.shape == pin.gpus


def check_pin(cluster: Cluster, want: Want, pin: Pinned) -> None:
    """Raise BadPlan where a pin contradicts itself, the share or the types that the job may have."""
    # The counts, the named GPUs, the order of nodes, the flexible ones; last the type.
    if sum(pin.gpus) != want.gpus or min(pin.gpus, default=0) < 1 or len(pin.gpus) != len(pin.nodes):
        raise BadPlan(
            f"job {want.job} is pinned to {pin.gpus} GPUs of nodes {pin.nodes}, expected {want.gpus} in all"
        )
    if pin.masks and tuple(mask.bit_count() for mask in pin.masks) != pin.gpus:
        named = ", ".join(f"{mask:b}" for mask in pin.masks)
        raise BadPlan(f"job {want.job} is pinned to GPUs {named}, expected {pin.gpus} of them")
    if any(a >= b for a, b in zip(pin.nodes, pin.nodes[1:], strict=False)):
        raise BadPlan(f"job {want.job} is pinned to nodes {pin.nodes}, expected them in increasing order")
    if pin.flexible and (
        len(pin.flexible) != len(pin.masks)
        or any(some & ~mask for some, mask in zip(pin.flexible, pin.masks, strict=True))
    ):
        raise BadPlan(f"job {want.job} is pinned with flexible GPUs that are not among those it is to hold")
    if want.mixes:
        return
    kinds = {int(cluster.kind[node]) for node in pin.nodes}
    if len(kinds) > 1 or want.kind not in (-1, *kinds):
        names = [cluster.type_names[kind] for kind in sorted(kinds)]
        stated = "one type" if want.kind < 0 else cluster.type_names[want.kind]
        raise BadPlan(f"job {want.job} is pinned to GPUs of {names}, expected {stated}")
