"""Which samples each rank takes in each step, so that every sample of an epoch is seen exactly once.

An epoch is one global order, drawn from the seed and the epoch's number alone. How far it has been taken is
one number; whoever trains, and with whatever batch, the next step takes what follows. A resize therefore
changes nothing but how the rest is divided.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass of one rank."""

    indices: NDArray[np.int64]  # into the dataset; never empty
    weight: float  # of its mean loss: summed over passes, then averaged over ranks, samples weigh the same
    is_padding: bool = False  # nothing is left for it; some go again with weight 0, since peers wait


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank does in one step of the optimiser."""

    samples: int  # over all ranks
    passes: tuple[Pass, ...]  # at least one


def order_of(epoch: int, samples: int, seed: int, shuffle: bool = True) -> NDArray[np.int64]:
    """The order of an epoch's samples, the same on every worker. Shape (samples,)."""
    if not shuffle:
        return np.arange(samples)
    return np.random.default_rng([seed, epoch]).permutation(samples)


def step_at(
    taken: int, order: NDArray[np.int64], total: int, accumulation: int, rank: int, world: int
) -> Step:
    """The step that begins after `taken` samples: the next `total` of the order, or what is left of them.

    All ranks have the same number of passes, since layers may make collective calls in each
    (SyncBatchNorm); only the last pass is synchronised. Shares of ranks differ by at most one sample. A
    smaller last step is given to fewer ranks rather than one sample to each: normalisation over a batch of
    one sample is undefined, and PyTorch refuses it.
    """
    size = min(total, len(order) - taken)
    local = ceil(total / world / accumulation)  # samples in one pass at most
    least = 2 if local > 2 and 1 < size < total else 1  # in a pass; of 2 at most, 3 could not be divided
    active = max(1, min(world, size // least))
    most = ceil(size / active)
    count = min(accumulation, most) if size == total else ceil(most / local)
    first, last = (size * min(each, active) // active for each in (rank, rank + 1))
    cuts = [taken + first + (last - first) * place // count for place in range(count + 1)]
    padding = Pass(order[taken : taken + least], 0.0, is_padding=True)
    return Step(
        size,
        tuple(
            Pass(order[begin:end], (end - begin) * world / size) if begin < end else padding
            for begin, end in pairwise(cuts)
        ),
    )


def steps_from(
    taken: int, order: NDArray[np.int64], total: int, accumulation: int, rank: int, world: int
) -> Iterator[Step]:
    """All steps of a rank until the end of the epoch, if nothing changes."""
    while taken < len(order):
        step = step_at(taken, order, total, accumulation, rank, world)
        yield step
        taken += step.samples


@dataclass(frozen=True, slots=True)
class Passes:
    """The indices of all passes of steps, in order, as a batch sampler of a DataLoader."""

    steps: Iterable[Step]

    def __iter__(self) -> Iterator[list[int]]:
        """One list for each pass."""
        return (own.indices.tolist() for step in self.steps for own in step.passes)
