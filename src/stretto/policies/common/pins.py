"""Where a job is to run, for policies that name nodes themselves."""

from stretto.model import Allocation, Pinned


def pin_as_held(allocation: Allocation) -> Pinned:
    """Exactly the GPUs that a job has."""
    return Pinned(allocation.nodes, allocation.shape, allocation.masks, allocation.local_batch)
