"""What is trained, and all that must go with it from one worker to another or to disk."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stretto.sdk import state
from stretto.sdk.progress import Progress


@dataclass(slots=True)
class Training:
    """Model, optimiser, and whatever else has a state."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    parts: Mapping[str, Any]  # with state_dict and load_state_dict: schedulers, scaler, the script's own
    progress: Progress
    device: torch.device
    changing: threading.Lock = field(default_factory=threading.Lock)  # held within the optimiser's step

    def model_tree(self) -> dict[str, Any]:
        """The tensors themselves, not copies."""
        return dict(self.model.state_dict())

    def other_tree(self) -> dict[str, Any]:
        """Likewise."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "progress": self.progress.as_dict(),
        }

    def adopt_model(self, tree: Mapping[str, Any]) -> None:
        """Parameters and buffers as given."""
        self.model.load_state_dict(tree)

    def adopt_other(self, tree: Mapping[str, Any]) -> None:
        """All but the model as given; parts that were not there before keep what they have."""
        self.progress.take_over(tree["progress"])
        self.optimizer.load_state_dict(tree["optimizer"])
        for name, saved in tree["parts"].items():
            if name in self.parts:
                self.parts[name].load_state_dict(saved)

    def send_from(self, source: int, is_newcomer: bool) -> None:
        """The state of rank `source` goes to all newcomers of the default group."""
        model = state.spread(self.model_tree(), source, self.device)
        other = state.spread(self.other_tree(), source, self.device)
        if is_newcomer:
            self.adopt_model(model)
            self.adopt_other(other)
