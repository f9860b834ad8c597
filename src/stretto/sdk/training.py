"""What is trained: its progress, its optimizer step, and the state that goes to other workers and to disk."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from stretto.errors import InputError
from stretto.sdk import state
from stretto.sdk.settings import Settings
from stretto.sdk.step_profiler import Noise

AS_IS = nullcontext()
MOST_FOUND = 16  # names of metrics that are kept; chosen


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
    found: dict[str, float] = field(default_factory=dict)  # by evaluations: the newest of each name

    def note_found(self, metrics: Mapping[str, float]) -> None:
        """What an evaluation found; the first that is no loss is the metric of this epoch."""
        numbers = {name: float(value) for name, value in metrics.items()}
        chosen = [value for name, value in numbers.items() if "loss" not in name] or [*numbers.values()]
        if chosen:
            self.metric = chosen[0]
            older = {name: value for name, value in self.found.items() if name not in numbers}
            self.found = dict([*older.items(), *numbers.items()][-MOST_FOUND:])

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


@dataclass(slots=True)
class Training:
    """Model, optimisers, and whatever else has a state."""

    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    parts: Mapping[str, Any]  # with state_dict and load_state_dict: schedulers, scaler, `extra_state`
    progress: Progress
    device: torch.device
    changing: threading.Lock = field(default_factory=threading.Lock)  # taken for the optimiser's step
    _frozen: dict[str, Any] | None = None
    _stepped: Any = None  # where the GPU is after the optimiser's last step

    def has_stepped(self) -> None:
        """The optimiser's step is given to the device."""
        if self.device.type == "cuda":
            self._stepped = self._stepped or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._stepped.record(torch.cuda.current_stream(self.device))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Where tensors can be read as they are after the last step, whatever the device waits for since.

        A collective call whose peer is gone keeps the GPU's main stream waiting for ever.
        """
        if self._stepped is None:
            yield
            return
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_event(self._stepped)
        with torch.cuda.stream(stream):
            yield

    def await_device(self) -> None:
        """Until the GPU has done all that it was given: a group whose calls are under way cannot be left."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def model_tree(self) -> dict[str, Any]:
        """The tensors themselves, not copies."""
        return dict(self.model.state_dict())

    def other_tree(self) -> dict[str, Any]:
        """Likewise."""
        optimizers, frozen = [each.state_dict() for each in self.optimizers], self._frozen
        if frozen is not None:
            optimizers = [
                {**each, "param_groups": groups}
                for each, groups in zip(optimizers, frozen["param_groups"], strict=True)
            ]
        return {
            "optimizers": optimizers,
            "parts": self._parts_tree() if frozen is None else frozen["parts"],
            "progress": self.progress.as_dict(),
        }

    def random_tree(self) -> dict[str, Any]:
        """The generators of this process."""
        return state.random_state(self.device) if self._frozen is None else self._frozen["random"]

    def freeze(self) -> None:
        """An epoch's batches are through: until `release`, a checkpoint is of this moment.

        A training that goes on from it does again what the script does between epochs: schedulers that
        have stepped already would otherwise step twice. Parameters and the optimiser's tensors do not change.
        """
        groups = [each.state_dict()["param_groups"] for each in self.optimizers]
        tree = {"param_groups": groups, "parts": self._parts_tree()}
        # Plain values are copied as they are, tensors to the host: GPUs may have no room for them twice.
        tensors: list[torch.Tensor] = []
        skeleton = deepcopy(state.take_out(tree, tensors))
        copied = state.put_back(skeleton, [tensor.detach().to("cpu", copy=True) for tensor in tensors])
        self._frozen = {**copied, "random": state.random_state(self.device)}

    def release(self) -> None:
        """The epoch is over, and what the script did after its batches counts."""
        self._frozen = None

    def _parts_tree(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def adopt_model(self, tree: Mapping[str, Any]) -> None:
        """Parameters and buffers as given."""
        self.model.load_state_dict(tree)

    def adopt_other(self, tree: Mapping[str, Any]) -> None:
        """All but the model as given; parts that were not there before keep what they have."""
        self.progress.take_over(tree["progress"])
        saved = tree["optimizers"] if "optimizers" in tree else [tree["optimizer"]]  # as it was written once
        if len(saved) != len(self.optimizers):
            raise InputError(f"optimizer must be {len(saved)} as before, got {len(self.optimizers)}")
        for optimizer, state_dict in zip(self.optimizers, saved, strict=True):
            optimizer.load_state_dict(state_dict)
        for name, part in tree["parts"].items():
            if name in self.parts:
                self.parts[name].load_state_dict(part)

    def send_from(self, source: int, is_newcomer: bool) -> None:
        """The state of rank `source` goes to all newcomers of the default group."""
        model = state.spread(self.model_tree(), source, self.device)
        trained = [each.requires_grad for each in self.model.parameters()]
        other = state.spread({**self.other_tree(), "trained": trained}, source, self.device)
        if is_newcomer:
            for parameter, is_trained in zip(self.model.parameters(), other["trained"], strict=True):
                parameter.requires_grad_(is_trained)
            self.adopt_model(model)
            self.adopt_other(other)


def clip(training: Training, settings: Settings) -> None:
    """Gradients to the norm that the script has set, in their own scale."""
    if settings.max_grad_norm is None:
        return
    if settings.scaler is not None:
        for optimizer in training.optimizers:
            settings.scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(training.model.parameters(), settings.max_grad_norm)


def optimizer_step(training: Training, scaler: Any, factor: float) -> None:
    """One step of each, at `factor` times its learning rates; `scaler` may leave it out."""
    for optimizer in training.optimizers:
        with scaled_rates(optimizer, factor) if factor != 1.0 else AS_IS:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
    if scaler is not None:
        scaler.update()


def forget_gradients(training: Training) -> None:
    """No gradients are there after this."""
    for optimizer in training.optimizers:
        optimizer.zero_grad(set_to_none=True)


@contextmanager
def scaled_rates(optimizer: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """Learning rates times `factor`, for one step only: schedulers see their own."""
    rates = [each["lr"] for each in optimizer.param_groups]
    for each in optimizer.param_groups:
        each["lr"] = each["lr"] * factor
    yield
    for each, rate in zip(optimizer.param_groups, rates, strict=True):
        each["lr"] = rate
