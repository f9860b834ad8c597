"""A service that was stopped begins where it stood, without reading its log again."""

import signal
from pathlib import Path

import pytest
from tests.interrupts import heeding

from stretto.demo.own_service import until
from stretto.service.eventlog import open_store

from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_a_restart_begins_at_the_state_that_the_stop_has_kept(tmp_path: Path, number: int) -> None:
    running = Running(tmp_path, "--slots", "1", "--gpu-type", "cpu", "--policy", "tiresias")
    try:
        with heeding(number):
            running.begin()
        with running.client() as client:
            name = str(client.submit("run: 'true'")["id"])
            assert client.wait(name)["state"] == "COMPLETED"
            until(lambda: list(client.events())[-1]["kind"] == "Decided", what="its end is decided about")
        assert running.kill(number) == 0  # while a decision is made, no state is kept
        with open_store(running.store) as store:
            kept = store.newest_state()
            assert kept is not None
            assert kept.seq == store.last()
        running.begin()
        with running.client() as client:
            assert client.describe(name)["state"] == "COMPLETED"
            assert client.wait(str(client.submit("run: 'true'")["id"]))["state"] == "COMPLETED"
        assert running.differences()[1] == 0
    finally:
        running.end()


def test_a_service_says_at_its_end_which_jobs_go_on_running(tmp_path: Path) -> None:
    running = Running(tmp_path, "--slots", "2", "--gpu-type", "cpu", "--policy", "fifo")
    try:
        running.begin()
        with running.client() as client:
            done = str(client.submit("{name: short, run: 'true'}")["id"])
            client.wait(done)
            name = str(client.submit("{name: long, run: sleep 600}")["id"])
            until(lambda: client.describe(name)["state"] == "RUNNING", what="the long job runs")
        assert running.kill(signal.SIGTERM) == 0
        said = running.last_words().splitlines()[-1]
        assert said.startswith(f"job {name} (long) goes on running")
        running.begin()
        with running.client() as client:
            client.change(name, "cancel")
            assert client.wait(name)["state"] == "CANCELLED"
        assert running.kill(signal.SIGTERM) == 0
        assert "go on running" not in running.last_words().splitlines()[-1]
    finally:
        running.end()
