"""Which GPUs are held by what: jobs, and workers that are seen."""

from collections.abc import Iterable
from dataclasses import dataclass, field

HOLDER = "seen:"  # before the id of a worker that holds GPUs


@dataclass
class GpuOccupancy:
    """A container of (node, GPU) that is held. A holder is a job, or a worker that is seen."""

    on: dict[int, dict[str, int]] = field(default_factory=dict)  # node → holder → mask
    of: dict[str, tuple[int, ...]] = field(default_factory=dict)  # holder → nodes
    _seen: dict[int, int] = field(default_factory=dict)  # as `seen` last gave it
    _changed: set[int] = field(default_factory=set)  # nodes where workers came or went since

    def put(self, holder: str, slots: Iterable[tuple[int, int]]) -> None:
        """From now on, a holder has these (node, mask) and no others."""
        masks: dict[int, int] = {}
        for node, mask in slots:
            masks[node] = masks.get(node, 0) | mask
        before = self.of.pop(holder, ())
        if holder.startswith(HOLDER):
            self._changed.update(before, masks)
        for node in before:
            if node not in masks:
                del self.on[node][holder]
        for node, mask in masks.items():
            self.on.setdefault(node, {})[holder] = mask
        if masks:
            self.of[holder] = tuple(masks)

    def seen(self) -> dict[int, int]:
        """By node, as a mask, GPUs that workers hold which are seen; only nodes with such."""
        for node in self._changed:
            in_use = 0
            for holder, mask in self.on.get(node, {}).items():
                in_use |= mask if holder.startswith(HOLDER) else 0
            if in_use:
                self._seen[node] = in_use
            else:
                self._seen.pop(node, None)
        self._changed.clear()
        return self._seen

    def __contains__(self, slot: object) -> bool:
        """Whether any GPU of a node is held."""
        assert isinstance(slot, tuple)
        node, gpu = slot
        return any(mask >> gpu & 1 for mask in self.on.get(node, {}).values())

    def holders(self, slot: tuple[int, int]) -> list[str]:
        """What holds any GPU of a (node, mask)."""
        node, wanted = slot
        return [holder for holder, mask in self.on.get(node, {}).items() if mask & wanted]
