"""A standby takes the place of a leader that is killed, and its jobs go on."""

import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import pytest

from stretto.client import Client
from stretto.demo.own_service import HERE, until

from ..eventlog.servers import PostgreSQL
from ..running import PROGRAM, Running
from ..standby import Standby

pytestmark = [pytest.mark.processes, pytest.mark.large]

OPTIONS = ("--slots", "2", "--gpu-type", "cpu", "--policy", "cornucopia")
LONG = "{name: long, run: sleep 900}"
TAKEN_OVER_S = 15.0
PER_S, SUBMITTING_S, KILLED_AFTER = 20.0, 12.0, 60


def a_standby_takes_over(leader: Running) -> None:
    standby = None
    try:
        leader.begin()
        with leader.client() as client:
            job = str(client.submit(LONG)["id"])
            until(lambda: client.describe(job)["state"] == "RUNNING", what="the job runs")
            standby = Standby(leader)
            # It is alive, says that it is not ready and who leads, and takes no jobs.
            assert standby.get("/healthz").status_code == HTTPStatus.OK
            refusal = standby.get("/readyz")
            assert refusal.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            assert leader.process is not None
            assert f"stretto {leader.process.pid} on" in refusal.json()["detail"]
            assert standby.get("/api/v1/jobs").status_code == HTTPStatus.SERVICE_UNAVAILABLE
            later = str(client.submit(LONG)["id"])  # what comes while it stands by is known to it, too
            until(lambda: client.describe(later)["state"] == "RUNNING", what="the second job runs")
        leader.kill()
        killed_s = time.monotonic()
        until(lambda: standby.get("/readyz").status_code == HTTPStatus.OK, what="the standby leads")
        print(f"ready {time.monotonic() - killed_s:.1f} s after the leader was killed")
        standby.take_over_as(leader)
        with leader.client() as client:
            for name in (job, later):
                shown = client.describe(name)
                assert (shown["state"], shown["attempt"]) == ("RUNNING", 1), shown
                client.change(name, "cancel")
                assert client.wait(name)["state"] == "CANCELLED"
            kinds = [event["kind"] for event in client.events()]
        assert kinds.count("LeadTaken") == 2
        assert "Incarnated" not in kinds, "the log is no copy"
        assert standby.end() == 0
        assert leader.differences()[1] == 0
    finally:
        if standby is not None:
            standby.end(signal.SIGKILL)
        leader.end()


@pytest.mark.postgres
def test_a_standby_on_postgresql_takes_the_place_of_a_leader_that_is_killed(
    tmp_path: Path, server: PostgreSQL
) -> None:
    a_standby_takes_over(Running(tmp_path, *OPTIONS, store=server.url))


@pytest.mark.long  # a further variant of the one above
def test_a_standby_on_a_file_takes_the_place_of_a_leader_that_is_killed(tmp_path: Path) -> None:
    a_standby_takes_over(Running(tmp_path, *OPTIONS))


@pytest.mark.postgres
def test_clients_with_both_addresses_go_on_while_the_leader_is_killed(
    tmp_path: Path, server: PostgreSQL
) -> None:
    """Twenty submissions a second through the kill: each is one job, and a worker that runs trains on."""
    leader, standby = Running(tmp_path, *OPTIONS, store=server.url), None
    waits: list[float] = []
    names: list[str] = []

    def submit(number: int) -> str:
        began_s = time.monotonic()
        with Client(both) as client:
            found = str(client.submit(f"{{name: n{number}, run: 'true', hold: true}}")["id"])
        waits.append(time.monotonic() - began_s)
        return found

    try:
        leader.begin()
        standby = Standby(leader)
        both = f"{leader.url},http://{HERE}:{standby.port}"
        with Client(both) as client, ThreadPoolExecutor(64) as pool:
            running = str(client.submit(LONG)["id"])
            until(lambda: client.describe(running)["state"] == "RUNNING", what="the job runs")
            asked: list[Future[str]] = []
            began_s = time.monotonic()
            while time.monotonic() < began_s + SUBMITTING_S:
                asked.append(pool.submit(submit, len(asked)))
                if len(asked) == KILLED_AFTER:
                    leader.kill()
                time.sleep(1 / PER_S)
            names = [each.result(timeout=60) for each in asked]
            print(f"{len(names)} submissions, the longest took {max(waits):.1f} s")
            assert max(waits) < TAKEN_OVER_S
            listed = {job["name"]: job["id"] for job in client.jobs()}
            assert listed == {**{f"n{at}": name for at, name in enumerate(names)}, "long": running}
            shown = client.describe(running)
            assert (shown["state"], shown["attempt"]) == ("RUNNING", 1), shown
            client.change(running, "cancel")
            assert client.wait(running)["state"] == "CANCELLED"
        leader.port, leader.process = standby.port, standby.process
        assert standby.end() == 0
        assert leader.differences()[1] == 0
    finally:
        if standby is not None:
            standby.end(signal.SIGKILL)
        leader.end()


def test_a_standby_that_is_told_to_end_ends_and_leaves_the_leader_alone(tmp_path: Path) -> None:
    leader = Running(tmp_path, *OPTIONS)
    try:
        leader.begin()
        assert Standby(leader).end() == 0
        with leader.client() as client:
            assert client.is_ready()
    finally:
        leader.end()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "emulated", "--cluster", "ones"], "--standby: not with --backend emulated"),
        (["--begin-anew"], "--standby: not with --begin-anew"),
        ([], "--standby: expected"),
        (["--key-file", "none"], "none: cannot be used: No such file or directory"),
    ],
)
def test_what_a_standby_cannot_have_is_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    command = [sys.executable, *PROGRAM, "serve", "--standby", "--state", "state", *options]
    done = subprocess.run(
        [*command, "--listen", f"{HERE}:0"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
