"""How much one caller may ask for: bytes, requests, streams, connections."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from math import inf, isfinite

from stretto.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds of the interface; every value is chosen. None of submits or streams holds for the open door."""

    submits_per_s: float = 20.0  # of one user, in the long run
    submit_burst: int = 500  # at once, after a quiet time
    tasks_per_s: float = 100.0  # jobs of one user in the long run, tasks of arrays among them
    task_burst: int = 20_000  # likewise at once
    messages_per_s: float = 5.0  # of the workers of one job that the log may have to keep
    message_burst: int = 200
    report_bytes: int = 64 << 10  # of any message of a worker
    streams: int = 32  # that one user may follow at once
    requests: int = 256  # of one user that are under way at once, those that wait among them
    connections: int = 4_096  # in all; fewer where this process may not open so many files
    connections_per_address: int = 1_024  # of other machines: behind one there may be many people
    head_s: float = 10.0  # in which a request must have come, up to its body
    body_bytes: int = 2 << 20  # twice the largest job file, for its escapes
    body_s: float = 30.0  # in which a body must have arrived
    durable_s: float = 30.0  # in which the store must have taken what was asked for
    header_bytes: int = 32 << 10
    programs: int = 16  # beside workers that one user may have begun, those that are parked among them
    forwards: int = 64  # connections to ports of workers that one user may have; a page opens several
    idle_s: float = 1_800.0  # without a word either way, after which a terminal beside a worker is parked
    warned_s: float = 120.0  # before that its user is told
    parked_s: float = 3_600.0  # for which a terminal without its user goes on

    def __post_init__(self) -> None:
        """Check the bounds."""
        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            if not (isfinite(value) and value > 0):
                raise InputError(f"{name} must be above 0, got {value}")


@dataclass
class RateLimiter:
    """A token bucket for each name; those that are full again are forgotten."""

    per_s: float
    burst: float
    now_s: Callable[[], float] = time.monotonic
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # (tokens, when that was so) by name

    def take(self, name: str, count: float = 1.0) -> float:
        """Take so many tokens; 0, or the seconds until there will be enough, infinite for never."""
        now_s = self.now_s()
        tokens, at_s = self._left.get(name, (self.burst, now_s))
        tokens = min(self.burst, tokens + (now_s - at_s) * self.per_s)
        if tokens < count:
            return (count - tokens) / self.per_s if count <= self.burst else inf
        self._left[name] = (tokens - count, now_s)
        if len(self._left) > 1_000:
            full_s = self.burst / self.per_s
            self._left = {who: kept for who, kept in self._left.items() if now_s - kept[1] < full_s}
        return 0.0

    @property
    def names(self) -> Collection[str]:
        """Names that have taken of their bucket, as far as is remembered."""
        return self._left.keys()


@dataclass
class Together:
    """How much each name does at once."""

    taken: dict[str, int] = field(default_factory=dict)

    def take(self, name: str, most: int) -> bool:
        """Begin one more, unless there are as many as may be; whether it has begun."""
        if self.taken.get(name, 0) >= most:
            return False
        self.taken[name] = self.taken.get(name, 0) + 1
        return True

    def give_back(self, name: str) -> None:
        """One that had begun is over."""
        self.taken[name] -= 1
        if not self.taken[name]:
            del self.taken[name]
