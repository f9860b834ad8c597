"""Somebody on another network, to whom only the service's port is open: all that a person does from there."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.on_terminal import PATIENCE_S, OnTerminal

from stretto.demo.own_service import FIRST_TOKEN, OwnService

pytestmark = [pytest.mark.processes, pytest.mark.torch, pytest.mark.large]

ROOT = Path(__file__).parents[3]
PROGRAM = ("-m", "stretto.cli.app")
HERE, THERE = "198.18.77.1", "198.18.77.2"  # a network that is nobody's: RFC 2544


@dataclass(frozen=True)
class Elsewhere:
    """The other network, and a person there with a token."""

    name: str
    service: OwnService
    folder: Path

    def command(self, *words: str) -> list[str]:
        """A command that sees that network only."""
        return ["ip", "netns", "exec", self.name, *words]

    @property
    def env(self) -> dict[str, str]:
        """Where the service is, and who this is. A proxy of this machine is not there."""
        token = (self.service.state / FIRST_TOKEN).read_text(encoding="ascii").strip()
        own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return {**own, "STRETTO_URL": self.service.url, "STRETTO_TOKEN": token}

    def stretto(self, *words: str) -> str:
        """What our command line prints there."""
        ran = subprocess.run(
            self.command(sys.executable, *PROGRAM, *words),
            env=self.env,
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def until(self, job: str, *states: str) -> dict[str, Any]:
        """A job, once it has come to one of these."""
        end = time.monotonic() + PATIENCE_S
        while (shown := json.loads(self.stretto("describe", job, "--json")))["state"] not in states:
            assert time.monotonic() < end, shown
        return dict(shown)

    def fetched(self, url: str) -> subprocess.CompletedProcess[bytes]:
        """What a web server answers, as seen from there."""
        asks = (
            "import sys, urllib.request as web;"
            "sys.stdout.buffer.write(web.urlopen(sys.argv[1], timeout=10).read())"
        )
        command = self.command(sys.executable, "-c", asks, url)
        return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False, env=self.env)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    """Another network, with a wire to this one; skips where this machine may make none."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("a second network needs root, and the command ip")
    name, here, there = f"stretto-{os.getpid()}", f"sth{os.getpid()}", f"stt{os.getpid()}"
    wire = [
        ["link", "add", here, "type", "veth", "peer", "name", there, "netns", name],
        ["addr", "add", f"{HERE}/30", "dev", here],
        ["link", "set", here, "up"],
        ["-n", name, "addr", "add", f"{THERE}/30", "dev", there],
        ["-n", name, "link", "set", there, "up"],
        ["-n", name, "link", "set", "lo", "up"],
    ]
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine makes no second network: {made.stderr.strip()}")
    try:
        for words in wire:
            ran = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
            if ran.returncode:
                pytest.skip(f"this machine makes no wire to a second network: {ran.stderr.strip()}")
        options = ("--slots", "2", "--gpu-type", "cpu", "--policy", "fifo")
        service = OwnService(tmp_path / "service", options, PROGRAM, host=HERE)
        service.begin()
        try:
            folder = tmp_path / "elsewhere"
            folder.mkdir()
            yield Elsewhere(name, service, folder)
        finally:
            service.end()
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)  # the wire goes with it


def test_a_training_that_was_uploaded_a_shell_and_a_web_server(elsewhere: Elsewhere) -> None:
    # An upload, which is all that the training has: nothing is where it was once it is submitted.
    mine = elsewhere.folder / "mine"
    mine.mkdir()
    for name in ("digits_cnn.py", "seen.py"):
        shutil.copy(ROOT / "examples" / name, mine)
    file = elsewhere.folder / "digits.yaml"
    run = f"{sys.executable} digits_cnn.py --channels 16 --epochs 12 --target 0"
    file.write_text(yaml.safe_dump({"name": "digits", "run": run, "elastic": {"min": 1, "max": 1}}))
    training = json.loads(elsewhere.stretto("submit", str(file), "--upload", str(mine), "--json"))["id"]
    shutil.rmtree(mine)
    # Meanwhile a server, which listens on the loopback of its own machine.
    (elsewhere.folder / "pages").mkdir()
    (elsewhere.folder / "pages" / "index.html").write_text("a page of the worker")
    serves = (
        "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler);"
        "print('port', s.server_port, flush=True); s.serve_forever()"
    )
    words = ["--upload", "pages", "--json", "--", sys.executable, "-c", serves]
    server = json.loads(elsewhere.stretto("submit", *words))["id"]
    elsewhere.until(server, "RUNNING")
    # A shell beside it: our window, a new size of it, and ctrl-C.
    lines = "echo first; trap 'exit 9' INT; while read line; do echo now $(stty size); done"
    command = elsewhere.command(sys.executable, *PROGRAM, "exec", server, "--", "sh", "-c", lines)
    shell = OnTerminal(*command, env=elsewhere.env)
    try:
        shell.until(b"first")
        shell.resize(31, 97)
        shell.until_it_says(b"now 31 97")
        shell.type(b"\x03")
        assert shell.status() == 9
    finally:
        shell.end()
    # Its port, which nothing but the service's leads to.
    port = port_of(elsewhere, server)
    assert elsewhere.fetched(f"http://{HERE}:{port}/").returncode != 0
    command = elsewhere.command(sys.executable, *PROGRAM, "forward", server, f"0:{port}")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=elsewhere.env) as carrier:
        try:
            assert carrier.stderr is not None
            address = carrier.stderr.readline().split()[0]
            page = elsewhere.fetched(f"http://127.0.0.1:{address.rpartition(':')[2]}/")
            assert page.stdout == b"a page of the worker", page.stderr
        finally:
            carrier.kill()
    shown = elsewhere.until(training, "COMPLETED", "FAILED")
    assert shown["state"] == "COMPLETED", elsewhere.stretto("logs", training)


def port_of(elsewhere: Elsewhere, job: str) -> int:
    """The port at which a job's server listens, as its log says."""
    end = time.monotonic() + PATIENCE_S
    while "port " not in (log := elsewhere.stretto("logs", job)):
        assert time.monotonic() < end, log
    return int(log.split("port ")[1].split()[0])
