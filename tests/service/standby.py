"""A service that stands by, for tests."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from stretto.demo.own_service import HERE, until

from .ports import free_ports
from .running import PROGRAM, Running


class Standby:
    """Stands by for another service, at an address of its own. state: that of the other, if not said."""

    def __init__(
        self, leader: Running, *options: str, state: Path | None = None, program: Sequence[str] = PROGRAM
    ) -> None:
        self.state = state or leader.state
        self.port, self.log = free_ports(HERE, 1)[0], leader.folder / "standby.log"
        command = [sys.executable, *program, "serve", "--standby", "--insecure-loopback", *leader.options]
        command += ["--state", str(self.state), "--listen", f"{HERE}:{self.port}", *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until(lambda: "standing by on" in self.words() or self._check_alive(), what="it stands by")

    def words(self) -> str:
        """What it has said."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _check_alive(self) -> bool:
        assert self.process.poll() is None, self.words()
        return False

    def get(self, path: str) -> httpx.Response:
        """What its address answers."""
        return httpx.get(f"http://{HERE}:{self.port}{path}", timeout=30)

    def take_over_as(self, leader: Running) -> None:
        """From here on it is the service that `leader` was."""
        leader.port, leader.process, leader.state = self.port, self.process, self.state

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=60)
