"""What rank 0 tells the service now and then."""

import time
from typing import Any

import torch

from stretto.sdk.batch import Batch, Bounds
from stretto.sdk.channel import Channel
from stretto.sdk.progress import Progress
from stretto.sdk.speed import Speed


class Reporter:
    """Reports of one worker; None for a channel: to nobody."""

    def __init__(self, channel: Channel | None, every_s: float) -> None:
        self._channel, self._every_s = channel, every_s
        self._sent_s = time.monotonic()
        self._sent_samples: tuple[float, int] | None = None  # when, and how many samples there were
        self.loss: torch.Tensor | None = None  # of the last pass

    @property
    def is_due(self) -> bool:
        """Whether the last one was long enough ago."""
        return self._channel is not None and time.monotonic() - self._sent_s >= self._every_s

    def send(
        self, progress: Progress, speed: Speed, batch: Batch, bounds: Bounds, epochs: int | None
    ) -> None:
        """Tell how things stand."""
        if self._channel is None:
            return
        self._sent_s = time.monotonic()
        content: dict[str, Any] = {
            "step": progress.step,
            "epoch": progress.epoch,
            "samples": progress.samples,
            "dataset_samples": progress.dataset_samples,
            "progress_steps": progress.progress_steps,
            "points": speed.points(),
            "grad_sqr": progress.noise.sqr,
            "grad_var": progress.noise.var,
            "init_batch": bounds.initial,
            "max_batch": bounds.largest,
            "max_local": bounds.largest_local,
            "loss": None if self.loss is None else float(self.loss),
            "metric": progress.newest_metric,
            "epoch_metrics": progress.metrics or None,
            "batch": batch.total,
            "left_s": self._left_s(progress, epochs),
        }
        self._channel.post("report", **content)

    def _left_s(self, progress: Progress, epochs: int | None) -> float | None:
        """From the speed since the last report, evaluation included."""
        now_s, before = time.monotonic(), self._sent_samples
        self._sent_samples = now_s, progress.samples
        if epochs is None or before is None or progress.samples <= before[1]:
            return None
        left = (epochs - progress.epoch) * progress.dataset_samples - progress.taken
        return left * (now_s - before[0]) / (progress.samples - before[1])
