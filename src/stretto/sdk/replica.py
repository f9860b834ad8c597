"""The model as the training sees it: one object, whatever group is around it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stretto.sdk.state import pieces


class Replica(nn.Module):
    """Calls the model through DDP while a batch is out in training, and directly otherwise.

    Evaluation makes no collective calls, so that ranks may evaluate different parts, or only one of them.
    """

    def __init__(self, module: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = options
        self.guard: AbstractContextManager[None] = nullcontext()  # around collective calls
        self._forget_group()

    def _forget_group(self) -> None:
        object.__setattr__(self, "_ddp", None)  # hidden from nn.Module: parameters are listed once
        self.is_training_pass = False

    def join_group(self) -> None:
        """Wrap for the default group, or for none. Parameters must be the same on all ranks already."""
        self.leave_group()
        object.__setattr__(self, "_trained", which_are_trained(self.module))
        if dist.is_initialized() and any(each.requires_grad for each in self.module.parameters()):
            wrapped = DistributedDataParallel(self.module, init_sync=False, **self._options)
            object.__setattr__(self, "_ddp", wrapped)

    def follow_freezing(self) -> None:
        """Wrap anew where layers were frozen or thawed since: DDP averages what was trained before."""
        if dist.is_initialized() and which_are_trained(self.module) != self.__dict__["_trained"]:
            self.join_group()

    def leave_group(self) -> None:
        """Unwrap; gradients go, since they may be views of what the wrapper owned."""
        self._forget_group()
        for parameter in self.module.parameters():
            parameter.grad = None

    def begin_pass(self, is_synchronised: bool) -> None:
        """The next forward and backward pass is of the training."""
        self.__dict__["is_training_pass"] = True  # as an attribute, without nn.Module's search
        ddp = self._wrapped()
        if ddp is not None:
            ddp.require_backward_grad_sync = is_synchronised  # what DDP.no_sync() sets

    def end_pass(self) -> None:
        """Its backward pass is through."""
        self.__dict__["is_training_pass"] = False

    def forget_pass(self) -> None:
        """After passes whose gradients were averaged by hand: DDP shall not remember what they used.

        It would take a parameter that they used for one of the next step, and find no gradient of it.
        """
        ddp = self._wrapped()
        if ddp is not None and self._options.get("find_unused_parameters"):
            ddp.reducer._reset_state()

    def _wrapped(self) -> DistributedDataParallel | None:
        return cast("DistributedDataParallel | None", self.__dict__["_ddp"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives."""
        ddp = self._wrapped() if self.is_training_pass and torch.is_grad_enabled() else None
        if ddp is not None:
            with self.guard:
                return ddp(*args, **kwargs)
        return self.module(*args, **kwargs)


def which_are_trained(module: nn.Module) -> list[bool]:
    """Of all parameters, those that are not frozen."""
    return [each.requires_grad for each in module.parameters()]


def gradients_of(module: nn.Module) -> list[torch.Tensor]:
    """All that are there."""
    return [each.grad for each in module.parameters() if each.grad is not None]


def product(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The inner product of two gradients, tensor by tensor: together they would need memory once more."""
    parts = [
        torch.dot(a.detach().reshape(-1).float(), b.detach().reshape(-1).float())
        for a, b in zip(real(one), real(other), strict=True)
    ]
    return float(torch.stack([each.double() for each in parts]).sum())


@torch.no_grad()
def average_gradients(module: nn.Module) -> tuple[float, float]:
    """Average the gradients over the default group; Σ|g_i|² over ranks before, |ḡ|² after.

    As DDP does, but by hand, so that the gradients of each rank can be looked at before. A parameter that no
    rank used keeps no gradient.
    """
    parameters = [each for each in module.parameters() if each.requires_grad]
    device = parameters[0].device
    own = torch.zeros(len(parameters) + 1, dtype=torch.float64, device=device)
    for place, parameter in enumerate(parameters):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            own[place] = 1.0
    gradients = gradients_of(module)
    own[-1] = sum_of_squares(gradients)
    dist.all_reduce(own)
    world = dist.get_world_size()
    for piece in pieces(gradients):
        together = torch.cat([each.reshape(-1) for each in piece])
        dist.all_reduce(together)
        together /= world
        for each, part in zip(piece, torch.split(together, [each.numel() for each in piece]), strict=True):
            each.copy_(part.view_as(each))
    *used, sum_of_sqr = own.tolist()
    for parameter, by in zip(parameters, used, strict=True):
        if not by:
            parameter.grad = None
    return sum_of_sqr, float(sum_of_squares(gradients_of(module)))


def has_sparse_gradients(module: nn.Module) -> bool:
    """Whether a layer was made with `sparse=True`, as embeddings can be."""
    return any(getattr(each, "sparse", False) is True for each in module.modules())


def sum_of_squares(tensors: list[torch.Tensor]) -> torch.Tensor:
    """|·|² of all of them together."""
    parts = real(tensors)
    is_double = any(each.dtype is torch.float64 for each in parts)  # which is not narrowed
    norms = torch._foreach_norm(parts, 2, torch.float64 if is_double else torch.float32)
    return torch.stack([norm.double() for norm in norms]).square().sum()


def real(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same numbers, those of complex ones as two each."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
