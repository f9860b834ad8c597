"""The time of a device: a GPU is some steps behind the processor that gives it work.

How long a step takes shows only in what the GPU has done. On the processor's clock, steps are over as soon as
they are given to the GPU, until its queue is full. Marks in the GPU's own stream cost a few microseconds, and
need no waiting.
"""

import time
from typing import Any

import torch

Mark = Any  # seconds of the processor's clock, or an event in the stream of a GPU


class DeviceClock:
    """Of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"

    def now_s(self) -> float:
        """By the processor's clock, once the device has done all that it was given."""
        if self._is_gpu:
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def mark(self, at_s: float) -> Mark:
        """Where a GPU has done all that it was given so far; on a processor, which is not behind, `at_s`."""
        if not self._is_gpu:
            return at_s
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between_s(self, first: Mark, last: Mark) -> float | None:
        """Seconds from one mark to a later one; None where a GPU has not come so far."""
        if not self._is_gpu:
            return float(last - first)
        return float(first.elapsed_time(last)) / 1e3 if last.query() else None
