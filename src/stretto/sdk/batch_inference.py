"""Batch inference: a model passes over a data set, each item once, on as many workers as there are.

Workers do not form a process group, and none waits for another: each takes the next part that is free. So
workers may come, go and be killed at any moment. What a worker has not written is done by another.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from stretto.errors import InputError
from stretto.sdk.channel import Channel
from stretto.sdk.entry_point import check_launcher
from stretto.sdk.membership import Membership
from stretto.sdk.results import ResultFolder, read_results
from stretto.sdk.sampler import check_loader, count_of
from stretto.sdk.settings import Environment, read_environment
from stretto.sdk.shutdown import STATUS, Preemption, end_quickly
from stretto.sdk.step_profiler import WARM_UP_STEPS, OperatingPoint, StepTimes

REPORT_S = 30.0
LOOK_S = 0.2  # between looks for a part that others have let go of, or done; chosen


def infer(
    data: Dataset[Any],
    *,
    output: str | Path,
    batch_size: int,
    loader: Mapping[str, Any] | None = None,
    report_s: float = REPORT_S,
) -> "InferenceJob":
    """The job of this script; blocks until the service wants this worker to begin.

    output: a folder that all workers share; results that are there are not made again. batch_size: items of
    one batch of one worker. loader: further arguments of the DataLoader. report_s: between two reports.
    Without a worker's environment the script works alone, beside whatever else uses the same folder.

    Raises `InputError` where an argument or a variable of the environment is wrong.
    """
    items = count_of(data)
    if batch_size < 1:
        raise InputError(f"batch_size must be >= 1, got {batch_size}")
    options = check_loader(loader or {})
    environment = read_environment()
    if environment.is_elastic:
        check_launcher()
        end_quickly()
    results = ResultFolder(Path(output), items, batch_size)
    return InferenceJob(data, results, options, environment, report_s)


class InferenceJob:
    """Batches of items that are not done yet. Built by `infer`."""

    def __init__(
        self,
        data: Dataset[Any],
        results: ResultFolder,
        loader: Mapping[str, Any],
        environment: Environment,
        report_s: float,
    ) -> None:
        self._data, self._results, self._loader = data, results, loader
        self._environment, self._report_s = environment, report_s
        self._times = StepTimes()
        self._claimed: deque[int] = deque()  # parts of batches that the loader makes, in their order
        self._current: int | None = None  # the part of the batch that the script has
        self._began_s = self._reported_s = time.monotonic()
        self._first_done = results.look()
        self._batches = 0
        self._preemption = Preemption(environment.grace_s, lambda: None)
        self._membership: Membership | None = None
        if environment.is_elastic:
            channel = Channel(environment.url, environment.token, environment.worker, environment.authorities)
            self._membership = Membership(channel, self._preemption, results.look)
            self._membership.await_first()

    @property
    def rank(self) -> int:
        """Of this worker among those that work now; it may change."""
        return self._membership.rank if self._membership else self._environment.rank

    @property
    def world_size(self) -> int:
        """How many work now."""
        return self._membership.generation.world if self._membership else self._environment.world

    def batches(self) -> Iterator[Any]:
        """Batches that this worker does; `write` must follow each. Ends when all are done, here or elsewhere.

        A worker that is to go leaves between two batches: the process ends.
        """
        while not self._are_all_done():
            for batch in DataLoader(self._data, batch_sampler=_Sampler(self), **self._loader):
                self._go_if_told()
                self._current = self._claimed.popleft()
                self._began_s = time.monotonic()
                yield batch
                if self._current is not None:
                    raise RuntimeError("write() must be called once for each batch of batches()")
            self._wait()
        self._finish()

    def write(self, result: Any) -> None:
        """The result of the last batch: tensors, numbers and texts, in lists, tuples and dictionaries."""
        if self._current is None:
            raise RuntimeError("write() must be called once for each batch of batches()")
        self._results.write(self._current, result)
        self._current = None
        self._count()
        self._report()
        self._go_if_told()

    def results(self) -> Iterator[tuple[range, Any]]:
        """(numbers of the items, their result) of all batches that are done, in the order of the items."""
        return read_results(self._results.folder)

    # Parts

    def claim_next(self) -> Iterator[list[int]]:
        """Items of one free part after the other, from a place of this worker's own on."""
        parts = self._results.parts
        first = self.rank * parts // max(self.world_size, 1)
        for place in range(first, first + parts):
            if self._results.claim(place % parts):
                self._claimed.append(place % parts)
                yield [*self._results.items_of(place % parts)]

    def _are_all_done(self) -> bool:
        return self._results.look() == self._results.parts

    def _wait(self) -> None:
        """Others do what is left: if one of them dies, its part is free again."""
        self._go_if_told()
        if not self._are_all_done():
            time.sleep(LOOK_S)

    # Coming and going

    def _go_if_told(self) -> None:
        if self._membership is not None and self._membership.has_left:
            self._end(0)
        if self._preemption.is_asked:
            self._end(STATUS)

    def _end(self, status: int) -> None:
        for part in self._claimed:
            self._results.give_up(part)
        self._close()
        raise SystemExit(status)

    def _finish(self) -> None:
        self._results.tidy()
        self._report(is_last=True)
        self._close()

    def _close(self) -> None:
        self._preemption.end()
        if self._membership is not None:
            self._membership.close()

    # Reports

    def _count(self) -> None:
        """How long the last batch took, from getting it to its result on disk."""
        took_s, generation = (
            time.monotonic() - self._began_s,
            self._membership and self._membership.generation,
        )
        self._batches += 1
        if self._batches > WARM_UP_STEPS and generation:
            point = OperatingPoint(generation.nodes, generation.gpus, self._results.size, 1)
            self._times.add_steps(point, 1, took_s)
            self._times.add_micro_batches(point, 1, took_s)

    def _report(self, is_last: bool = False) -> None:
        """As rank 0, of all workers, now and then."""
        now_s = time.monotonic()
        if (
            self._membership is None
            or self.rank
            or (now_s - self._reported_s < self._report_s and not is_last)
        ):
            return
        passed_s, self._reported_s = now_s - self._reported_s, now_s
        done, before = self._results.look(), self._first_done
        self._first_done = done
        left = self._results.parts - done
        size = self._results.size
        self._membership.channel.post(
            "report",
            step=done,
            epoch=0,
            samples=self._results.items_done,
            dataset_samples=self._results.items,
            progress_steps=done,
            points=self._times.points(),
            init_batch=size,
            max_batch=size,
            max_local=size,
            batch=size * self.world_size,
            left_s=left * passed_s / (done - before) if done > before else None,
        )


class _Sampler:
    """What a DataLoader takes its batches from: parts are claimed when it asks for them."""

    def __init__(self, job: InferenceJob) -> None:
        self._job = job

    def __iter__(self) -> Iterator[list[int]]:
        return self._job.claim_next()
