"""How much one caller may ask for: bytes, requests, streams."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

from stretto.model import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds of the interface; every value is chosen. None of submits or streams holds for the open door."""

    submits_per_s: float = 20.0  # of one user, in the long run
    submit_burst: int = 500  # at once, after a quiet time
    streams: int = 32  # that one user may follow at once
    body_bytes: int = 2 << 20  # twice the largest job file, for its escapes
    body_s: float = 30.0  # in which a body must have arrived
    durable_s: float = 30.0  # in which the store must have taken what was asked for
    header_bytes: int = 32 << 10

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name in ("submits_per_s", "submit_burst", "streams", "body_bytes", "body_s", "durable_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise InputError(f"{name} must be above 0, got {value}")


@dataclass
class Buckets:
    """A token bucket for each name; those that are full again are forgotten."""

    per_s: float
    burst: float
    now_s: Callable[[], float] = time.monotonic
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # (tokens, when that was so) by name

    def take(self, name: str) -> float:
        """Take one token; 0, or the seconds until there will be one."""
        now_s = self.now_s()
        tokens, at_s = self._left.get(name, (self.burst, now_s))
        tokens = min(self.burst, tokens + (now_s - at_s) * self.per_s)
        if tokens < 1.0:
            return (1.0 - tokens) / self.per_s
        self._left[name] = (tokens - 1.0, now_s)
        if len(self._left) > 1_000:
            full_s = self.burst / self.per_s
            self._left = {who: kept for who, kept in self._left.items() if now_s - kept[1] < full_s}
        return 0.0
