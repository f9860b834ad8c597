"""The step of all optimisers after a backward pass: clipped, scaled, and at the rate of the batch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from stretto.sdk.settings import Settings
from stretto.sdk.training import Training

AS_IS = nullcontext()


def clip(training: Training, settings: Settings) -> None:
    """Gradients to the norm that the script has set, in their own scale."""
    if settings.max_grad_norm is None:
        return
    if settings.scaler is not None:
        for optimizer in training.optimizers:
            settings.scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(training.model.parameters(), settings.max_grad_norm)


def step(training: Training, scaler: Any, factor: float) -> None:
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
