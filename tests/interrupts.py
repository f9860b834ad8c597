"""Processes that a test interrupts heed it, however the tests themselves were started."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def heed_interrupts() -> None:
    """As from a terminal: who starts the tests in the background has interrupts ignored, also by children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def heeding(number: int) -> Iterator[None]:
    """What is started within it heeds a signal, also where the tests were started with `nohup`."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)
