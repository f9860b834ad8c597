"""The service's time: the seconds since its log began that are known to have passed, never backwards.

It counts as a clock that cannot be set: while the machine is awake, whether or not the service runs. What
the time of day says is another matter (`watching`): it may be wrong by months, and be set while we run.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stretto.service.state.events import ClockSet

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clocks of this machine show at one moment."""

    unix_s: float  # the time of day, which anybody may set
    awake_s: float  # since the machine started, without what it has slept; the same for all its processes
    passed_s: float  # the same with it
    boot: str  # a name of this run of the machine; "" = unknown

    def follows(self, earlier: ClockSet | None) -> bool:
        """Whether an earlier reading is of this run of the machine, so that both can be compared."""
        return (
            earlier is not None
            and self.boot == earlier.boot != ""
            and self.awake_s >= earlier.awake_s
            and self.passed_s >= earlier.passed_s
        )


def read_clocks() -> Reading:
    """What the clocks show now."""
    boot = ""
    with suppress(OSError):
        boot = BOOT_ID.read_text(encoding="ascii").strip()
    return Reading(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), boot)


def resumed(last_s: float, earlier: ClockSet | None, reading: Reading, pace: float = 1.0) -> Clock:
    """The clock of a log whose last event was at `last_s`.

    earlier: the newest reading that the log has. Where it is of this run of the machine, the time since
    counts in full. How long other time was is unknown, and it does not count. A clock that is wrong by months
    must end no job, and delete no logs.
    """
    if pace == 1.0 and earlier is not None and reading.follows(earlier):
        last_s = max(last_s, earlier.read_s + reading.awake_s - earlier.awake_s)
    return Clock(last_s, pace)
