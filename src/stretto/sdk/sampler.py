"""Sampler and loader: which samples each rank takes in each step, so that each is seen once in an epoch.

An epoch is one global order, drawn from the seed and the epoch's number alone. How far it has been taken is
one number; whatever workers train, and with whatever batch, the next step takes what follows. A resize
therefore changes nothing but how the rest is divided.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stretto.errors import InputError

OF_THE_JOB = ("batch_sampler", "batch_size", "dataset", "drop_last", "sampler", "shuffle")  # not the script's


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one rank takes in one forward and backward pass."""

    indices: NDArray[np.int64]  # into the dataset; never empty
    weight: float  # of its mean loss: summed over a step, then averaged over ranks, samples weigh the same
    is_padding: bool = False  # nothing is left for it; some samples go again with weight 0, since peers wait


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank does in one step of the optimiser."""

    samples: int  # over all ranks
    micro_batches: tuple[MicroBatch, ...]  # at least one
    by_rank: tuple[int, ...] = ()  # samples of each rank, where they differ by more than one


def order_of(epoch: int, samples: int, seed: int, shuffle: bool = True) -> NDArray[np.int64]:
    """The order of an epoch's samples, the same on every worker. Shape (samples,)."""
    if not shuffle:
        return np.arange(samples)
    return np.random.default_rng([seed, epoch]).permutation(samples)


def step_at(
    start: int,
    order: NDArray[np.int64],
    total: int,
    accumulation: int,
    rank: int,
    world: int,
    by_worker: tuple[int, ...] = (),
) -> Step:
    """The step that begins after `start` samples: the next `total` of the order, or what is left of them.

    All ranks have the same number of micro-batches, since layers may make collective calls in each
    (SyncBatchNorm); only the last one is synchronised. Shares of ranks differ by at most one sample. A
    smaller last step is given to fewer ranks rather than one sample to each. Normalisation over a batch of
    one sample is undefined, and PyTorch refuses it.

    by_worker: samples of each rank in a whole step, which sum to `total`; empty: evenly. In a smaller last
    step ranks take as many, one after the other, until none is left. So no rank gets more than fits there.
    """
    size = min(total, len(order) - start)
    if by_worker:
        return _uneven_step(start, order, size, accumulation, rank, by_worker)
    local = ceil(total / world / accumulation)  # samples of one micro-batch at most
    # How many ranks get samples: all, unless in a smaller last step they would get fewer than two each.
    # Where micro-batches have two at most, three samples could not be divided; ones of one are taken then.
    least = 2 if local > 2 and 1 < size < total else 1
    active = max(1, min(world, size // least))
    # In how many micro-batches: as agreed, or in a smaller last step as few as hold the largest share.
    largest_share = ceil(size / active)
    count = min(accumulation, largest_share) if size == total else ceil(largest_share / local)
    # This rank's part of the step, cut into that many of nearly the same size. Ranks beyond the active ones
    # have an empty part, and go along with padding.
    first, last = (size * min(each, active) // active for each in (rank, rank + 1))
    padding = MicroBatch(order[start : start + least], 0.0, is_padding=True)
    return Step(size, _micro_batches(order, start + first, start + last, count, world / size, padding))


def _uneven_step(
    start: int, order: NDArray[np.int64], size: int, accumulation: int, rank: int, by_worker: tuple[int, ...]
) -> Step:
    """The same where each rank has its own number of samples."""
    ends = [min(end, size) for end in accumulate(by_worker, initial=0)]
    local = ceil(max(by_worker) / accumulation)
    # The last rank that gets any must not be left with a single sample, if the one before it can give one.
    last = ends.index(size)
    least = 2 if local > 2 and size > 1 else 1
    is_single = last > 1 and ends[last] - ends[last - 1] < min(least, by_worker[last - 1])
    if is_single and ends[last - 1] - ends[last - 2] > least:
        ends[last - 1] -= 1
    by_rank = tuple(end - begin for begin, end in pairwise(ends))
    count = ceil(max(by_rank) / local)
    if size == sum(by_worker):
        count = min(accumulation, max(by_rank))
    padding = MicroBatch(order[start : start + least], 0.0, is_padding=True)
    begin, end = start + ends[rank], start + ends[rank + 1]
    weight = len(by_worker) / size
    return Step(size, _micro_batches(order, begin, end, count, weight, padding), by_rank)


def _micro_batches(
    order: NDArray[np.int64], first: int, last: int, count: int, weight: float, padding: MicroBatch
) -> tuple[MicroBatch, ...]:
    """A rank's part of a step, from `first` to before `last`, cut into `count` of nearly the same size.

    weight: of a sample. A mean over the samples of a micro-batch, times that and their number, averaged over
    the ranks, is the mean over the step.
    """
    cuts = [first + (last - first) * place // count for place in range(count + 1)]
    return tuple(
        MicroBatch(order[begin:end], (end - begin) * weight) if begin < end else padding
        for begin, end in pairwise(cuts)
    )


def steps_from(
    start: int,
    order: NDArray[np.int64],
    total: int,
    accumulation: int,
    rank: int,
    world: int,
    by_worker: tuple[int, ...] = (),
) -> Iterator[Step]:
    """All steps of a rank until the end of the epoch, if nothing changes."""
    while start < len(order):
        step = step_at(start, order, total, accumulation, rank, world, by_worker)
        yield step
        start += step.samples


@dataclass(frozen=True, slots=True)
class MicroBatchSampler:
    """The indices of all micro-batches of steps, in order, as a batch sampler of a DataLoader."""

    steps: Iterable[Step]

    def __iter__(self) -> Iterator[list[int]]:
        """One list for each micro-batch."""
        return (own.indices.tolist() for step in self.steps for own in step.micro_batches)


@dataclass(frozen=True, slots=True)
class LeaveProcessGroup:
    """What a process of the loader does first: it leaves the worker's process group of the system.

    SIGTERM goes to the whole group of a worker, since its command may be a shell. A loader's process would
    die of it, and that is an error in the midst of the training before the worker has saved anything.
    """

    then: Callable[[int], Any] | None = None  # the script's own

    def __call__(self, number: int) -> None:
        """In process `number` of the loader."""
        with contextlib.suppress(OSError, AttributeError):  # it leads a session; no such thing as groups
            os.setpgid(0, 0)
        if self.then is not None:
            self.then(number)


def batches_of(
    data: Dataset[Any], steps: Iterable[Step], options: Mapping[str, Any], generator: torch.Generator
) -> Iterator[Any]:
    """The batches of all micro-batches of these steps, in order."""
    options = {"generator": generator, **options}
    options["worker_init_fn"] = LeaveProcessGroup(options.get("worker_init_fn"))
    return iter(DataLoader(data, batch_sampler=MicroBatchSampler(steps), **options))


def loader_generator(*origin: int) -> torch.Generator:
    """Seeds of the loader's processes; the global generator stays as it is whenever loaders begin."""
    seeds = np.random.SeedSequence(origin)
    return torch.Generator().manual_seed(int(seeds.generate_state(1)[0]))


def count_of(data: Any) -> int:
    """Samples of a dataset; raises `InputError` where it is none that can be shared out."""
    if isinstance(data, DataLoader):
        raise InputError(
            "data must be a dataset, got a DataLoader: give its dataset, its batch_size as batch_size, and"
            " num_workers, collate_fn and the like in loader={...}"
        )
    if isinstance(data, IterableDataset):
        raise InputError(
            f"data must have samples that can be asked for by number, got {type(data).__name__}: an iterable"
            " dataset has no order to share out; train on it with stretto.sdk.adapters.loop"
        )
    count = len(data) if hasattr(data, "__len__") else 0
    if count < 1 or not hasattr(data, "__getitem__"):
        raise InputError(
            f"data must have a length and at least one sample, got {type(data).__name__} of {count}"
        )
    return count


def check_loader(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The loader's options as given; raises `InputError` where one is not for the script to say."""
    refused = [name for name in OF_THE_JOB if name in options]
    if refused:
        raise InputError(
            f"loader must leave {refused[0]} to elastic(), which takes every sample of an epoch once:"
            f" see data, batch_size and shuffle; got loader={{{refused[0]!r}: {options[refused[0]]!r}}}"
        )
    return options
