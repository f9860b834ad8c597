"""Making a plain training loop elastic."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from stretto.model.errors import InputError
from stretto.sdk.batch import Bounds
from stretto.sdk.ending import end_quickly
from stretto.sdk.environment import read_environment
from stretto.sdk.job import ElasticJob, Settings
from stretto.sdk.learning_rate import rule_named
from stretto.sdk.progress import Progress
from stretto.sdk.training import Training


def elastic(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    data: Dataset[Any],
    batch_size: int,
    max_batch_size: int | None = None,
    max_local_batch: int | None = None,
    lr_scaling: str = "fixed",
    schedulers: Iterable[Any] = (),
    scaler: Any = None,
    also: Mapping[str, Any] | None = None,
    seed: int = 0,
    checkpoint_dir: str | None = None,
    **settings: Any,
) -> ElasticJob:
    """The job of this script; blocks until this worker is in a group that trains.

    batch_size is what the learning rate was chosen for; with max_batch_size the batch may grow with the
    number of workers, the learning rate by the rule `lr_scaling` (linear, sqrt, adascale, adamscale, fixed).
    `schedulers`, `scaler` and what is in `also` by name (things with state_dict and load_state_dict) go with
    the model to newcomers and into checkpoints; the script steps its schedulers itself. Further settings are
    the fields of `Settings`. Without STRETTO_URL the script runs alone, or in the group of torchrun.

    Raises `InputError` where an argument or a variable of the environment is wrong.
    """
    count = len(data) if hasattr(data, "__len__") else 0
    if count < 1:
        raise InputError(
            f"data must have a length and at least one sample, got {type(data).__name__} of {count}"
        )
    unknown = sorted(settings.keys() - Settings.__dataclass_fields__.keys())
    if unknown:
        raise InputError(f"elastic() knows no argument {unknown[0]!r}")
    parts = {f"scheduler-{place}": each for place, each in enumerate(schedulers)}
    parts |= {"scaler": scaler} if scaler is not None else {}
    parts |= {f"also-{name}": each for name, each in (also or {}).items()}
    on = next(iter(model.parameters())).device
    if on.type == "cuda":
        torch.cuda.set_device(on)  # NCCL talks from the current device of each process
    training = Training(model, optimizer, parts, Progress(count, seed), on)
    bounds = Bounds(batch_size, max_batch_size or batch_size, max_local_batch)
    environment = read_environment()
    if checkpoint_dir is not None:
        environment = replace(environment, checkpoint_dir=checkpoint_dir)
    chosen = Settings(
        bounds=bounds,
        rule=rule_named(lr_scaling),
        scaler=scaler,
        **({"grace_s": environment.grace_s, "checkpoint_s": environment.checkpoint_s} | settings),
    )
    if environment.is_elastic:
        end_quickly()
    return ElasticJob(training, data, chosen, environment)
