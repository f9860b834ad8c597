"""Being told to stop, and what happens when the training does not come to a place where it can."""

import logging
import os
import threading
import time
from collections.abc import Callable

from stretto.sdk.sigterm import Sigterm

log = logging.getLogger("stretto.sdk")

STATUS = 143  # as of a process that SIGTERM ended
SHARE_OF_GRACE = 0.7  # chosen: the rest is for a checkpoint that is written without agreement
SAVING_S = 5.0  # chosen: if there is no checkpoint by then, and a third of the grace, none will come
LOOK_S = 0.05


class Preemption:
    """Whether this process was told to stop, and until when it may take its time."""

    def __init__(
        self, grace_s: float, save_alone: Callable[[], None], tell: Callable[[], None] = lambda: None
    ) -> None:
        """`tell` is called once it is asked, by a thread: others may wait outside of steps."""
        self._grace_s = grace_s
        self._save_alone, self._tell = save_alone, tell
        self._deadline_s: float | None = None  # when to give up on a common end
        self._over = threading.Event()
        self._sigterm = Sigterm(self.ask)
        threading.Thread(target=self._watch, name="stretto-deadline", daemon=True).start()

    @property
    def is_asked(self) -> bool:
        """Whether to stop."""
        return self._deadline_s is not None

    def ask(self, grace_s: float | None = None) -> None:
        """Stop, within so many seconds; of several times, the earliest counts."""
        grace_s = grace_s if grace_s is not None else self._grace_s
        deadline_s = time.monotonic() + SHARE_OF_GRACE * grace_s
        # An assignment: a signal's handler may run between any two instructions.
        self._deadline_s = deadline_s if self._deadline_s is None else min(self._deadline_s, deadline_s)

    def end(self) -> None:
        """The training is over: SIGTERM means again what it meant before."""
        if not self._over.is_set():
            self._over.set()
            self._sigterm.give_back()

    def _watch(self) -> None:
        has_told = False
        while not self._over.is_set():
            self._sigterm.wait(LOOK_S)
            if self._deadline_s is None:
                continue
            if not has_told:
                has_told = True
                threading.Thread(target=self._tell, name="stretto-teller", daemon=True).start()
            if time.monotonic() >= self._deadline_s and not self._over.is_set():
                self._give_up()
        self._sigterm.close()

    def _give_up(self) -> None:
        log.warning("no step ended within the grace period: leaving with the last one that did")
        try:
            saver = threading.Thread(target=self._save_alone, name="stretto-saver", daemon=True)
            saver.start()
            saver.join(
                max(SAVING_S, self._grace_s / 3)
            )  # it cannot come about where the main thread is stuck in the optimiser's step
        finally:
            os._exit(STATUS)
