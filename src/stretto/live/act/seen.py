"""Workers as the backend last showed them, and the GPUs that they hold, whatever the log says of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.live.act.occupied import Occupied
from stretto.live.backends.protocol import WorkerState
from stretto.live.history.ledger import Ledger

HOLDER = "seen:"  # before the id of a worker, as a holder of GPUs


@dataclass
class Seen:
    """let_go: is called when a worker's GPUs have become free."""

    ledger: Ledger
    occupied: Occupied
    let_go: Callable[[], None]
    workers: dict[str, WorkerState] = field(default_factory=dict)  # by id

    def see(self, one: WorkerState) -> None:
        """Note what a worker was shown to be."""
        self.workers[one.id] = one
        node = self.ledger.state.node_index.get(one.node)
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
