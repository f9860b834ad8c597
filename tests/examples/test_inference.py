"""The inference server of the examples lends its nodes while its load is low, as its page shows."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from tests.service.lenders_log import settled, workers_with_lenders
from tests.service.ports import free_ports
from tests.service.running import Running

from stretto.client import Client
from stretto.demo.own_service import HERE, until

pytestmark = [pytest.mark.processes, pytest.mark.sqlite, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "inference"
PAGE = (ROOT / "docs" / "lending.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### An inference server that scales\n")[2].partition("\n### ")[0]
COMMANDS = [shlex.split(line) for line in re.findall(r"^\$ (.+)$", SECTION, flags=re.M)]
WITHIN_S = 240.0


def commands(*words: str) -> list[list[str]]:
    """What stands on the page behind these words, of each command that begins with them."""
    return [command[len(words) :] for command in COMMANDS if command[: len(words)] == list(words)]


@contextmanager
def program(output: Path, script: str, arguments: list[str], url: str) -> Iterator[None]:
    """A script of the example, until the end of the test."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, script, *arguments],
            cwd=FOLDER,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "STRETTO_URL": url, "STRETTO_TOKEN": "", "OMP_NUM_THREADS": "1"},
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=WITHIN_S)


def test_nodes_follow_the_load_of_the_example_as_its_page_shows(tmp_path: Path) -> None:
    ((serve,), (lender,), (submit,)) = (
        commands("stretto", *words) for words in (("serve",), ("lenders", "set"), ("submit",))
    )
    serve = [str(FOLDER / word) if word.endswith(".yaml") else word for word in serve]
    port = free_ports(HERE, 1)[0]
    server = f"http://{HERE}:{port}"
    running = Running(tmp_path, *(word for word in serve if word != "--insecure-loopback"))
    with ExitStack() as ends:
        ends.callback(running.end)
        running.begin()
        environment = {**os.environ, "STRETTO_URL": running.url, "STRETTO_TOKEN": ""}

        def stretto(*words: str) -> None:
            subprocess.run(
                [sys.executable, "-m", "stretto.cli.app", *words],
                cwd=FOLDER,
                env=environment,
                check=True,
                timeout=WITHIN_S,
            )

        stretto("lenders", "set", *lender)
        stretto("submit", *submit)
        ((nodes,), (adapter,), (load,)) = (
            commands("python", name) for name in ("server.py", "adapter.py", "load.py")
        )
        ends.enter_context(
            program(tmp_path / "server", "server.py", [*nodes, "--port", str(port)], running.url)
        )
        until(lambda: b"serving on" in (tmp_path / "server").read_bytes(), what="the server listens")
        ends.enter_context(
            program(tmp_path / "adapter", "adapter.py", [*adapter, "--server", server], running.url)
        )
        client: Client = ends.enter_context(running.client())
        until(lambda: client.lenders()[0]["on_loan"] == 2, what="what the server does not need is on loan")
        replayed = subprocess.run(
            [sys.executable, "load.py", *load, "--server", server],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert re.fullmatch(r"[1-9]\d* requests, 0 failed; answered within .*\n", replayed.stdout)
        scale = httpx.get(f"{server}/scale", trust_env=False).json()
        assert scale["most_running"] == len(nodes)
        until(lambda: client.lenders()[0]["need"] == 1, what="the load is over")
        until(lambda: client.lenders()[0]["on_loan"] == 2, what="training has its nodes again")
        (shown,) = client.lenders()
        assert shown["waits"] > 0
        assert shown["waits_missed"] == 0
    said = (tmp_path / "adapter").read_text(encoding="utf-8").splitlines()
    on_page = re.findall(r"^needs .*$", SECTION, flags=re.M)
    assert [line for line in on_page if line not in said] == []
    assert settled(running, "returned")
    assert workers_with_lenders(running) == []
    decisions, differences = running.differences()
    assert decisions > 0
    assert differences == 0
