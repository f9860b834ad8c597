"""A service in a process of its own, and an end to everything that it starts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from stretto.agent import run_directory, supervisor
from stretto.backends.local.agent_client import is_taken
from stretto.client import Client
from stretto.errors import StrettoError

PATIENCE_S = 180.0  # for what takes a second on a quiet machine; chosen
LOOK_S = 0.02
HERE = "127.0.0.1"
FIRST_TOKEN = "admin-token"  # as a service that asks for tokens writes it

Found = TypeVar("Found")


class NotInTime(StrettoError):
    """Something did not happen although it should have."""


def until(
    condition: Callable[[], Found | Literal[False]], patience_s: float = PATIENCE_S, what: str = ""
) -> Found:
    """What `condition` returns as soon as that is true. Raises NotInTime."""
    end = time.monotonic() + patience_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise NotInTime(f"not within {patience_s:g} s: {what or condition}")
        time.sleep(LOOK_S)


class OwnService:
    """A service on a state directory of its own, and the agent that it starts there.

    It runs in a session of its own, so that an interrupt from the keyboard reaches only the process that
    started it.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str],
        program: Sequence[str],  # what the interpreter runs: the command line of ours
        env: Mapping[str, str] = os.environ,
        host: str = HERE,  # where workers of other machines reach it: an address of this one
    ) -> None:
        self.folder, self.state, self.host = folder, folder / "state", host
        self.options, self.program, self.env = tuple(options), program, dict(env)
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> Path:
        """What it has said."""
        return self.folder / "service.log"

    def last_words(self) -> str:
        """The end of what it has said."""
        return self.log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]

    def client(self) -> Client:
        """A new client of it."""
        if self.host == HERE:
            return Client(self.url, None)  # whatever STRETTO_TOKEN is for, it is another service
        return Client(self.url, (self.state / FIRST_TOKEN).read_text(encoding="ascii").strip())

    def begin(self) -> None:
        """Start it, where it answered before if it has, and wait until it takes jobs. Raises NotInTime."""
        self.folder.mkdir(parents=True, exist_ok=True)
        bytes_before = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, *self.program, "serve", "--state", str(self.state)]
        command += ["--listen", f"{self.host}:{self.port}", *self.options]
        command += ["--insecure-loopback"] if self.host == HERE else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.env,
            )

        def said() -> str:
            if self.process is None or self.process.poll() is not None:
                raise NotInTime(f"the service ended at once: {self.last_words()}")
            return self.log.read_bytes()[bytes_before:].decode(errors="replace")

        def address() -> str | Literal[False]:
            lines = [line for line in said().splitlines() if line.startswith("listening on ")]
            return lines[0].split()[2].rstrip(",") if lines else False

        self.port = int(until(address, what="the service listens").rpartition(":")[2])
        with self.client() as client:
            until(lambda: bool(said()) and client.is_ready(), what="the service is ready")

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the service, and nothing else, by a signal; its exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    @property
    def agent_state(self) -> Path:
        """Where the agent keeps its runs."""
        return self.state / "agent"

    def agent(self) -> int:
        """The process id of the agent; 0 where none runs."""
        if not self.agent_state.exists() or not is_taken(self.agent_state):
            return 0
        pid = int((run_directory.read_json(self.agent_state / "address.json") or {"pid": 0})["pid"])
        return pid if has_argument(pid, str(self.agent_state.resolve())) else 0

    def workers(self) -> dict[str, dict[str, Any]]:
        """What is noted of every worker that has not ended, by id."""
        notes_by_worker = {}
        for run in sorted((self.agent_state / "runs").glob("*.*.*")):
            with suppress(OSError, ValueError):
                notes = run_directory.read_json(run / "running.json")
                if notes is not None and not (run / "ended.json").exists():
                    notes_by_worker[run.name] = notes
        return notes_by_worker

    def processes(self) -> list[int]:
        """All that was ever started for a job here and still runs, by the marks in their environment."""
        marks = set()
        for path in self.agent_state.glob("*/*/start.json"):
            with suppress(OSError, ValueError, KeyError):
                marks.add(f"{supervisor.RUN_MARK}={json.loads(path.read_bytes())['mark']}".encode())
        return [each.pid for each in supervisor.processes() if marks & environment_of(each.pid)]

    def supervisors(self) -> list[int]:
        """Processes that keep a worker here."""
        return started_with(self.agent_state / "runs")

    def end(self) -> None:
        """End everything that runs here, each by its own process id. Raises NotInTime."""
        if self.process is not None and self.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.kill(signal.SIGTERM)
            if self.process.poll() is None:
                self.kill()

        def is_quiet() -> bool:
            left = [*started_with(self.agent_state), *self.processes()]  # also an agent that only comes up
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(is_quiet, what="all that the service started has ended")


def started_with(folder: Path) -> list[int]:
    """Processes of which an argument is this folder, or something in it."""
    name = str(folder.resolve())
    return [each.pid for each in supervisor.processes() if has_argument(each.pid, name)]


def has_argument(pid: int, prefix: str) -> bool:
    """Whether an argument of a process begins with this."""
    try:
        parts = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(part.startswith(prefix.encode()) for part in parts)


def environment_of(pid: int) -> set[bytes]:
    """The environment that a process was started with; empty for one that is gone."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()
