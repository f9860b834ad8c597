"""The entry point: `elastic` checks what a script gives and makes the job of it."""

import logging
import os
import pickle
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from stretto.errors import InputError
from stretto.sdk import state
from stretto.sdk.job import ElasticJob
from stretto.sdk.sampler import check_loader, count_of
from stretto.sdk.settings import Bounds, Environment, Settings, read_environment, rule_named
from stretto.sdk.shutdown import end_quickly
from stretto.sdk.training import Progress, Training

log = logging.getLogger("stretto.sdk")


def elastic(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    data: Dataset[Any],
    batch_size: int,
    max_batch_size: int | None = None,
    max_local_batch: int | None = None,
    lr_scaling: str | None = None,
    schedulers: Iterable[Any] = (),
    scaler: Any = None,
    extra_state: Mapping[str, Any] | None = None,
    seed: int = 0,
    checkpoint_dir: str | None = None,
    also: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ElasticJob:
    """The job of this script; blocks until this worker is in a group that trains.

    Of several optimizers all make a step after the same backward pass.
    batch_size is what the learning rate was chosen for. With max_batch_size the batch may grow with the
    number of workers. The learning rate then grows by the rule `lr_scaling` (linear, sqrt, adascale,
    adamscale, fixed). None: as `batch.lr_scaling` of the job file says, else fixed. `schedulers`, `scaler`
    and what is in `extra_state` by name (things with state_dict and load_state_dict) go with the model to
    newcomers and into checkpoints. The script steps its schedulers itself. `also` is the former name of
    `extra_state`. Further settings are the fields of `Settings`. Without STRETTO_URL the script runs alone,
    or in the group of torchrun.

    Raises `InputError` where an argument or a variable of the environment is wrong.
    """
    # What the script gives, each part refused before anything has begun.
    count = count_of(data)
    unknown = sorted(settings.keys() - Settings.__dataclass_fields__.keys())
    if unknown:
        raise InputError(f"elastic() knows no argument {unknown[0]!r}")
    if also is not None:
        if extra_state is not None:
            raise InputError("extra_state and also are one argument under two names, got both")
        warnings.warn("elastic(also=...) is now elastic(extra_state=...)", DeprecationWarning, stacklevel=2)
        extra_state = also
    parts = parts_of(schedulers, scaler, extra_state or {})
    check_loader(settings.get("loader", {}))
    on = device_of(model)
    if on.type == "cuda":
        torch.cuda.set_device(on)  # NCCL talks from the current device of each process
    optimizers = (optimizer,) if isinstance(optimizer, torch.optim.Optimizer) else tuple(optimizer)
    training = Training(model, optimizers, parts, Progress(count, seed), on)
    bounds = Bounds(batch_size, max_batch_size or batch_size, max_local_batch)
    # What the environment says; the script's own arguments come before it.
    environment = read_environment()
    if checkpoint_dir is not None:
        environment = replace(environment, checkpoint_dir=checkpoint_dir)
    chosen = Settings(
        bounds=bounds,
        rule=rule_named(chosen_rule(lr_scaling, environment)),
        scaler=scaler,
        **({"grace_s": environment.grace_s, "checkpoint_s": environment.checkpoint_s} | settings),
    )
    # Only where the size may change must the process be a worker's own, and end as soon as it is through.
    if environment.is_elastic:
        check_first(environment)
        check_launcher()
        end_quickly()
    return ElasticJob(training, data, chosen, environment)


def chosen_rule(lr_scaling: str | None, environment: Environment) -> str:
    """The script's rule where it names one, else the job file's; a warning where they differ."""
    of_job_file = environment.lr_scaling
    if lr_scaling is None:
        return of_job_file or "fixed"
    if of_job_file and rule_named(lr_scaling) is not rule_named(of_job_file):
        log.warning(
            "the learning rate follows lr_scaling=%r of the script, not %r of the job file",
            *(lr_scaling, of_job_file),
        )
    return lr_scaling


def parts_of(schedulers: Iterable[Any], scaler: Any, extra_state: Mapping[str, Any]) -> dict[str, Any]:
    """All that has a state beside model and optimizers, by the names that checkpoints know it by.

    Raises `InputError` where the state of one cannot go to another worker.
    """
    parts = {f"scheduler-{place}": each for place, each in enumerate(schedulers)}
    parts |= {"scaler": scaler} if scaler is not None else {}
    parts |= {f"{EXTRA}{name}": each for name, each in extra_state.items()}
    for name, part in parts.items():
        check_part(name, part)
    return parts


EXTRA = "also-"  # before the names of extra_state: checkpoints have it from the argument's former name
BEGUN: set[tuple[str, str]] = set()  # workers that this process has been: services and ids


def check_first(environment: Environment) -> None:
    """Raise `InputError` where this process is in a group already, or has been in one of this worker."""
    if dist.is_initialized():
        raise InputError(
            "elastic() must come before any process group, got one: it forms them itself, so leave out"
            " init_process_group"
        )
    worker = environment.url, environment.worker
    if worker in BEGUN:
        raise InputError(
            "elastic() must be called once in a job that may be resized, got a second call: train what"
            " comes next as a job of its own (depends_on)"
        )
    BEGUN.add(worker)


def check_launcher(env: Mapping[str, str] = os.environ) -> None:
    """Raise `InputError` in a process of torchrun's: all that it starts would be the same worker."""
    own, of_torchrun = env.get("STRETTO_JOB_ID"), env.get("TORCHELASTIC_RUN_ID")
    if own and of_torchrun and own != of_torchrun:
        raise InputError(
            "elastic() must be called by what the job runs, got a process of torchrun: leave torchrun out,"
            " since each GPU has a worker, or unset STRETTO_WORKER_ID to train in its group at a fixed size"
        )


def device_of(model: nn.Module) -> torch.device:
    """Where the model is; raises `InputError` where it is no plain module with parameters."""
    if isinstance(model, DistributedDataParallel):
        raise InputError("model must be the module itself, got it wrapped: leave out DistributedDataParallel")
    first = next(model.parameters(), None)
    if first is None:
        raise InputError(f"model must have parameters, got {type(model).__name__} without any")
    return first.device


def check_part(name: str, part: Any) -> None:
    """Raise `InputError` where the state of a part cannot go to another worker."""
    is_extra = name.startswith(EXTRA)
    argument = f"extra_state[{name.removeprefix(EXTRA)!r}]" if is_extra else name.partition("-")[0]
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        raise InputError(
            f"{argument} must have state_dict and load_state_dict, got {type(part).__name__}: put it into"
            " something that has, such as a buffer of a module"
        )
    try:
        pickle.dumps(state.take_out(part.state_dict(), []))
    except Exception as failed:  # a pickler raises whatever it met
        raise InputError(f"{argument} must have a state that can be pickled, got {failed}") from None
