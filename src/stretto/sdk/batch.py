"""How large a step is, and in how many passes each worker makes it."""

from dataclasses import dataclass
from math import ceil

from stretto.model.errors import InputError
from stretto.sdk.generation import Wish


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the script allows."""

    initial: int  # samples a step that the learning rate was chosen for
    largest: int  # samples a step at most; the same as `initial`: the batch is fixed
    largest_local: int | None = None  # samples in one pass of one worker at most: its memory

    def __post_init__(self) -> None:
        if self.initial < 1:
            raise InputError(f"batch_size must be >= 1, got {self.initial}")
        if self.largest < self.initial:
            raise InputError(f"max_batch_size must be >= batch_size={self.initial}, got {self.largest}")
        if self.largest_local is not None and self.largest_local < 1:
            raise InputError(f"max_local_batch must be >= 1, got {self.largest_local}")


@dataclass(frozen=True, slots=True)
class Batch:
    """What is done."""

    total: int  # samples a step, over all workers
    accumulation: int  # passes of each worker in a step

    def local(self, world: int) -> int:
        """Samples in one pass of one worker, rounded up."""
        return ceil(self.total / world / self.accumulation)


def choose_batch(bounds: Bounds, world: int, wish: Wish | None) -> Batch:
    """The batch for `world` workers: as wished, within the bounds; else as large a share as one worker had.

    The service and the script may know different bounds; the script's hold.

    Accumulation grows until a pass fits into `largest_local`.
    """
    total = wish.total if wish else bounds.initial * world
    total = max(bounds.initial, min(total, bounds.largest))
    share = ceil(total / world)
    accumulation = max(1, (wish.accumulation if wish else None) or 1)
    if bounds.largest_local is not None:
        accumulation = max(accumulation, ceil(share / bounds.largest_local))
    return Batch(total, min(accumulation, share))
