"""A service that has lost some of its log says so and does not start; --begin-anew goes on without."""

import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from tests.service.eventlog.servers import PostgreSQL, new_server
from tests.service.running import Running

from stretto.demo.own_service import NotInTime

pytestmark = [pytest.mark.processes, pytest.mark.large]

CLUSTER = "name: one\ngpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 2, count: 1}]\n"
JOB = "{run: x, name: again, expected_time: 1m}"


def a_service(folder: Path, *options: str, store: str = "") -> Running:
    folder.mkdir(exist_ok=True)
    (folder / "cluster.yaml").write_text(CLUSTER)
    words = ["--backend", "emulated", "--cluster", str(folder / "cluster.yaml"), "--policy", "fifo"]
    return Running(folder, *words, "--pace", "1000", *options, store=store)


def killed_after_three_jobs(running: Running) -> Iterator[Path]:
    """The state directory of a service with three jobs that have ended, that was killed."""
    try:
        running.begin()
        with running.client() as client:
            for _ in range(3):
                assert client.wait(str(client.submit(JOB)["id"]))["state"] == "COMPLETED"
        running.kill()
        yield running.state
    finally:
        running.end()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from killed_after_three_jobs(a_service(tmp_path_factory.mktemp("killed")))


def check(folder: Path, said: str, store: str = "") -> None:
    """A start says the loss in one line and does no more; one that is told to goes on, as do later ones."""
    before = {path.name for path in (folder / "state").iterdir()}
    running = a_service(folder, store=store)
    try:
        with pytest.raises(NotInTime):
            running.begin()
        assert running.process is not None
        assert running.process.returncode == 2
        (line,) = running.last_words().splitlines()
        assert re.search(f"^stretto: .*the log is damaged: .*({said}).*--begin-anew", line)
        assert {path.name for path in (folder / "state").iterdir()} - before <= {"stretto.db-shm"}
        anew = a_service(folder, "--begin-anew", store=store)
        anew.begin()
        assert "begun anew: event" in anew.last_words()
        anew.kill()
        running.begin()
        with running.client() as client:
            assert client.wait(str(client.submit(JOB)["id"]))["state"] == "COMPLETED"
    finally:
        running.end()


def without_wal(state: Path) -> None:
    (state / "stretto.db-wal").unlink()
    (state / "stretto.db-shm").unlink(missing_ok=True)


def with_garbled_wal(state: Path) -> None:
    with (state / "stretto.db-wal").open("r+b") as wal:
        wal.seek(wal.seek(0, os.SEEK_END) // 2)
        wal.write(random.Random(1).randbytes(4_000))
    (state / "stretto.db-shm").unlink(missing_ok=True)


def emptied(state: Path) -> None:
    gone(state)
    (state / "stretto.db").touch()


def gone(state: Path) -> None:
    for path in state.glob("stretto.db*"):
        path.unlink()


def changed(statement: str) -> Callable[[Path], None]:
    def change(state: Path) -> None:
        with sqlite3.connect(state / "stretto.db") as log:
            log.execute(statement)
        log.close()

    return change


MIDDLE = "WHERE seq = (SELECT max(seq) / 2 FROM stretto_log)"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param(
            without_wal, "it is gone|and had come to event", id="the WAL is gone", marks=pytest.mark.long
        ),
        pytest.param(
            with_garbled_wal,
            "it is gone|and had come to event",
            id="the WAL is garbled",
            marks=pytest.mark.long,
        ),
        pytest.param(emptied, "it is gone", id="the database is empty", marks=pytest.mark.long),
        pytest.param(gone, "it is gone", id="the database is gone", marks=pytest.mark.long),
        pytest.param(
            changed("DELETE FROM stretto_log"),
            "it ends at event 0, and had",
            id="no rows",
            marks=pytest.mark.long,
        ),
        pytest.param(changed(f"DELETE FROM stretto_log {MIDDLE}"), r"event \d+ missing", id="a row is gone"),
        pytest.param(
            changed(f"UPDATE stretto_log SET body = '{{' {MIDDLE}"),
            r"event \d+ is not what was written|no JSON",
            id="a body is no JSON",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_loss_is_said_in_one_line_and_gone_on_without_only_where_somebody_says_so(
    damage: Callable[[Path], None], said: str, killed: Path, tmp_path: Path
) -> None:
    shutil.copytree(killed, tmp_path / "state")
    damage(tmp_path / "state")
    check(tmp_path, said)


@dataclass(frozen=True)
class OnServer:
    """What `killed` is, with its log in a database of a server that nobody is connected to any more."""

    server: PostgreSQL
    state: Path

    def damaged_copy(self, folder: Path, statement: str) -> str:
        """A copy of all, of which the database has lost something; where it is."""
        shutil.copytree(self.state, folder / "state")
        name = f"copy{sum(statement.encode())}"
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "killed"')
        with psycopg.connect(self.server.url_of(name), autocommit=True) as connection:
            connection.execute(statement)
        return self.server.url_of(name)


@pytest.fixture(scope="module")
def killed_on_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnServer]:
    server = new_server(pytest.skip)
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute('CREATE DATABASE "killed"')
        running = a_service(tmp_path_factory.mktemp("killed"), store=server.url_of("killed"))
        for state in killed_after_three_jobs(running):
            yield OnServer(server, state)
    finally:
        server.stop("immediate")
        shutil.rmtree(server.folder)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        pytest.param(
            "DELETE FROM stretto_log WHERE seq > (SELECT max(seq) / 2 FROM stretto_log)",
            r"it ends at event \d+, and had come to event \d+",
            id="an older dump was restored",
        ),
        pytest.param(
            f"DELETE FROM stretto_log {MIDDLE}",
            r"event \d+ missing",
            id="a row is gone",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "TRUNCATE stretto_log",
            "it ends at event 0, and had",
            id="no rows",
            marks=pytest.mark.long,
        ),
        pytest.param(
            f"UPDATE stretto_log SET body = '{{}}' {MIDDLE}",
            r"event \d+ is not what was written",
            id="a body was changed",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public",
            "it is gone",
            id="another, empty database",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_loss_on_a_server_is_said_in_one_line_and_gone_on_without_only_where_somebody_says_so(
    statement: str, said: str, killed_on_server: OnServer, tmp_path: Path
) -> None:
    check(tmp_path, said, store=killed_on_server.damaged_copy(tmp_path, statement))
