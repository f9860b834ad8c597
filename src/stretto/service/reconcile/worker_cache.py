"""The workers as the backend last showed them, and which GPUs are occupied.

Which GPUs processes hold, kept up to date job by job, since it is asked about all the time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stretto.backends.protocol import WorkerState
from stretto.service.eventlog.writer import LogWriter


@dataclass
class GpuOccupancy:
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


# ── workers as the backend last showed them, and the GPUs that they hold, whatever the log says of them ─────


HOLDER = "seen:"  # before the id of a worker, as a holder of GPUs


@dataclass
class WorkerCache:
    """let_go: is called when a worker's GPUs have become free."""

    log_writer: LogWriter
    occupied: GpuOccupancy
    let_go: Callable[[], None]
    workers: dict[str, WorkerState] = field(default_factory=dict)  # by id

    def see(self, one: WorkerState) -> None:
        """Note what a worker was shown to be."""
        self.workers[one.id] = one
        node = self.log_writer.state.node_index.get(one.node)
        held = sum(1 << gpu for gpu in one.gpus) if one.holds_gpus and node is not None else 0
        self._show(one.id, [(node, held)] if node is not None and held else [])

    def unsee(self, name: str) -> None:
        """A worker is not shown any more."""
        self.workers.pop(name, None)
        self._show(name, [])

    def _show(self, name: str, slots: list[tuple[int, int]]) -> None:
        had = self.occupied.of.get(HOLDER + name)
        self.occupied.put(HOLDER + name, slots)
        if had and not slots:
            self.let_go()
