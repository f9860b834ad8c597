"""A service in a process of its own, whose end is the end of all that it started."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from stretto.demo.own_service import NotInTime, OwnService, started_with, until

pytestmark = pytest.mark.processes


def test_nothing_is_left_of_a_service_that_ends_while_its_agent_comes_up(tmp_path: Path) -> None:
    options = ("--slots", "1", "--gpu-type", "cpu", "--policy", "fifo")
    service = OwnService(tmp_path, options, ("-m", "stretto.cli.app"))

    def agents() -> list[int]:
        return started_with(service.agent_state)

    def strike() -> None:
        until(agents, what="an agent has been started")
        assert service.process is not None
        service.process.kill()

    striking = threading.Thread(target=strike)
    striking.start()
    try:
        with suppress(NotInTime):
            service.begin()
        striking.join()
        service.end()
        assert agents() == []
    finally:
        for pid in agents():
            os.kill(pid, signal.SIGKILL)
