"""Which samples each rank takes in each step, so that every sample of an epoch is seen exactly once.

An epoch is one global order, drawn from the seed and the epoch's number alone. How far it has been taken is
one number; whoever trains, and with whatever batch, the next step takes what follows. A resize therefore
changes nothing but how the rest is divided.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass of one rank."""

    indices: NDArray[np.int64]  # into the dataset; never empty
    weight: float  # of its mean loss: summed over passes, then averaged over ranks, samples weigh the same
    is_padding: bool = False  # the rank has no sample left; one goes with weight 0, since peers wait for it


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

    Shares of ranks differ by at most one sample, and so do the passes of a rank. All ranks have the same
    number of synchronised passes, which is one, but not always the same number of passes.
    """
    size = min(total, len(order) - taken)
    first, last = size * rank // world, size * (rank + 1) // world
    if first == last:
        return Step(size, (Pass(order[taken : taken + 1], 0.0, is_padding=True),))
    count = min(accumulation, last - first)
    cuts = [taken + first + (last - first) * place // count for place in range(count + 1)]
    return Step(
        size,
        tuple(Pass(order[begin:end], (end - begin) * world / size) for begin, end in pairwise(cuts)),
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
