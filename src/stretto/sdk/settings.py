"""What a script may choose when it makes its loop elastic."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.sdk.batch import Bounds
from stretto.sdk.environment import CHECKPOINT_S, GRACE_S
from stretto.sdk.learning_rate import Rule, fixed


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
