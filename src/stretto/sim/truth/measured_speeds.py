"""What is measured of a speed, where it is not the true one."""

from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np

from stretto.model import Point

STREAM = 12  # of the random numbers of a simulation
LEAST = 0.1  # of a measured step over the true one; chosen


@dataclass(frozen=True, slots=True)
class Measuring:
    """Steps of a model seem to take 1 + ε of what they do, on each GPU type and placement another one.

    ε is normal with the standard deviation `error`. All jobs of the model see the same, every time: so
    nothing is gained by measuring again. Only what is known of other placements can put it right.
    """

    model: str
    error: float  # 0: what is measured is true
    seed: int

    def seen(self, kind: int, true: Point) -> Point:
        """A point as it is measured on a GPU type."""
        if not self.error:
            return true
        factor = max(1.0 + self.error * _drawn(self.model, self.seed, kind, true.nodes, true.gpus), LEAST)
        return true._replace(grad_s=true.grad_s * factor, step_s=true.step_s * factor)


EXACTLY = Measuring("", 0.0, 0)


@lru_cache(maxsize=65_536)
def _drawn(model: str, seed: int, kind: int, nodes: int, gpus: int) -> float:
    key = [seed, STREAM, crc32(model.encode()), kind, nodes, gpus]
    return float(np.random.default_rng(key).standard_normal())
