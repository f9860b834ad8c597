"""What a job is run with: what the service says in the environment, and what the script chooses.

In the rules of learning rates k = M/M0, with M the batch and M0 the one that the rate was chosen for.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf, nan, sqrt
from typing import Any

import torch

from stretto.model import InputError, in_proportion

GRACE_S = 30.0  # where neither service nor script says; the service's own default
CHECKPOINT_S = 600.0  # likewise; chosen


@dataclass(frozen=True, slots=True)
class Environment:
    """Which worker this process is, and of which service."""

    url: str = ""  # of the service; empty: standalone, at a fixed size
    token: str = ""
    worker: str = ""  # JOB.ATTEMPT.INDEX
    checkpoint_dir: str = ""  # empty: no checkpoints
    rank: int = 0  # of a standalone run, as torchrun says
    world: int = 1  # likewise
    local_world: int = 1  # likewise
    gpus: int = 1  # of this worker
    grace_s: float = GRACE_S  # between SIGTERM and SIGKILL
    checkpoint_s: float = CHECKPOINT_S  # between two checkpoints, where the script does not say
    authorities: str = ""  # certificates that the service is verified by; empty: the system's
    lr_scaling: str = ""  # by the job file, how the learning rate follows, where the script does not say
    latency_s: float = 0.0  # likewise, within which a job that serves answers; 0: it promises nothing

    @property
    def is_elastic(self) -> bool:
        """Whether a service may change the size."""
        return bool(self.url)


def read_environment(env: Mapping[str, str] = os.environ) -> Environment:
    """From the variables; raises `InputError` where one is no number, or names no rule.

    The shell of a user of the service has its URL and token, too: without the id of a worker
    a script there runs alone.
    """
    # A worker hears its rank from the service; without one it is that of torchrun, if there is any.
    worker = env.get("STRETTO_WORKER_ID", "")
    url = env.get("STRETTO_URL", "").rstrip("/") if worker else ""
    return Environment(
        url=url,
        token=env.get("STRETTO_TOKEN", "") if worker else "",
        worker=worker,
        checkpoint_dir=env.get("STRETTO_CHECKPOINT_DIR", ""),
        rank=0 if url else number(env, "RANK", 0),
        world=1 if url else number(env, "WORLD_SIZE", 1),
        local_world=1 if url else number(env, "LOCAL_WORLD_SIZE", 1),
        gpus=max(number(env, "STRETTO_GPUS_PER_WORKER", 1), 1),
        grace_s=seconds(env, "STRETTO_GRACE_S", GRACE_S),
        checkpoint_s=seconds(env, "STRETTO_CHECKPOINT_S", CHECKPOINT_S),
        authorities=env.get("STRETTO_CA_CERTIFICATES", ""),
        lr_scaling=rule_name(env, "STRETTO_LR_SCALING"),
        latency_s=seconds(env, "STRETTO_LATENCY_S", 0.0),
    )


def rule_name(env: Mapping[str, str], name: str) -> str:
    """A variable that names a rule of learning rates; "" where it is not there."""
    text = env.get(name, "")
    if text and text not in RULES:
        raise InputError(f"{name} must be one of {', '.join(RULES)}, got {text!r}")
    return text


def number(env: Mapping[str, str], name: str, default: int) -> int:
    """A variable that is a whole number."""
    text = env.get(name, "")
    if text and not text.isdecimal():
        raise InputError(f"{name} must be a whole number, got {text!r}")
    return int(text) if text else default


def seconds(env: Mapping[str, str], name: str, default: float) -> float:
    """A variable that is a time."""
    text = env.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = nan
    if not 0.0 <= value < inf:
        raise InputError(f"{name} must be a number of seconds, got {text!r}")
    return value


def has_gpus(env: Mapping[str, str]) -> bool:
    """Whether there is a GPU for this worker: a slot for processors has none, also on a machine with GPUs."""
    return env.get("STRETTO_GPU_TYPE") != "cpu" and torch.cuda.is_available()


def device(env: Mapping[str, str] = os.environ) -> torch.device:
    """The GPU of this worker, made the current one; the processor where there is none.

    A backend shows each worker only its own GPUs, or shows all and tells them apart by LOCAL_RANK.
    """
    if not has_gpus(env):
        return torch.device("cpu")
    chosen = torch.device("cuda", number(env, "LOCAL_RANK", 0) % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def devices(env: Mapping[str, str] = os.environ) -> tuple[torch.device, ...]:
    """The GPUs of this worker, the first made the current one; as often the processor where there is none.

    As many as its job file says in `gpus_per_worker` for the GPU type: one stage of a pipeline for each, say.
    Raises `InputError` where fewer can be seen.
    """
    count = max(number(env, "STRETTO_GPUS_PER_WORKER", 1), 1)
    if not has_gpus(env):
        return (torch.device("cpu"),) * count
    visible = torch.cuda.device_count()
    if visible < count:
        raise InputError(f"STRETTO_GPUS_PER_WORKER must be at most the {visible} GPUs seen, got {count}")
    first = number(env, "LOCAL_RANK", 0) * count % (visible // count * count)
    torch.cuda.set_device(first)
    return tuple(torch.device("cuda", first + place) for place in range(count))


# ── what the script chooses ─────────────────────────────────────────────────────────────────────────────────


Rule = Callable[[float, float], float]  # of k and the gain


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the script allows."""

    initial: int  # samples a step that the learning rate was chosen for
    largest: int  # samples a step at most; the same as `initial`: the batch is fixed
    largest_local: int | None = None  # samples of one micro-batch of one worker at most: its memory

    def __post_init__(self) -> None:
        if self.initial < 1:
            raise InputError(f"batch_size must be >= 1, got {self.initial}")
        if self.largest < self.initial:
            raise InputError(f"max_batch_size must be >= batch_size={self.initial}, got {self.largest}")
        if self.largest_local is not None and self.largest_local < 1:
            raise InputError(f"max_local_batch must be >= 1, got {self.largest_local}")


@dataclass(frozen=True, slots=True)
class Batch:
    """Of one step."""

    total: int  # samples a step, over all workers
    accumulation: int  # micro-batches of each worker in a step
    by_worker: tuple[int, ...] = ()  # samples of each worker, by rank; empty: evenly

    def local(self, world: int) -> int:
        """Samples of one micro-batch of one worker, on average and rounded up."""
        return ceil(self.total / world / self.accumulation)


@dataclass(frozen=True, slots=True)
class RequestedBatch:
    """The batch that the service wants; None: the script's own bounds decide."""

    total: int  # samples a step, over all workers
    accumulation: int | None = None  # micro-batches of each worker in a step
    by_worker: tuple[int, ...] = ()  # samples of each worker, by rank; empty: evenly


def choose_batch(bounds: Bounds, world: int, requested: RequestedBatch | None) -> Batch:
    """The batch for `world` workers: as requested, within the bounds; else one worker's share for each.

    The service and the script may know different bounds; the script's count. A batch that is told worker by
    worker may be less than the initial one. Under some policies a job starts with what fits on one GPU.
    Accumulation grows until a micro-batch fits into `largest_local`.
    """
    by_worker = requested.by_worker if requested and len(requested.by_worker) == world else ()
    total = requested.total if requested else bounds.initial * world
    is_fixed = bounds.largest == bounds.initial
    least = world if by_worker and not is_fixed else bounds.initial
    total = max(least, min(total, bounds.largest))
    if by_worker:
        by_worker = in_proportion(by_worker, total)
        by_worker = by_worker if min(by_worker) else ()  # a worker without samples would be none
    share = max(by_worker, default=ceil(total / world))
    accumulation = max(1, (requested.accumulation if requested else None) or 1)
    if bounds.largest_local is not None:
        accumulation = max(accumulation, ceil(share / bounds.largest_local))
    return Batch(total, min(accumulation, share), by_worker)


def linear(scale: float, gain: float) -> float:
    """The factor k. Goyal et al. (2017)."""
    return scale


def square_root(scale: float, gain: float) -> float:
    """√k, for adaptive optimisers. Krizhevsky (2014)."""
    return sqrt(scale)


def adascale(scale: float, gain: float) -> float:
    """The gain of one step at M over one at M0. Johnson et al. (ICML 2020), section 3."""
    return gain


def adamscale(scale: float, gain: float) -> float:
    """√gain, for adaptive optimisers."""
    return sqrt(gain)


def fixed(scale: float, gain: float) -> float:
    """Always 1."""
    return 1.0


RULES: Mapping[str, Rule] = {
    "linear": linear,
    "square-root": square_root,
    "sqrt": square_root,
    "adascale": adascale,
    "adamscale": adamscale,
    "fixed": fixed,
}


def rule_named(name: str) -> Rule:
    """The rule of that name; raises `InputError` naming the rules there are."""
    if name not in RULES:
        raise InputError(f"lr_scaling must be one of {', '.join(RULES)}, got {name!r}")
    return RULES[name]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a script may choose."""

    bounds: Bounds
    rule: Rule = fixed
    shuffle: bool = True
    scaler: Any = None  # torch.amp.GradScaler
    loader: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the DataLoader
    ddp: Mapping[str, Any] = field(default_factory=dict)  # further arguments of DistributedDataParallel
    max_grad_norm: float | None = None
    grace_s: float = GRACE_S  # between SIGTERM and SIGKILL
    timeout_s: float = 1800.0  # of a collective call: ranks may be so far apart
    report_s: float = 30.0
    checkpoint_s: float = CHECKPOINT_S  # between two checkpoints
