"""Workers that do not train together: which of them the service wants to work, as each hears it.

They form no process group, so they need no rendezvous, and nothing is agreed between them.
"""

import logging
import threading
import time
from collections.abc import Callable

from stretto.sdk.channel import FIRST_PAUSE_S, LONGEST_PAUSE_S, Channel, Generation, NoLongerWanted
from stretto.sdk.shutdown import STATUS, Preemption

log = logging.getLogger("stretto.sdk")

LONG_POLL_S = 25.0
LOOK_S = 0.05  # between looks whether the service has called; chosen
FLUSH_S = 10.0  # for the last report


class Membership:
    """Which workers the service wants to work, as a thread hears it."""

    def __init__(self, channel: Channel, preemption: Preemption, done: Callable[[], int]) -> None:
        """done: how many parts are done, for the service's record of when a worker joined."""
        self.channel, self._preemption, self._done = channel, preemption, done
        self.generation = Generation(0)
        self.rank = 0
        self.has_left = False  # the service has called it once, and wants it no longer
        self._is_called = threading.Event()
        self._closing = False
        channel.post("ready")
        threading.Thread(target=self._listen, name="stretto-listener", daemon=True).start()

    def await_first(self) -> None:
        """Wait until the service calls this worker; ends the process where it never will."""
        while not self._is_called.wait(LOOK_S):
            if self._preemption.is_asked:
                raise SystemExit(STATUS)
        if self.has_left:
            raise SystemExit(0)

    def close(self) -> None:
        """Nothing more is heard or said."""
        self._closing = True
        self.channel.close(FLUSH_S)

    def _listen(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing and not self.has_left:
            try:
                newer = self.channel.generation(self.generation.number, LONG_POLL_S, with_store=False)
                pause_s = FIRST_PAUSE_S
            except NoLongerWanted:
                self.has_left = True
                self._is_called.set()
                return
            except OSError as failed:  # it works on without a service
                log.debug("the service does not answer: %s", failed)
                time.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                continue
            if newer is not None:
                self._take(newer)

    def _take(self, newer: Generation) -> None:
        if newer.leave:
            self._preemption.ask(newer.until_s)
        rank = newer.rank_of(self.channel.worker)
        self.generation = newer
        if rank is None:
            self.has_left = self._is_called.is_set() and not newer.leave
            return
        self.rank = rank
        self.channel.post("joined", generation=newer.number, step=self._done(), lost_s=0.0)
        self._is_called.set()
