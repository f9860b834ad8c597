"""The inference server of the examples, its adapter, and loads that are replayed on it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.service.ports import free_ports

from stretto.demo.own_service import HERE, until

FOLDER = Path(__file__).parents[2] / "examples" / "inference"
WITHIN_S = 240.0


@dataclass(frozen=True)
class InferenceServer:
    """A server that runs, and an adapter that tells a service what it needs."""

    folder: Path  # where their output is
    url: str

    def scale(self) -> dict[str, Any]:
        """What the server says of its replicas."""
        answer: dict[str, Any] = httpx.get(f"{self.url}/scale", trust_env=False, timeout=WITHIN_S).json()
        return answer

    def replay(self, *options: str) -> str:
        """Replay a load, of which no request may fail; what is said of it."""
        done = subprocess.run(
            [sys.executable, "load.py", *options, "--server", self.url],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.fullmatch(r"[1-9]\d* requests, 0 failed; answered within .*\n", done.stdout)
        return done.stdout

    def lines(self) -> list[str]:
        """What the adapter has printed."""
        return (self.folder / "adapter.py.txt").read_text(encoding="utf-8").splitlines()


@contextmanager
def inference_server(
    folder: Path, service_url: str, server: Sequence[str], adapter: Sequence[str]
) -> Iterator[InferenceServer]:
    """Both with these arguments, on a free port."""
    url = f"http://{HERE}:{free_ports(HERE, 1)[0]}"
    with ExitStack() as ends:
        ends.enter_context(
            _program(folder, "server.py", [*server, "--port", url.rpartition(":")[2]], service_url)
        )
        until(lambda: b"serving on" in (folder / "server.py.txt").read_bytes(), what="the server listens")
        ends.enter_context(_program(folder, "adapter.py", [*adapter, "--server", url], service_url))
        yield InferenceServer(folder, url)


@contextmanager
def _program(folder: Path, script: str, arguments: Sequence[str], service_url: str) -> Iterator[None]:
    with (folder / f"{script}.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, script, *arguments],
            cwd=FOLDER,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "STRETTO_URL": service_url, "STRETTO_TOKEN": "", "OMP_NUM_THREADS": "1"},
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=WITHIN_S)
