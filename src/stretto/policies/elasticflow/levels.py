"""The counts that ElasticFlow gives a job: powers of two at which more GPUs make it faster."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from stretto.model import FloatArray, IntArray, Snapshot
from stretto.policies.common.speed_curves import Curve, Sizes


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Counts of one job on one type, increasing, and how fast it is there, increasing too."""

    gpus: IntArray  # (levels,)
    per_s: FloatArray  # (levels,) steps per second

    def gpu_s_a_step(self, gpus: int) -> float:
        """GPU-seconds of one step on a count that is a level."""
        return gpus / float(self.per_s[int(np.searchsorted(self.gpus, gpus))])


@dataclass(frozen=True, slots=True, eq=False)
class LevelsOf:
    """The levels of a snapshot's jobs, made when they are looked at."""

    sizes: Sizes
    known: dict[tuple[int, int], Levels | None] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot) -> "LevelsOf":
        """Levels within each job's range and the cluster."""
        return cls(Sizes.of(snapshot))

    def __call__(self, row: int, kind: int) -> Levels | None:
        """Those of a job on a type; None where it cannot run there."""
        if (row, kind) not in self.known:
            asked = int(self.sizes.jobs.gpus[row]) * int(self.sizes.stand_ins[kind])
            self.known[row, kind] = levels_on(self.sizes.curve(row, kind), asked)
        return self.known[row, kind]


@lru_cache(maxsize=65_536)
def levels_on(curve: Curve, asked: int) -> Levels | None:
    """The powers of two on a curve; without any, what the job asks for, else the fewest that it can use."""
    if not curve.gpus:
        return None
    powers = [at for at, gpus in enumerate(curve.gpus) if gpus & (gpus - 1) == 0]
    if not powers:
        powers = [curve.gpus.index(asked) if asked in curve.gpus else 0]
    faster, best = [], 0.0
    for at in powers:
        if curve.per_s[at] > best:
            faster.append(at)
            best = curve.per_s[at]
    return Levels(np.array([curve.gpus[at] for at in faster]), np.array([curve.per_s[at] for at in faster]))
