"""The newest leader that has commanded here: commands of those before it are refused.

A service that was frozen, or cut off, may wake up after another has taken its place, and would end what it
does not know. Each leader has a number, its epoch, larger than those of all leaders before it.
"""

import threading
from contextlib import suppress
from pathlib import Path

from stretto.agent import run_directory, supervisor
from stretto.agent.requests import Refused

STALE_STATUS = 412  # of a command whose leader has been followed by another


class Fence:
    """Remembers the largest epoch in a file. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """A file that cannot be read counts as none: an agent that does not begin would cost more."""
        self.path = path
        self.lock = threading.Lock()
        self.epoch = 0
        with suppress(OSError, ValueError, KeyError, TypeError):
            self.epoch = int((run_directory.read_json(path) or {"epoch": 0})["epoch"])

    def note(self, epoch: int) -> None:
        """A leader of this epoch is there; 0: whoever asks is no leader."""
        with self.lock:
            if epoch <= self.epoch:
                return
            self.epoch = epoch
            with suppress(OSError):  # then an agent that starts anew learns it from the next command
                supervisor.write_durably(self.path, {"epoch": epoch})

    def admit(self, epoch: int) -> None:
        """Raise Refused for a command of a leader that has been followed by another."""
        self.note(epoch)
        if 0 < epoch < self.epoch:
            raise Refused(
                STALE_STATUS,
                f"leader {epoch} has been followed by leader {self.epoch}: commands of it are refused",
                self.epoch,
            )
