"""A service that was stopped begins where it stood, without reading its log again."""

import signal
from pathlib import Path

from stretto.live.store import open_store

from ..running import Running


def test_a_restart_begins_at_the_state_that_the_stop_has_kept(tmp_path: Path) -> None:
    running = Running(tmp_path, "--slots", "1", "--gpu-type", "cpu", "--policy", "tiresias")
    try:
        running.begin()
        with running.client() as client:
            name = str(client.submit("run: 'true'")["id"])
            assert client.wait(name)["state"] == "COMPLETED"
        assert running.kill(signal.SIGTERM) == 0
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
