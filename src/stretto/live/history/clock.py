"""The service's time: seconds since its log began, never backwards, whatever happens to the wall clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Counts from `origin_s` on, `pace` times as fast as a monotonic clock. Pausing machines pause it."""

    origin_s: float = 0.0
    pace: float = 1.0
    monotonic: Callable[[], float] = time.monotonic
    _from: float = field(init=False)
    _latest_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Start now."""
        self._from, self._latest_s = self.monotonic(), self.origin_s

    def now_s(self) -> float:
        """Seconds since the log began."""
        self._latest_s = max(self._latest_s, self.origin_s + (self.monotonic() - self._from) * self.pace)
        return self._latest_s

    def wall_s(self, duration_s: float) -> float:
        """How long a duration of this clock takes."""
        return duration_s / self.pace


def resumed(last_s: float, unix_s: float, pace: float = 1.0, wall: Callable[[], float] = time.time) -> Clock:
    """The clock of a log that began at a Unix time and whose last event was at `last_s`.

    While nobody ran it, time has passed as the wall clock says, unless that has been set back.
    """
    return Clock(max(last_s, wall() - unix_s if pace == 1.0 else last_s), pace)
