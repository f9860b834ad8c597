"""A backup of any moment can be restored: what it says may be long out of date, and no job fails by that."""

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.service.running import Running

from stretto.client import Client
from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]

OPTIONS = ("--slots", "3", "--gpu-type", "cpu", "--policy", "fifo")
SPEAKER = Path(__file__).with_name("speaker.py")
WAITS = "trap 'exit 0' TERM; while ! [ -e {folder}/go ]; do sleep 0.05; done"
SPEAKS = "exec {python} -I -S {speaker} {folder}"
JOB = "name: {name}\nrun: |\n  {run}\n"
ELASTIC = "resources: {accelerators: 2}\nelastic: {min: 2, max: 2}\n"
URGENT = "priority: 10\n"
DONE, CANCELLED, AGAIN, SHRUNK, FIRST = map(str, range(1, 6))  # ids, in the order of submission


@dataclass(frozen=True)
class Past:
    """The state directory of a service after its last job, and what its log says, event by event."""

    folder: Path
    events: tuple[tuple[int, str, str], ...]  # number, kind, job

    def last(self, kind: str, job: str) -> int:
        """The number of the last event of a kind about a job."""
        return max(seq for seq, *about in self.events if about == [kind, job])

    def restored(self, seq: int, folder: Path) -> Running:
        """A service with all that is on its disk, and a backup of the log as it was after an event."""
        shutil.copytree(self.folder / "state", folder / "state", ignore=shutil.ignore_patterns("control"))
        with sqlite3.connect(folder / "state" / "stretto.db") as log:
            for table in ("stretto_log", "stretto_states"):
                log.execute(f"DELETE FROM {table} WHERE seq > ?", (seq,))
        log.close()
        return Running(folder, *OPTIONS, "--begin-anew")


def submit(client: Client, folder: Path, name: str, run: str, more: str = "") -> str:
    text = run.format(folder=folder, python=sys.executable, speaker=SPEAKER)
    return str(client.submit(JOB.format(name=name, run=text) + more)["id"])


def has_joined(running: Running, job: str) -> bool:
    return any(kind == "Joined" and body["job"] == job for _, _, kind, body in running.log_of_all())


def play(running: Running, folder: Path) -> None:
    """Jobs that are done, cancelled, requeued and resized, and have all ended."""
    with running.client() as client:

        def runs(job: str, attempt: int = 1, gpus: int = 1) -> None:
            def as_said() -> bool:
                one = client.describe(job)
                return (one["state"], one["attempt"], one["gpus"]) == ("RUNNING", attempt, gpus)

            until(as_said, what=f"job {job} runs")

        assert client.wait(submit(client, folder, "done", "true"))["state"] == "COMPLETED"
        cancelled = submit(client, folder, "cancelled", WAITS)
        runs(cancelled)
        client.change(cancelled, "cancel")
        assert client.wait(cancelled)["state"] == "CANCELLED"
        again = submit(client, folder, "again", WAITS)
        runs(again)
        client.change(again, "requeue")
        runs(again, attempt=2)
        shrunk = submit(client, folder, "shrunk", SPEAKS, ELASTIC)
        runs(shrunk, gpus=2)
        until(lambda: has_joined(running, shrunk), what="it trains")
        client.change(shrunk, "scale", min_gpus=1, max_gpus=2)
        first = submit(client, folder, "first", WAITS, URGENT)
        runs(shrunk)
        until(lambda: f"{first}.1.0" in running.workers(), what="it has what the other gave up")
        (folder / "go").touch()
        for job in (again, shrunk, first):
            found = client.wait(job)
            assert found["state"] == "COMPLETED", found


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    folder = tmp_path_factory.mktemp("past")
    running = Running(folder, *OPTIONS)
    try:
        running.begin()
        play(running, folder)
        until(lambda: not list((running.agent_state / "runs").iterdir()), what="all workers are forgotten")
        running.stop_gently()
        log = running.log_of_all()
        yield Past(folder, tuple((seq, kind, str(body.get("job", ""))) for seq, _, kind, body in log))
    finally:
        running.end()


def check(past: Past, seq: int, folder: Path) -> list[str]:
    """Restore a backup of this moment; what has ended otherwise than it should."""
    running = past.restored(seq, folder)
    try:
        running.begin()
        with running.client() as client:
            jobs = [client.wait(one["id"]) for one in client.jobs(everybody=True, ended=True)]
            wrong = [one for one in jobs if one["state"] not in ("COMPLETED", "CANCELLED")]
            assert client.wait(submit(client, folder, "later", "true"))["state"] == "COMPLETED"
    finally:
        running.end()
        shutil.rmtree(folder)
    kind = next(kind for number, kind, _ in past.events if number == seq)
    return [f"after event {seq}, {kind}: {one['name']} is {one['state']}, {one['evidence']}" for one in wrong]


@pytest.mark.parametrize(
    ("kind", "job"),
    [
        pytest.param("WorkersWanted", DONE, id="a start"),
        pytest.param("WorkersStopped", AGAIN, id="an end"),
        pytest.param("Generation", SHRUNK, id="a resize"),
    ],
)
def test_a_backup_of_the_moment_before_a_command_is_carried_out(
    kind: str, job: str, past: Past, tmp_path: Path
) -> None:
    assert check(past, past.last(kind, job), tmp_path / "restored") == []


@pytest.mark.long
def test_a_backup_of_every_moment(past: Past, tmp_path: Path) -> None:
    first = past.last("Submitted", DONE)
    moments = [seq for seq, _, _ in past.events if seq >= first]
    assert [line for seq in moments for line in check(past, seq, tmp_path / str(seq))] == []
