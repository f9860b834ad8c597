"""What a script may choose, and the batch size and learning rate that follow from it.

In the rules of learning rates k = M/M0, with M the batch and M0 the one that the rate was chosen for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Any

from stretto.model.errors import InputError
from stretto.sdk.environment import CHECKPOINT_S, GRACE_S
from stretto.sdk.generation import RequestedBatch

Rule = Callable[[float, float], float]  # of k and the gain


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the script allows."""

    initial: int  # samples a step that the learning rate was chosen for
    largest: int  # samples a step at most; the same as `initial`: the batch is fixed
    largest_local: int | None = None  # samples of one micro-batch of one worker at most: its memory

    def __post_init__(self) -> None:
        if self.initial < 1:
            raise InputError(f"batch_size must be >= 1, got {self.initial}")
        if self.largest < self.initial:
            raise InputError(f"max_batch_size must be >= batch_size={self.initial}, got {self.largest}")
        if self.largest_local is not None and self.largest_local < 1:
            raise InputError(f"max_local_batch must be >= 1, got {self.largest_local}")


@dataclass(frozen=True, slots=True)
class Batch:
    """Of one step."""

    total: int  # samples a step, over all workers
    accumulation: int  # micro-batches of each worker in a step

    def local(self, world: int) -> int:
        """Samples of one micro-batch of one worker, rounded up."""
        return ceil(self.total / world / self.accumulation)


def choose_batch(bounds: Bounds, world: int, requested: RequestedBatch | None) -> Batch:
    """The batch for `world` workers: as requested, within the bounds; else one worker's share for each.

    The service and the script may know different bounds; the script's count.
    Accumulation grows until a micro-batch fits into `largest_local`.
    """
    total = requested.total if requested else bounds.initial * world
    total = max(bounds.initial, min(total, bounds.largest))
    share = ceil(total / world)
    accumulation = max(1, (requested.accumulation if requested else None) or 1)
    if bounds.largest_local is not None:
        accumulation = max(accumulation, ceil(share / bounds.largest_local))
    return Batch(total, min(accumulation, share))


def linear(scale: float, gain: float) -> float:
    """The factor k. Goyal et al. (2017)."""
    return scale


def square_root(scale: float, gain: float) -> float:
    """√k, for adaptive optimisers. Krizhevsky (2014)."""
    return sqrt(scale)


def adascale(scale: float, gain: float) -> float:
    """The gain of one step at M over one at M0. Johnson et al. (ICML 2020), section 3."""
    return gain


def adamscale(scale: float, gain: float) -> float:
    """√gain, for adaptive optimisers."""
    return sqrt(gain)


def fixed(scale: float, gain: float) -> float:
    """Always 1."""
    return 1.0


RULES: Mapping[str, Rule] = {
    "linear": linear,
    "square-root": square_root,
    "sqrt": square_root,
    "adascale": adascale,
    "adamscale": adamscale,
    "fixed": fixed,
}


def rule_named(name: str) -> Rule:
    """The rule of that name; raises `InputError` naming the rules there are."""
    if name not in RULES:
        raise InputError(f"lr_scaling must be one of {', '.join(RULES)}, got {name!r}")
    return RULES[name]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a script may choose."""

    bounds: Bounds
    rule: Rule = fixed
    shuffle: bool = True
    scaler: Any = None  # torch.amp.GradScaler
    loader: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the DataLoader
    ddp: Mapping[str, Any] = field(default_factory=dict)  # further arguments of DistributedDataParallel
    max_grad_norm: float | None = None
    grace_s: float = GRACE_S  # between SIGTERM and SIGKILL
    timeout_s: float = 1800.0  # of a collective call: ranks may be so far apart
    report_s: float = 30.0
    checkpoint_s: float = CHECKPOINT_S  # between two checkpoints
