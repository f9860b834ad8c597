"""A restore drill: what was given before is not given again, and what was lost has time to save itself."""

import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.service.running import Running

from stretto.client import Client
from stretto.demo.own_service import NotInTime, until

pytestmark = [pytest.mark.processes, pytest.mark.large]

OPTIONS = ("--slots", "3", "--gpu-type", "cpu", "--policy", "fifo")
SCRIPT = """
name: {name}
run: |
  cat "$STRETTO_CHECKPOINT_DIR/model" 2>/dev/null
  echo "model of {name}" >"$STRETTO_CHECKPOINT_DIR/model"
  echo "I am {name}"; echo "$STRETTO_TOKEN" >{folder}/{name}.token
  {rest}
"""
WAITS = "trap 'echo saved >{folder}/{name}.saved; exit 0' TERM; while :; do sleep 0.1; done"


class Drill:
    """A service with a backup, after which much has happened; it is stopped, and one of its jobs goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = Running(folder, *OPTIONS)
        self.backup = folder / "backup.db"

    def submit(self, client: Client, name: str, rest: str = "true") -> str:
        said = {"name": name, "folder": self.folder}
        return str(client.submit(SCRIPT.format(**said, rest=rest.format(**said)))["id"])

    def happen(self) -> None:
        self.service.begin()
        with self.service.client() as client:
            self.known = self.submit(client, "known", WAITS)
            until(lambda: (self.folder / "known.token").exists(), what="the known job runs")
            until(lambda: client.describe(self.known)["state"] == "RUNNING", what="the log says that it runs")
            with sqlite3.connect(self.service.store) as log, sqlite3.connect(self.backup) as copy:
                log.backup(copy)  # as the documentation has it
            log.close()
            copy.close()
            client.change(self.known, "requeue")  # its second attempt is not in the backup
            until(lambda: f"{self.known}.2.0" in self.service.workers(), what="it begins anew")
            self.done = self.submit(client, "done")
            assert client.wait(self.done)["state"] == "COMPLETED"
            self.lost = self.submit(client, "lost", WAITS)
            until(lambda: (self.folder / "lost.token").exists(), what="the lost job runs")
        assert self.service.kill(signal.SIGTERM) == 0

    def is_refused(self) -> str:
        with pytest.raises(NotInTime):
            self.service.begin()
        assert self.service.process is not None
        assert self.service.process.returncode == 2
        return self.service.last_words().splitlines()[-1]

    def replace_log(self, with_backup: bool) -> None:
        for path in self.service.state.glob("stretto.db*"):
            path.unlink()
        if with_backup:
            shutil.copy(self.backup, self.service.state / "stretto.db")

    def go_on(self, service: Running) -> list[str]:
        """Jobs of afterwards, which share nothing with those of before."""
        with service.client() as client:
            names = [self.submit(client, f"later{number}") for number in range(4)]
            for number, name in enumerate(names):
                assert client.wait(name)["state"] == "COMPLETED"
                assert "".join(client.log(name)) == f"I am later{number}\n"
        assert min(map(int, names)) > int(self.lost)
        for lost in ("done", "lost"):
            token = (self.folder / f"{lost}.token").read_text().strip()
            answer = httpx.post(
                f"{service.url}/api/v1/worker/ready",
                json={"worker": f"{token.partition('.')[0]}.1.0"},
                headers={"authorization": f"Bearer {token}"},
                trust_env=False,
            )
            assert answer.status_code in (401, 403, 404, 410)
        assert service.differences()[1] == 0
        return names


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    made = Drill(tmp_path)
    try:
        made.happen()
        yield made
    finally:
        made.service.end()


@pytest.mark.long  # a further variant of the last one
def test_a_restored_backup_goes_on_without_what_came_after_it(drill: Drill) -> None:
    drill.replace_log(with_backup=True)
    assert "and had come to event" in drill.is_refused()
    drill.service.options = (*drill.service.options, "--begin-anew")
    drill.service.begin()
    assert "begun anew: events" in drill.service.last_words()
    until(lambda: (drill.folder / "lost.saved").exists(), what="the lost job saves itself")
    drill.go_on(drill.service)
    with drill.service.client() as client:
        # Its second attempt of before is ended, and another second one has begun under another id.
        until(lambda: client.describe(drill.known)["attempt"] == 2, what="the known job goes on")
        until(lambda: client.describe(drill.known)["state"] == "RUNNING", what="the known job goes on")
        (worker,) = drill.service.workers()
        assert worker.startswith(f"{drill.known}.2-")
        client.change(drill.known, "cancel")
        assert client.wait(drill.known)["state"] == "CANCELLED"


@pytest.mark.long
def test_a_log_that_is_gone_gives_no_id_a_second_time(drill: Drill) -> None:
    drill.replace_log(with_backup=False)
    assert "it is gone" in drill.is_refused()
    drill.service.options = (*drill.service.options, "--begin-anew")
    drill.service.begin()
    until(lambda: (drill.folder / "lost.saved").exists(), what="the lost job saves itself")
    assert drill.go_on(drill.service)[0] == str(int(drill.lost) + 1)


@pytest.mark.long
def test_a_backup_beside_what_it_does_not_know_gives_no_id_a_second_time(drill: Drill) -> None:
    drill.replace_log(with_backup=True)
    (drill.service.state / "log.mark").unlink()  # nothing is said of how far the log had come
    drill.service.begin()
    until(lambda: (drill.folder / "lost.saved").exists(), what="the lost job saves itself")
    drill.go_on(drill.service)


def test_a_backup_in_another_directory_gives_no_id_a_second_time(drill: Drill, tmp_path: Path) -> None:
    """With its key beside it, as it is documented, and with nothing that tells of later jobs."""
    drill.service.end()
    moved = Running(tmp_path / "moved", *OPTIONS)
    moved.state.mkdir(parents=True, mode=0o700)
    shutil.copy(drill.backup, moved.state / "stretto.db")
    shutil.copy(drill.service.state / "key", moved.state / "key")
    try:
        moved.begin()
        drill.go_on(moved)
    finally:
        moved.end()
