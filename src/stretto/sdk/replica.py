"""The model as the training sees it: one object, whatever group is around it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Replica(nn.Module):
    """Calls the model through DDP while a batch is out in training, and directly otherwise.

    Evaluation makes no collective calls, so that ranks may evaluate different parts, or only one of them.
    """

    def __init__(self, module: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = options
        self.error_handler: AbstractContextManager[None] = nullcontext()  # around collective calls
        self._forget_group()

    def _forget_group(self) -> None:
        object.__setattr__(self, "_ddp", None)  # hidden from nn.Module: parameters are listed once
        self.in_micro_batch = False

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

    def begin_micro_batch(self, is_synchronised: bool) -> None:
        """The next forward and backward pass is of a micro-batch of the training."""
        self.__dict__["in_micro_batch"] = True  # as an attribute, without nn.Module's search
        ddp = self._wrapped()
        if ddp is not None:
            ddp.require_backward_grad_sync = is_synchronised  # what DDP.no_sync() sets

    def end_micro_batch(self) -> None:
        """Its backward pass is through."""
        self.__dict__["in_micro_batch"] = False

    def forget_micro_batches(self) -> None:
        """After some whose gradients were averaged by hand: DDP shall not remember what they used.

        It would take a parameter that they used for one of the next step, and find no gradient of it.
        """
        ddp = self._wrapped()
        if ddp is not None and self._options.get("find_unused_parameters"):
            ddp.reducer._reset_state()

    def _wrapped(self) -> DistributedDataParallel | None:
        return cast("DistributedDataParallel | None", self.__dict__["_ddp"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives."""
        ddp = self._wrapped() if self.in_micro_batch and torch.is_grad_enabled() else None
        if ddp is not None:
            with self.error_handler:
                return ddp(*args, **kwargs)
        return self.module(*args, **kwargs)


def which_are_trained(module: nn.Module) -> list[bool]:
    """Of all parameters, those that are not frozen."""
    return [each.requires_grad for each in module.parameters()]
