"""A service that has lost some of its log says so and does not start; --begin-anew goes on without."""

import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.live.running import Running

from stretto.demo.own_service import NotInTime

CLUSTER = "name: one\ngpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 2, count: 1}]\n"
JOB = "{run: x, name: again, expected_time: 1m}"


def a_service(folder: Path, *options: str) -> Running:
    folder.mkdir(exist_ok=True)
    (folder / "cluster.yaml").write_text(CLUSTER)
    words = ["--backend", "emulated", "--cluster", str(folder / "cluster.yaml"), "--policy", "fifo"]
    return Running(folder, *words, "--pace", "1000", *options)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a service with three jobs that have ended, that was killed."""
    running = a_service(tmp_path_factory.mktemp("killed"))
    try:
        running.begin()
        with running.client() as client:
            for _ in range(3):
                assert client.wait(str(client.submit(JOB)["id"]))["state"] == "COMPLETED"
        running.kill()
        yield running.state
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
        pytest.param(without_wal, "it is gone|and had come to event", id="the WAL is gone"),
        pytest.param(with_garbled_wal, "it is gone|and had come to event", id="the WAL is garbled"),
        pytest.param(emptied, "it is gone", id="the database is empty"),
        pytest.param(gone, "it is gone", id="the database is gone"),
        pytest.param(changed("DELETE FROM stretto_log"), "it ends at event 0, and had", id="no rows"),
        pytest.param(changed(f"DELETE FROM stretto_log {MIDDLE}"), r"event \d+ missing", id="a row is gone"),
        pytest.param(
            changed(f"UPDATE stretto_log SET body = '{{' {MIDDLE}"),
            r"event \d+ is not what was written|no JSON",
            id="a body is no JSON",
        ),
    ],
)
def test_a_loss_is_said_in_one_line_and_gone_on_without_only_where_somebody_says_so(
    damage: Callable[[Path], None], said: str, killed: Path, tmp_path: Path
) -> None:
    shutil.copytree(killed, tmp_path / "state")
    damage(tmp_path / "state")
    before = {path.name for path in (tmp_path / "state").iterdir()}
    running = a_service(tmp_path)
    try:
        with pytest.raises(NotInTime):
            running.begin()
        assert running.process is not None
        assert running.process.returncode == 2
        (line,) = running.last_words().splitlines()
        assert re.search(f"^stretto: .*the log is damaged: .*({said}).*--begin-anew", line)
        assert {path.name for path in (tmp_path / "state").iterdir()} - before <= {"stretto.db-shm"}
        anew = a_service(tmp_path, "--begin-anew")
        anew.begin()
        assert "begun anew: event" in anew.last_words()
        anew.kill()
        running.begin()
        with running.client() as client:
            assert client.wait(str(client.submit(JOB)["id"]))["state"] == "COMPLETED"
    finally:
        running.end()
