"""The command line with clocks that jump: by as many seconds as two files say.

CLOCKS/wall is added to the time of day, as where somebody sets it. CLOCKS/slept is what the machine has
slept: the time of day has gone on meanwhile, and the clock that counts what has passed since the start.
"""

import os
from dataclasses import replace
from pathlib import Path

from stretto.cli.app import main
from stretto.service import main as serving
from stretto.service.eventlog import clock, clock_watch

CLOCKS = Path(os.environ["CLOCKS"])


def jump(name: str) -> float:
    try:
        return float((CLOCKS / name).read_text() or 0)
    except FileNotFoundError:
        return 0.0


def read_clocks() -> clock.Reading:
    usual, slept_s = clock.read_clocks(), jump("slept")
    return replace(usual, unix_s=usual.unix_s + jump("wall") + slept_s, passed_s=usual.passed_s + slept_s)


def install() -> None:
    """From here on the service of this process reads clocks that jump, and looks at them often."""
    vars(serving).update(read_clocks=read_clocks)
    vars(clock_watch).update(CHECK_S=0.1)


if __name__ == "__main__":
    install()
    main()
