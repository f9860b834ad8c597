"""A command on a terminal of its own, which a test reads and types on."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping
from contextlib import suppress

PATIENCE_S = 180.0


class OnTerminal:
    """A command that believes to be used by a person."""

    def __init__(self, *command: str, env: Mapping[str, str] = os.environ) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, env)
        self.shown = b""

    def until(self, wanted: bytes) -> None:
        end = time.monotonic() + PATIENCE_S
        while wanted not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self.screen], [], [], 1.0)[0]:
                try:
                    self.shown += os.read(self.screen, 1 << 14)
                except OSError:
                    raise AssertionError(f"it has ended: {self.shown!r}") from None

    def type(self, keys: bytes) -> None:
        os.write(self.screen, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until_it_says(self, wanted: bytes) -> None:
        """Type lines until the answer to one, which begins with `now`, is this."""
        while wanted not in self.shown:
            self.shown = b""
            self.type(b"\r")
            self.until(b"now ")
            self.until(b"\n")

    def status(self) -> int:
        """How it ended."""
        with suppress(OSError):
            while more := os.read(self.screen, 1 << 14):
                self.shown += more
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def end(self) -> None:
        """Leave nothing of it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.screen)
