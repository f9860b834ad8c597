"""How far a training has come: the same on all ranks after each step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stretto.model.errors import InputError
from stretto.sdk.noise import Noise


@dataclass(slots=True)
class Progress:
    """Counters; together with the seed they say which samples are still to come."""

    dataset_samples: int
    seed: int
    epoch: int = 0
    taken: int = 0  # samples of this epoch, over all ranks
    step: int = 0  # steps of the optimiser
    samples: int = 0  # over all epochs
    progress_steps: float = 0.0  # steps of the initial batch that would have come as far (Sia, section 3.3)
    measured_step: int = 0  # when the noise was measured last
    noise: Noise = field(default_factory=Noise)
    metrics: list[float] = field(default_factory=list)  # at the end of every epoch
    metric: float | None = None  # of this epoch

    @property
    def newest_metric(self) -> float | None:
        """Of this epoch, else of the last one that had any."""
        return self.metric if self.metric is not None else next(reversed(self.metrics), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def take_over(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `as_dict` gave; raises `InputError` where the data are others."""
        if saved["dataset_samples"] != self.dataset_samples:
            raise InputError(
                f"the dataset must have the {saved['dataset_samples']} samples it had before,"
                f" got {self.dataset_samples}"
            )
        for name, value in saved.items():
            setattr(self, name, Noise(**value) if name == "noise" else value)

    def count_step(self, samples: int, gain: float) -> None:
        """One more step of the optimiser."""
        self.taken += samples
        self.samples += samples
        self.step += 1
        self.progress_steps += gain

    def end_epoch(self) -> None:
        """The next epoch begins."""
        if self.metric is not None:
            self.metrics.append(self.metric)
        self.epoch, self.taken, self.metric = self.epoch + 1, 0, None
