"""What a process does first that is to be interrupted by a test."""

import signal


def heed_interrupts() -> None:
    """As from a terminal: who starts the tests in the background has interrupts ignored, also by children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
