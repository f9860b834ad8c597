"""What a made or recorded job reports while it trains: a loss and a metric at the end of every epoch."""

from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite

import numpy as np

from stretto.model import FloatArray, InputError, frozen


@dataclass(frozen=True)
class LearningCurve:
    """A metric that rises and a loss that falls by power laws of the epochs done, with noise.

    metric(x) = best - (best - start) · (1 + x / knee)^(-pace), loss(x) = floor + (initial - floor) /
    (1 + x / knee). Made: no public trace of jobs has curves.
    """

    epochs: int  # until the job is done
    dataset_samples: float  # of one epoch
    best: float = 0.9  # metric that it approaches
    start: float = 0.1  # metric before training
    knee: float = 3.0  # epochs until the fast part is over
    pace: float = 1.0
    initial_loss: float = 2.3
    loss_floor: float = 0.1
    noise: float = 0.0  # standard deviation of the metric
    seed: int = 0  # of the noise

    def __post_init__(self) -> None:
        """Check the values."""
        if self.epochs < 1:
            raise InputError(f"a learning curve must have at least one epoch, got {self.epochs}")
        for name in ("epochs", "seed"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise InputError(f"a learning curve must have a whole number >= 0 as {name}, got {number!r}")
        for name, value in asdict(self).items():
            if not isfinite(value):
                raise InputError(f"a learning curve must have a finite {name}, got {value}")
        if not (self.dataset_samples > 0 and self.knee > 0 and self.pace > 0 and self.noise >= 0):
            raise InputError(
                f"a learning curve must have dataset_samples, knee and pace > 0 and noise >= 0, got {self}"
            )

    @cached_property
    def metrics(self) -> FloatArray:
        """(epochs,) the metric at the end of each epoch."""
        done = np.arange(1, self.epochs + 1)
        clean = self.best - (self.best - self.start) * (1 + done / self.knee) ** -self.pace
        return frozen(clean + np.random.default_rng(self.seed).normal(0.0, self.noise, self.epochs))

    def loss(self, done: float) -> float:
        """After so many epochs."""
        return self.loss_floor + (self.initial_loss - self.loss_floor) / (1 + done / self.knee)
