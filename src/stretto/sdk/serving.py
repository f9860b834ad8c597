"""Serving: a model answers requests within a latency, on as many workers as there are.

Workers do not form a process group, and none waits for another. Each answers the requests that come to it,
those that wait together. How they come to it is the script's business.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from stretto.errors import InputError
from stretto.sdk.batch_times import BatchTimes
from stretto.sdk.channel import Channel
from stretto.sdk.entry_point import check_launcher
from stretto.sdk.membership import Membership
from stretto.sdk.settings import Environment, read_environment
from stretto.sdk.shutdown import STATUS, Preemption, end_quickly

REPORT_S = 30.0
LOOK_S = 0.1  # between looks whether to leave, while no request comes; chosen
REMEMBERED = 4096  # latencies, for percentiles of a report; chosen


class Leaving(RuntimeError):
    """This worker is to end, and takes no more requests: they have to go to another."""


def serve(*, batch_size: int, latency_s: float | None = None, report_s: float = REPORT_S) -> "ServingJob":
    """The job of this script; blocks until the service wants this worker to begin.

    batch_size: requests that a worker can answer together at most. latency_s: within which each is to be
    answered; unless report, that of the job file, which the service says in STRETTO_LATENCY_S. Without either
    as many are answered together as wait. report_s: between two reports. Without a worker's environment the
    script serves alone.

    Raises `InputError` where an argument or a variable of the environment is wrong.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be >= 1, got {batch_size}")
    if latency_s is not None and not latency_s > 0:
        raise InputError(f"latency_s must be > 0, got {latency_s}")
    environment = read_environment()
    if environment.is_elastic:
        check_launcher()
        end_quickly()
    return ServingJob(batch_size, latency_s or environment.latency_s, environment, report_s)


class _Asked(NamedTuple):
    """A request that waits, or is being answered."""

    request: Any
    answer: "Future[Any]"
    at_s: float


class ServingJob:
    """Requests that wait, and batches of them. Built by `serve`."""

    def __init__(self, batch_size: int, latency_s: float, environment: Environment, report_s: float) -> None:
        self.latency_s = latency_s  # 0: none was promised
        self._most, self._environment, self._report_s = batch_size, environment, report_s
        self._waiting: deque[_Asked] = deque()
        self._news = threading.Condition()  # guards the two above and below
        self._is_leaving = False
        self._batch: list[_Asked] = []  # that the script has
        self._began_s = self._reported_s = time.monotonic()
        self._times = BatchTimes(batch_size, latency_s)
        self._latencies: deque[float] = deque(maxlen=REMEMBERED)  # since the last report
        self._batches = self._answered = self._late = 0
        self._generation = 0  # in which batches were timed
        self._preemption = Preemption(environment.grace_s, lambda: None)
        self._membership: Membership | None = None
        if environment.is_elastic:
            channel = Channel(environment.url, environment.token, environment.worker, environment.authorities)
            self._membership = Membership(channel, self._preemption, lambda: self._batches)
            self._membership.await_first()

    @property
    def rank(self) -> int:
        """Of this worker among those that serve now; it may change."""
        return self._membership.rank if self._membership else self._environment.rank

    @property
    def world_size(self) -> int:
        """How many serve now."""
        return self._membership.generation.world if self._membership else self._environment.world

    @property
    def largest_batch(self) -> int:
        """Requests that this worker answers together at most, as the latency allows."""
        return self._times.largest

    # Requests, from whatever threads the script has

    def ask(self, request: Any) -> "Future[Any]":
        """The answer, once there is one. Raises `Leaving` where this worker is to end."""
        asked = _Asked(request, Future(), time.monotonic())
        with self._news:
            if self._is_leaving:
                raise Leaving("this worker takes no more requests")
            self._waiting.append(asked)
            self._news.notify()
        return asked.answer

    # The loop of the script

    def batches(self) -> Iterator[list[Any]]:
        """Requests that are to be answered together; `answer` must follow each.

        A worker that is to go answers what waits, and leaves then: the process ends.
        """
        while True:
            self._batch = self._take()
            if self._batch:
                self._began_s = time.monotonic()
                yield [asked.request for asked in self._batch]
                if self._batch:
                    raise RuntimeError("answer() must be called once for each batch of batches()")
            self._report()
            self._go_if_told()

    def answer(self, answers: Sequence[Any]) -> None:
        """Those of the last batch, in its order."""
        batch, self._batch = self._batch, []
        if not batch:
            raise RuntimeError("answer() must be called once for each batch of batches()")
        if len(answers) != len(batch):
            self._batch = batch
            raise ValueError(f"expected an answer to each of {len(batch)} requests, got {len(answers)}")
        now_s = time.monotonic()
        self._batches += 1
        self._time(len(batch), now_s - self._began_s)
        for asked, answer in zip(batch, answers, strict=True):
            took_s = now_s - asked.at_s
            self._latencies.append(took_s)
            self._answered += 1
            self._late += bool(self.latency_s) and took_s > self.latency_s
            asked.answer.set_result(answer)

    def _time(self, size: int, seconds: float) -> None:
        number = self._membership.generation.number if self._membership else 0
        if number != self._generation:
            self._generation = number
            self._times.forget()
        self._times.add(size, seconds)

    def _take(self) -> list[_Asked]:
        """What waits, as much as may be answered together; waits a moment where nothing does."""
        with self._news:
            if not self._waiting and not self._is_leaving:
                self._news.wait(LOOK_S)
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), self.largest_batch))]
        return [asked for asked in taken if asked.answer.set_running_or_notify_cancel()]

    # Coming and going

    def _go_if_told(self) -> None:
        has_left = self._membership is not None and self._membership.has_left
        if not (has_left or self._preemption.is_asked):
            return
        with self._news:
            self._is_leaving = True
            if self._waiting:
                return
        self._report(is_last=True)
        self._preemption.end()
        if self._membership is not None:
            self._membership.close()
        raise SystemExit(STATUS if self._preemption.is_asked else 0)

    # Reports

    def _report(self, is_last: bool = False) -> None:
        """Now and then: each worker of its requests, and rank 0 of how long batches take."""
        now_s, membership = time.monotonic(), self._membership
        if membership is None or (now_s - self._reported_s < self._report_s and not is_last):
            return
        self._reported_s = now_s
        report: dict[str, Any] = {"requests": {membership.channel.worker: self._requests()}}
        if not self.rank:
            generation = membership.generation
            report |= {
                "step": self._batches,
                "batch": self.largest_batch * max(generation.world, 1),
                "max_local": self._most,
                "points": self._times.points(generation.nodes, generation.gpus),
            }
        membership.channel.post("report", **report)

    def _requests(self) -> dict[str, float]:
        latest = sorted(self._latencies)
        self._latencies.clear()
        counted: dict[str, float] = {"answered": self._answered, "late": self._late}
        if latest:
            counted["p50_s"] = latest[len(latest) // 2]
            counted["p99_s"] = latest[min(len(latest) * 99 // 100, len(latest) - 1)]
        return counted
