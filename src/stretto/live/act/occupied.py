"""Which GPUs processes hold, kept up to date job by job, since it is asked about all the time."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Occupied:
    """A container of (node, GPU) that somebody holds. A holder is a job, or a worker that is seen."""

    on: dict[int, dict[str, int]] = field(default_factory=dict)  # node → holder → mask
    of: dict[str, tuple[int, ...]] = field(default_factory=dict)  # holder → nodes

    def put(self, holder: str, slots: Iterable[tuple[int, int]]) -> None:
        """From now on, somebody holds these (node, mask) and no others."""
        masks: dict[int, int] = {}
        for node, mask in slots:
            masks[node] = masks.get(node, 0) | mask
        for node in self.of.pop(holder, ()):
            if node not in masks:
                del self.on[node][holder]
        for node, mask in masks.items():
            self.on.setdefault(node, {})[holder] = mask
        if masks:
            self.of[holder] = tuple(masks)

    def __contains__(self, slot: object) -> bool:
        """Whether somebody holds a GPU of a node."""
        assert isinstance(slot, tuple)
        node, gpu = slot
        return any(mask >> gpu & 1 for mask in self.on.get(node, {}).values())
