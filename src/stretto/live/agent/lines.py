"""The connections of an agent: each costs a thread and a file, so that there are only so many."""

import socket
import threading
import time
from dataclasses import dataclass, field
from math import inf

from stretto.live import files

MOST = 512  # chosen: a service has a few, and one for each log that is followed
CLOSING = 16  # beyond those: they have been told to close, and do so in a moment
TOKEN_S = 10.0  # in which a connection has to show the token; chosen


@dataclass
class Lines:
    """All connections; where there is no room, the oldest that has not shown the token makes way."""

    most: int = field(default_factory=lambda: max(min(MOST, files.left_for_others()), 1))
    _until_s: dict[socket.socket, float] = field(default_factory=dict)  # by age; inf: it showed the token
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admit(self, line: socket.socket) -> bool:
        """Whether a connection that was just accepted may stay."""
        with self._lock:
            if len(self._until_s) >= self.most or files.is_of_reserve(line.fileno()):
                unknown = next((one for one, until_s in self._until_s.items() if 0 < until_s < inf), None)
                if unknown is None or len(self._until_s) >= self.most + CLOSING:
                    return False
                self._close(unknown)
            self._until_s[line] = time.monotonic() + TOKEN_S
            return True

    def trust(self, line: socket.socket) -> None:
        """A connection has shown the token."""
        with self._lock:
            if self._until_s.get(line, 0) > 0:
                self._until_s[line] = inf

    def forget(self, line: socket.socket) -> None:
        """A connection is closed."""
        with self._lock:
            self._until_s.pop(line, None)

    def close_late(self) -> None:
        """Close those that have not shown the token in time."""
        now_s = time.monotonic()
        with self._lock:
            for line in [one for one, until_s in self._until_s.items() if 0 < until_s < now_s]:
                self._close(line)

    def _close(self, line: socket.socket) -> None:
        """Wake the thread that reads from it, which closes it."""
        self._until_s[line] = 0.0
        try:
            line.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # its caller was faster
