"""Hearing SIGTERM at once.

Python runs a handler only between two instructions of the main thread, and that thread may be inside a call
of C for long: waiting for a peer that evaluates, or for a compiler. What the interpreter writes into its
wakeup file descriptor is there without it, and another thread can read it.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


class Sigterm:
    """Takes SIGTERM over where it is built in the main thread; elsewhere it hears nothing."""

    def __init__(self, heard: Callable[[], None]) -> None:
        """`heard` is called in the main thread, or by `wait`, or both."""
        self._heard = heard
        self._is_ours = threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._reader: socket.socket | None = None
        self._writer: socket.socket | None = None
        if self._is_ours:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._open()
            OURS.append(self)

    def _open(self) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        other = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if other != -1:  # an event loop's, say: it needs it more than we do
            signal.set_wakeup_fd(other)
            reader.close()
            writer.close()
            return
        self._reader, self._writer = reader, writer

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._heard()

    def wait(self, within_s: float) -> None:
        """In another thread: for so long at most, or until some signal came."""
        reader = self._reader
        if reader is None:
            time.sleep(within_s)
            return
        if select.select([reader], [], [], within_s)[0] and signal.SIGTERM in reader.recv(4096):
            self._heard()

    def give_back(self) -> None:
        """SIGTERM means again what it meant before. In the main thread; `wait` may be under way."""
        if not self._is_ours:
            return
        self._is_ours = False
        OURS.remove(self)
        if self._writer is not None:
            found = signal.set_wakeup_fd(-1)
            if found not in (-1, self._writer.fileno()):
                signal.set_wakeup_fd(found)
        signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)

    def close(self) -> None:
        """Nobody waits any more."""
        for end in (self._reader, self._writer):
            if end is not None:
                end.close()
        self._reader = self._writer = None


OURS: list[Sigterm] = []
FORKING = threading.local()  # the signals that a thread had blocked before it forked


def _before_fork() -> None:
    """A child that gets SIGTERM before it is one of its own would write it into the descriptor it shares."""
    FORKING.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, FORKING.mask)


def _in_child() -> None:
    """A forked child, of a data loader say, is not the worker: what stops it must not stop the training."""
    for each in [*OURS]:
        each.give_back()
        each.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, FORKING.mask)


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
