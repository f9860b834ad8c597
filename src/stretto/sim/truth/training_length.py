"""A training that ends after the steps its owner stated, and not when its model is usually trained."""

from dataclasses import dataclass
from functools import cached_property

from stretto.model import MeasuredSpeeds, TrainingLimits
from stretto.sim.truth.training import TrainingTruth, steps_left


@dataclass(frozen=True, eq=False)
class StatedSteps:
    """What a model does, with each epoch longer or shorter by the same factor."""

    trained: TrainingTruth
    factor: float

    @property
    def limits(self) -> TrainingLimits:
        """Of the model."""
        return self.trained.limits

    @cached_property
    def epoch_ends(self) -> tuple[float, ...]:
        """Cumulative progress, in steps of the model's initial batch."""
        return tuple(end * self.factor for end in self.trained.epoch_ends)

    @property
    def restart_s(self) -> float:
        """Of the model."""
        return self.trained.restart_s

    @property
    def slowdown(self) -> float:
        """Of the model."""
        return self.trained.slowdown

    def step(self, kind: int, shape: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """As the model's: a step takes as long, however many there are."""
        return self.trained.step(kind, shape, local_batch)

    def grad_stats(self, batch: float, epoch: int) -> tuple[float, float]:
        """As in the same epoch of the model."""
        return self.trained.grad_stats(batch, epoch)

    def most_local(self, kind: int, replicas: int) -> int:
        """As the model's."""
        return self.trained.most_local(kind, replicas)

    def alone_s(self, kind: int, gpus: int, batch: int) -> tuple[float, ...]:
        """Seconds to the end of each epoch."""
        return tuple(end_s * self.factor for end_s in self.trained.alone_s(kind, gpus, batch))

    def table(self, batch: int, most_gpus: int) -> MeasuredSpeeds:
        """As the model's."""
        return self.trained.table(batch, most_gpus)


def training_of(trained: TrainingTruth, steps: float, batch: int) -> StatedSteps:
    """The training that is over after `steps` steps of `batch` samples (0: of the initial batch)."""
    return StatedSteps(trained, steps / steps_left(trained, batch or trained.limits.init_batch, 0))
