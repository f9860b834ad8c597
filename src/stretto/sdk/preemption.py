"""Being told to stop, and what happens when the training does not come to a place where it can."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("stretto.sdk")

STATUS = 143  # as of a process that SIGTERM ended
SHARE_OF_GRACE = 0.7  # chosen: the rest is for a checkpoint that is written without agreement
LOOK_S = 0.05


class Preemption:
    """Whether this process was told to stop, and until when it may take its time."""

    def __init__(self, grace_s: float, save_alone: Callable[[], None]) -> None:
        self._grace_s = grace_s
        self._save_alone = save_alone
        self._asked_s: float | None = None
        self._over = threading.Event()
        self._before: object = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        threading.Thread(target=self._watch, name="stretto-deadline", daemon=True).start()

    @property
    def is_asked(self) -> bool:
        """Whether to stop."""
        return self._asked_s is not None

    def ask(self, grace_s: float | None = None) -> None:
        """Stop, within so many seconds. Only the first time counts."""
        if self._asked_s is None:
            self._grace_s = grace_s if grace_s is not None else self._grace_s
            self._asked_s = time.monotonic()

    def end(self) -> None:
        """The training is over: SIGTERM means again what it meant before."""
        self._over.set()
        if callable(self._before) or isinstance(self._before, int):
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.ask()  # an assignment: the handler may run between any two instructions

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            if self._asked_s is None or time.monotonic() < self._asked_s + SHARE_OF_GRACE * self._grace_s:
                continue
            log.warning("no step ended within the grace period: leaving with the last one that did")
            try:
                self._save_alone()
            finally:
                os._exit(STATUS)
