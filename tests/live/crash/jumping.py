"""The command line with a clock that jumps: by as many seconds as two files say.

CLOCKS/monotonic is added to the clock that a running service counts by, as on a machine that slept;
CLOCKS/wall to the time of day, as where somebody sets it.
"""

import os
import time
from pathlib import Path

from stretto.cli.app import main
from stretto.live import serving
from stretto.live.history import clock

CLOCKS = Path(os.environ["CLOCKS"])


def jump(name: str) -> float:
    try:
        return float((CLOCKS / name).read_text() or 0)
    except FileNotFoundError:
        return 0.0


def monotonic() -> float:
    return time.monotonic() + jump("monotonic")


def new_clock(origin_s: float = 0.0, pace: float = 1.0) -> clock.Clock:
    return clock.Clock(origin_s, pace, monotonic)


def resumed(last_s: float, unix_s: float, pace: float = 1.0) -> clock.Clock:
    usual = clock.resumed(last_s, unix_s, pace, lambda: time.time() + jump("wall"))
    return new_clock(usual.origin_s, pace)


vars(serving).update(Clock=new_clock, resumed=resumed)
main()
