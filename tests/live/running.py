"""A real service in a process of its own, which may be killed and started again; and all that it started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from stretto.client import Client
from stretto.live.agent import keeper, runs
from stretto.live.backends.link import is_taken
from stretto.live.replay import Replay
from stretto.live.state import State
from stretto.live.store import open_store

PATIENCE_S = 60.0

Found = TypeVar("Found")


def until(
    found: Callable[[], Found | Literal[False]], patience_s: float = PATIENCE_S, what: str = ""
) -> Found:
    """What `found` returns as soon as that is true."""
    end = time.monotonic() + patience_s
    while True:
        if value := found():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience_s:g} s: {what or found}")
        time.sleep(0.02)


class Running:
    """A service on a state directory, and the agent that it starts."""

    def __init__(
        self, folder: Path, *options: str, program: Sequence[str] = ("-m", "stretto.cli.app"), store: str = ""
    ) -> None:
        self.folder, self.state = folder, folder / "state"
        self.options, self.program = options, program
        self.store = store or str(self.state / "stretto.db")
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> "Running":
        """Start it, at the same address as before, and wait until it takes jobs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        said = self.folder / "service.log"
        known = said.stat().st_size if said.exists() else 0
        command = [sys.executable, *self.program, "serve", "--state", str(self.state), "--insecure-loopback"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--store", self.store, *self.options]
        with said.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

        def address() -> str | Literal[False]:
            assert self.process is not None
            text = said.read_bytes()[known:].decode(errors="replace")
            assert self.process.poll() is None, text
            lines = [line for line in text.splitlines() if line.startswith("listening on ")]
            return lines[0].split()[2].rstrip(",") if lines else False

        self.port = int(until(address, what="the service listens").rpartition(":")[2])
        with self.client() as client:
            until(client.is_ready, what="the service is ready")
        return self

    def client(self) -> Client:
        """A new client."""
        return Client(f"http://127.0.0.1:{self.port}", token="")

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the service by a signal; its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    @property
    def agent_state(self) -> Path:
        return self.state / "agent"

    def agent(self) -> int:
        """The process id of the agent; 0 where none runs."""
        if not self.agent_state.exists() or not is_taken(self.agent_state):
            return 0
        said = runs.read_json(self.agent_state / "address.json") or {"pid": 0}
        return int(said["pid"]) if process_has(int(said["pid"]), str(self.agent_state.resolve())) else 0

    def workers(self) -> dict[str, dict[str, Any]]:
        """What running.json says of every worker that has not ended, by id."""
        found = {}
        for run in sorted((self.agent_state / "runs").glob("*.*.*")):
            with suppress(OSError, ValueError):
                notes = runs.read_json(run / "running.json")
                if notes is not None and not (run / "ended.json").exists():
                    found[run.name] = notes
        return found

    def processes(self) -> list[int]:
        """All that was ever started for a job here and still runs, by the marks in their environment."""
        starts = []
        for path in self.agent_state.glob("*/*/start.json"):
            with suppress(OSError, ValueError):
                starts.append(json.loads(path.read_bytes()))
        marks = {f"{keeper.RUN_MARK}={start['mark']}".encode() for start in starts}
        return [each.pid for each in keeper.processes() if marks & environment_of(each.pid)]

    def keepers(self) -> list[int]:
        """Processes that keep a worker here."""
        return [
            each.pid for each in keeper.processes() if process_has(each.pid, str(self.agent_state / "runs"))
        ]

    def end(self) -> None:
        """End everything that runs here, each by its own process id."""
        if self.process is not None and self.process.poll() is None:
            self.kill(signal.SIGTERM)
        for _ in range(100):
            agent = self.agent()
            for pid in [*([agent] if agent else []), *self.keepers(), *self.processes()]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not agent and not self.keepers() and not self.processes():
                return
            time.sleep(0.05)
        raise AssertionError("something still runs")

    def stop_gently(self) -> None:
        """End the service and its agent as a person would, once no job is left."""
        assert self.kill(signal.SIGTERM) == 0
        agent = self.agent()
        assert agent
        os.kill(agent, signal.SIGTERM)
        until(lambda: not self.agent(), what="the agent ends")

    def differences(self) -> tuple[int, int]:
        """Of the log decided again: how many decisions, and how many came out otherwise."""
        replay = Replay(State())
        with open_store(self.store) as store:
            for recorded in store.read():
                replay.next(recorded)
        replay.finish()
        return replay.decisions, len(replay.differences)

    def log(self) -> Iterator[tuple[int, float, str, dict[str, Any]]]:
        """(number, time, kind, body) of everything that is in the log."""
        with open_store(self.store) as store:
            for one in store.read():
                yield one.seq, one.at_s, one.kind, dict(one.body)


def process_has(pid: int, prefix: str) -> bool:
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
