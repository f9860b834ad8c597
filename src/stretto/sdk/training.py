"""What is trained, and all that must go with it from one worker to another or to disk."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stretto.model.errors import InputError
from stretto.sdk import state
from stretto.sdk.progress import Progress


@dataclass(slots=True)
class Training:
    """Model, optimisers, and whatever else has a state."""

    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    parts: Mapping[str, Any]  # with state_dict and load_state_dict: schedulers, scaler, the script's own
    progress: Progress
    device: torch.device
    changing: threading.Lock = field(default_factory=threading.Lock)  # held within the optimiser's step
    _held: dict[str, Any] | None = None
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
        optimizers, held = [each.state_dict() for each in self.optimizers], self._held
        if held is not None:
            optimizers = [
                {**each, "param_groups": groups}
                for each, groups in zip(optimizers, held["param_groups"], strict=True)
            ]
        return {
            "optimizers": optimizers,
            "parts": self._parts_tree() if held is None else held["parts"],
            "progress": self.progress.as_dict(),
        }

    def random_tree(self) -> dict[str, Any]:
        """The generators of this process."""
        return state.random_state(self.device) if self._held is None else self._held["random"]

    def hold(self) -> None:
        """An epoch's batches are through: until `release`, a checkpoint is of this moment.

        Who goes on from it does again what the script does between epochs: schedulers that have stepped
        already would otherwise step twice. Parameters and the optimiser's tensors do not change there.
        """
        groups = [each.state_dict()["param_groups"] for each in self.optimizers]
        kept = {"param_groups": groups, "parts": self._parts_tree()}
        tensors: list[torch.Tensor] = []
        skeleton = deepcopy(state.take_out(kept, tensors))
        held = state.put_back(skeleton, [tensor.detach().to("cpu", copy=True) for tensor in tensors])
        self._held = {**held, "random": state.random_state(self.device)}

    def release(self) -> None:
        """The epoch is over, and what the script did after its batches counts."""
        self._held = None

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
