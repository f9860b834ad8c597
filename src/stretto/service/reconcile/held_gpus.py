"""Which GPUs are held by what: jobs, and workers that are seen."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class GpuOccupancy:
    """A container of (node, GPU) that is held. A holder is a job, or a worker that is seen."""

    on: dict[int, dict[str, int]] = field(default_factory=dict)  # node → holder → mask
    of: dict[str, tuple[int, ...]] = field(default_factory=dict)  # holder → nodes

    def put(self, holder: str, slots: Iterable[tuple[int, int]]) -> None:
        """From now on, a holder has these (node, mask) and no others."""
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
        """Whether any GPU of a node is held."""
        assert isinstance(slot, tuple)
        node, gpu = slot
        return any(mask >> gpu & 1 for mask in self.on.get(node, {}).values())

    def holders(self, slot: tuple[int, int]) -> list[str]:
        """What holds any GPU of a (node, mask)."""
        node, wanted = slot
        return [holder for holder, mask in self.on.get(node, {}).items() if mask & wanted]
