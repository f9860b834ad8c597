"""Real agents for tests, and ways to look at the processes that they are about."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx

from stretto.agent import run_directory, supervisor

PATIENCE_S = 180.0  # for what takes a tenth of a second on a quiet machine

Found = TypeVar("Found")


def until(found: Callable[[], Found | Literal[False]], patience_s: float = PATIENCE_S) -> Found:
    """What `found` returns as soon as that is true."""
    end = time.monotonic() + patience_s
    while True:
        if value := found():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience_s} s: {found}")
        time.sleep(0.01)


class Agent:
    """One agent on a state directory, which may be killed and started again."""

    def __init__(self, state: Path, gpus: int | None = 4, env: Mapping[str, str] | None = None) -> None:
        self.state = state
        self.gpus = gpus  # None: those that the driver shows
        self.env = env or {}  # beside our own
        self.process: subprocess.Popen[bytes] | None = None
        self.client = httpx.Client(trust_env=False, timeout=PATIENCE_S)

    def begin(self, *options: str) -> "Agent":
        """Start it, and wait until it answers."""
        (self.state / "address.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "stretto.agent", "--state", str(self.state), "--node", "n1"]
        command += ["--gpu-type", "t", *([] if self.gpus is None else ["--gpus", str(self.gpus)]), *options]
        env = {**os.environ, **self.env}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=env)
        until((self.state / "address.json").exists)
        return self

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End it by a signal; its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = None,
        epoch: int | str = 0,
        **query: str | float,
    ) -> httpx.Response:
        """One request, of the leader of this number."""
        url = json.loads((self.state / "address.json").read_text())["url"]
        token = token or (self.state / "token").read_text()
        headers = {"Authorization": f"Bearer {token}", "Stretto-Epoch": str(epoch)}
        return self.client.request(method, url + path, json=body, params=query, headers=headers)

    def start(self, worker_id: str, command: str | list[str], **more: Any) -> httpx.Response:
        """Ask for a worker."""
        return self.ask("PUT", f"/v1/workers/{worker_id}", {"command": command, "grace_s": 5, **more})

    def run(self, worker_id: str, command: str | list[str], **more: Any) -> dict[str, Any]:
        """Start a worker; how it is once it runs."""
        assert self.start(worker_id, command, **more).status_code == 200
        return until(lambda: self.worker(worker_id)["phase"] != "starting" and self.worker(worker_id))

    def stop(self, worker_id: str, grace_s: float) -> None:
        """Ask a worker to end."""
        assert self.ask("POST", f"/v1/workers/{worker_id}/stop", {"grace_s": grace_s}).status_code == 200

    def workers(self) -> dict[str, dict[str, Any]]:
        """All that it lists, by id."""
        listing = self.ask("GET", "/v1/workers").json()
        return {each["id"]: each for each in listing["workers"]}

    def worker(self, worker_id: str) -> dict[str, Any]:
        """One worker."""
        return self.workers()[worker_id]

    def ended(self, worker_id: str) -> dict[str, Any]:
        """One worker, once it has ended."""
        return until(lambda: self.worker(worker_id)["phase"] == "ended" and self.worker(worker_id))

    def log(self, worker_id: str) -> str:
        """All that a worker has written."""
        return self.ask("GET", f"/v1/workers/{worker_id}/log").text

    def log_line(self, worker_id: str) -> str:
        """The first line of a worker's log, once it is whole."""
        return until(lambda: "\n" in self.log(worker_id) and self.log(worker_id).splitlines()[0])

    def supervisor_of(self, worker_id: str) -> int:
        """The process id of a worker's supervisor."""
        notes = run_directory.read_json(self.state / "runs" / worker_id / "running.json")
        assert notes is not None
        return int(notes["keeper_pid"])

    def marked(self) -> list[int]:
        """Processes that carry the mark of any run under this state directory."""
        starts = [run_directory.read_json(path) for path in self.state.glob("*/*/start.json")]
        marks = {f"{supervisor.RUN_MARK}={start['mark']}".encode() for start in starts if start}
        return [each.pid for each in supervisor.processes() if marks & environment_of(each.pid)]

    def supervisors(self) -> list[int]:
        """Processes that keep a run under this state directory."""
        runs_ = str(self.state / "runs").encode()
        return [each.pid for each in supervisor.processes() if has_argument(each.pid, runs_)]

    def clear(self) -> None:
        """End all that it started, and have it forget everything."""
        if self.process is None or self.process.poll() is not None:
            self.begin()
        for name in self.workers():
            self.stop(name, 0)
        for name in self.workers():
            self.ended(name)
            self.ask("DELETE", f"/v1/workers/{name}")
        assert self.marked() == []
        until(lambda: not self.supervisors())
        for name in ("runs", "forgotten", "setups"):
            for run in (self.state / name).glob("*"):
                shutil.rmtree(run)
        (self.state / "go").unlink(missing_ok=True)

    def end(self) -> None:
        """End it and everything that it started."""
        self.clear()
        assert self.kill(signal.SIGTERM) == 0
        self.client.close()


def has_argument(pid: int, prefix: bytes) -> bool:
    """Whether an argument of a process begins with this."""
    try:
        return any(part.startswith(prefix) for part in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    except OSError:
        return False


def environment_of(pid: int) -> set[bytes]:
    """The environment that a process was started with; empty for one that is gone."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def is_gone(pid: int) -> bool:
    """Whether no process has this id, or only an ended one."""
    return supervisor.process_at(pid) is None


def kill(pid: int) -> None:
    """SIGKILL, if it still runs."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
