"""Measured speed by operating point."""

from dataclasses import dataclass, field
from typing import NamedTuple

LEAST_STEPS = 10  # before a point is told; chosen: the service keeps the first that it hears
WARM_UP_STEPS = 3  # after a switch, left out: buckets are rebuilt, caches are cold


class Setting(NamedTuple):
    """An operating point."""

    nodes: int
    gpus: int
    local_batch: int
    accumulation: int


@dataclass(slots=True)
class Times:
    """What was measured in one setting."""

    steps: int = 0
    step_s: float = 0.0  # sum
    passes: int = 0
    grad_s: float = 0.0  # sum, over single passes without synchronisation


@dataclass(slots=True)
class Speed:
    """All settings so far."""

    times: dict[Setting, Times] = field(default_factory=dict)

    def add_steps(self, setting: Setting, steps: int, seconds: float) -> None:
        """So many whole steps took so long."""
        times = self.times.setdefault(setting, Times())
        times.steps += steps
        times.step_s += seconds

    def add_passes(self, setting: Setting, passes: int, seconds: float) -> None:
        """So many forward and backward passes without synchronisation took so long."""
        times = self.times.setdefault(setting, Times())
        times.passes += passes
        times.grad_s += seconds

    def points(self) -> list[list[float]]:
        """Rows [nodes, gpus, local_batch, accumulation, grad_s of one pass, step_s of all passes]."""
        return [
            [*setting, times.grad_s / times.passes, times.step_s / times.steps]
            for setting, times in sorted(self.times.items())
            if times.steps >= LEAST_STEPS and times.passes
        ]
