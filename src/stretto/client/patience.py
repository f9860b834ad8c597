"""An outage of the service, as a client that waits for something sees it and outlasts it."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

from stretto.errors import InputError, StrettoError

PATIENCE_S = 600.0  # chosen: longer than a machine takes to restart
VARIABLE = "STRETTO_PATIENCE_S"
SILENT_S = 1.0  # of an outage before anything is said of it; chosen
SHORTEST_S, LONGEST_S = 0.1, 5.0  # between two tries; chosen


def patience_s() -> float:
    """For how long an outage is waited for, as the environment says it. Raises InputError."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return PATIENCE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not isfinite(seconds) or seconds < 0:
        raise InputError(f"{VARIABLE}={text}: expected seconds, at least 0")
    return seconds


@dataclass
class Outage:
    """What has not been answered since it was last answered. say: tells people, once."""

    patience_s: float
    say: Callable[[str], None]
    tries: int = 0
    paused_s: float = 0.0
    began_s: float = 0.0
    has_said: bool = field(default=False)

    def sit_out(self, failure: StrettoError) -> None:
        """Pause before the next try; raises the failure once patience is over."""
        time.sleep(self.pause_s(failure))

    def pause_s(self, failure: StrettoError) -> float:
        """How long to pause before the next try; raises the failure once patience is over."""
        now_s = time.monotonic()
        self.began_s = self.began_s if self.tries else now_s
        lasts_s = max(now_s - self.began_s, self.paused_s)
        pause_s: float = min(SHORTEST_S * 2**self.tries, LONGEST_S)
        if lasts_s + pause_s > self.patience_s:
            raise failure
        if lasts_s >= SILENT_S and not self.has_said:
            self.has_said = True
            self.say(f"{failure}; waiting for it, at most {self.patience_s:g} s ({VARIABLE})")
        self.tries, self.paused_s = self.tries + 1, self.paused_s + pause_s
        return pause_s

    def end(self) -> None:
        """It was answered."""
        if self.has_said:
            self.say("the service answers again")
        self.tries, self.paused_s, self.has_said = 0, 0.0, False
