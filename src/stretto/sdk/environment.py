"""What a worker is told by the variables of its environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan

import torch

from stretto.model.errors import InputError

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
    grace_s: float = GRACE_S  # between SIGTERM and SIGKILL
    checkpoint_s: float = CHECKPOINT_S  # between two checkpoints, where the script does not say

    @property
    def is_elastic(self) -> bool:
        """Whether a service may change the size."""
        return bool(self.url)


def read_environment(env: Mapping[str, str] = os.environ) -> Environment:
    """From the variables; raises `InputError` where one is no number.

    The shell of a user of the service has its URL and token, too: without the id of a worker
    a script there runs alone.
    """
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
        grace_s=seconds(env, "STRETTO_GRACE_S", GRACE_S),
        checkpoint_s=seconds(env, "STRETTO_CHECKPOINT_S", CHECKPOINT_S),
    )


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


def device(env: Mapping[str, str] = os.environ) -> torch.device:
    """The GPU of this worker, made the current one; the processor where there is none.

    A backend shows each worker only its own GPUs, or shows all and tells them apart by LOCAL_RANK.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", number(env, "LOCAL_RANK", 0) % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen
