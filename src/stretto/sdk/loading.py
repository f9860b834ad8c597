"""The data loader of a generation: what a script may say about it, and what its processes do first."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stretto.model.errors import InputError
from stretto.sdk.sampler import Passes, Step

OURS = ("batch_sampler", "batch_size", "dataset", "drop_last", "sampler", "shuffle")  # follow from the job


@dataclass(frozen=True, slots=True)
class Apart:
    """What a process of the loader does first: it leaves the worker's process group.

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
    """The batches of all passes of these steps, in order."""
    options = {"generator": generator, **options}
    options["worker_init_fn"] = Apart(options.get("worker_init_fn"))
    return iter(DataLoader(data, batch_sampler=Passes(steps), **options))


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


def checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The loader's options as given; raises `InputError` where one is not for the script to say."""
    taken = [name for name in OURS if name in options]
    if taken:
        raise InputError(
            f"loader must leave {taken[0]} to elastic(), which takes every sample of an epoch once:"
            f" see data, batch_size and shuffle; got loader={{{taken[0]!r}: {options[taken[0]]!r}}}"
        )
    return options
