"""Whoever waits for a job waits over an outage of the service, too, and is told so in a line."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.demo.own_service import PATIENCE_S, until

from ..running import PROGRAM, Running

pytestmark = [pytest.mark.processes, pytest.mark.large]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path / "service", "--slots", "1", "--gpu-type", "cpu", "--policy", "fifo")
    try:
        running.begin()
        yield running
    finally:
        running.end()


def stretto(url: str, verb: str, *words: str, err: Path, **env: str) -> subprocess.Popen[bytes]:
    """The command line, in a process of its own."""
    command = [sys.executable, *PROGRAM, verb, "--url", url, *words]
    with err.open("wb") as file:
        environment = {**os.environ, **env}
        nothing = subprocess.DEVNULL
        return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=file, env=environment)


def test_a_submission_that_is_waited_for_outlasts_an_outage(running: Running, tmp_path: Path) -> None:
    go, err = tmp_path / "go", tmp_path / "err"
    run = f"until [ -e {go} ]; do sleep 0.1; done; exit 7"
    with stretto(running.url, "submit", "--wait", "--", "sh", "-c", run, err=err) as waiting:
        with running.client() as client:
            until(lambda: [one["state"] for one in client.jobs()] == ["RUNNING"], what="the job runs")
        running.kill()
        until(lambda: b"; waiting for it, at most 600 s" in err.read_bytes(), what="it says that it waits")
        running.begin()
        until(lambda: b"the service answers again" in err.read_bytes(), what="it says that it is over")
        go.touch()
        assert waiting.wait(PATIENCE_S) == 7  # the job's own
    assert err.read_bytes().count(b"waiting for it") == 1


def test_a_service_that_stays_away_has_a_status_of_its_own(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for words in (("list",), ("logs", "-f", "1"), ("events", "-f")):
            err = tmp_path / "err"
            with stretto(url, *words, err=err, STRETTO_PATIENCE_S="0") as command:
                assert command.wait(PATIENCE_S) == 69
            assert err.read_text().count("\n") == 1
            assert err.read_text().startswith(f"stretto: no service answers at {url}: ")
