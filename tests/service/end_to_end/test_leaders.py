"""A leader that wakes up late finds another in its place: it ends, and nothing of the other one's does."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from stretto.demo.own_service import until

from ..eventlog.servers import PostgreSQL
from ..running import Running

pytestmark = [pytest.mark.processes, pytest.mark.large]

OPTIONS = ("--slots", "2", "--gpu-type", "cpu", "--policy", "fifo")
LONG = "{name: long, run: sleep 900}"


def a_sleeper_ends_and_leaves_the_workers_of_the_next_leader_alone(
    first: Running, second: Running, cut_off: Callable[[], None]
) -> None:
    try:
        first.begin()
        with first.client() as client:
            kept = str(client.submit(LONG)["id"])
            until(lambda: client.describe(kept)["state"] == "RUNNING", what="a job of the first runs")
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        cut_off()
        second.begin()
        with second.client() as client:
            new = str(client.submit(LONG)["id"])
            until(lambda: client.describe(new)["state"] == "RUNNING", what="a job of the second runs")
            first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(timeout=60) != 0
            assert "another service leads now" in first.last_words()
            assert "Traceback" not in first.last_words()
            until(client.is_ready, what="the second is ready")
            for job in (kept, new):
                shown = client.describe(job)
                assert (shown["state"], shown["attempt"]) == ("RUNNING", 1), shown
            for job in (kept, new):
                client.change(job, "cancel")
                assert client.wait(job)["state"] == "CANCELLED"
            ends = [one for one in client.events() if one["kind"].startswith("WorkersEnded")]
            assert len(ends) == 2
        assert second.differences()[1] == 0
    finally:
        if first.process is not None and first.process.poll() is None:
            first.process.send_signal(signal.SIGCONT)
            first.kill()
        second.end()


@pytest.mark.long  # a further variant of the one whose lock is removed
@pytest.mark.postgres
def test_a_leader_that_was_frozen_while_its_database_forgot_it_ends_by_itself(
    tmp_path: Path, server: PostgreSQL
) -> None:
    def end_its_sessions() -> None:
        with psycopg.connect(server.url, autocommit=True) as line:
            line.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'stretto %'"
            )

    first, second = (Running(tmp_path, *OPTIONS, store=server.url) for _ in range(2))
    a_sleeper_ends_and_leaves_the_workers_of_the_next_leader_alone(first, second, end_its_sessions)


@pytest.mark.long
def test_a_leader_that_was_frozen_while_its_lock_was_removed_ends_by_itself(tmp_path: Path) -> None:
    def remove_its_lock() -> None:
        (tmp_path / "state" / "stretto.db.lock").unlink()

    first, second = (Running(tmp_path, *OPTIONS) for _ in range(2))
    a_sleeper_ends_and_leaves_the_workers_of_the_next_leader_alone(first, second, remove_its_lock)


def test_a_leader_whose_lock_is_removed_ends_although_nobody_asks_for_anything(tmp_path: Path) -> None:
    running = Running(tmp_path, *OPTIONS)
    try:
        running.begin()
        (tmp_path / "state" / "stretto.db.lock").unlink()
        assert running.process is not None
        assert running.process.wait(timeout=60) != 0
        assert "another service leads now" in running.last_words()
    finally:
        running.end()


def test_a_node_that_knows_of_a_later_leader_than_a_restored_log_has_obeys_again(tmp_path: Path) -> None:
    running = Running(tmp_path, *OPTIONS)
    try:
        running.begin()
        assert running.kill(signal.SIGTERM) == 0
        agent = running.agent()
        os.kill(agent, signal.SIGTERM)
        until(lambda: not running.agent(), what="the agent ends")
        (running.agent_state / "epoch.json").write_text('{"epoch": 57}')
        running.begin()
        with running.client() as client:
            name = str(client.submit("run: 'true'")["id"])
            assert client.wait(name)["state"] == "COMPLETED"
        epochs = [body["epoch"] for _, _, kind, body in running.log_of_all() if kind == "LeadTaken"]
        assert epochs == [1, 2, 58]
        running.stop_gently()
        assert running.differences()[1] == 0
    finally:
        running.end()
