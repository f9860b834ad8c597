"""A standby takes over a cluster of Kubernetes on PostgreSQL: pods go on, and the Lease has its name."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.backends.kubernetes.control_plane import missing
from tests.conformance.service import DEAD_AFTER_S, StruckService
from tests.conformance.worlds.kubernetes import KubernetesWorld
from tests.service.eventlog.conftest import database, server
from tests.service.eventlog.servers import PostgreSQL
from tests.service.running import Running
from tests.service.standby import Standby

from stretto.demo.own_service import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.kubernetes,
    pytest.mark.postgres,
    pytest.mark.large,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a process another host's name"),
]

__all__ = ["database", "server"]
NAMED = str(Path(__file__).with_name("named_host.py"))
FIRST, SECOND = "stretto-0", "stretto-1"  # as pods of a StatefulSet are called
TAKEN_OVER_S = 15.0  # what is promised
MANY = 100_000


class Pair(StruckService):
    """A service on PostgreSQL with a key in a file, as the chart installs it, and who stands by for it."""

    def __init__(self, world: KubernetesWorld, folder: Path, store: str) -> None:
        self.store, self.key = store, folder / "key"
        folder.mkdir(parents=True, exist_ok=True)
        self.key.write_bytes(os.urandom(32))
        self.cluster = world
        super().__init__(world, folder, DEAD_AFTER_S)

    def own_service(self, options: Any) -> Running:
        """The first of the two."""
        told = [*options, "--key-file", str(self.key)]
        return Running(self.folder, *told, store=self.store, program=(NAMED, FIRST))

    def stand_by(self) -> Standby:
        """The second, with a state directory of its own."""
        return Standby(self.running, state=self.folder / "second", program=(NAMED, SECOND))

    def lease(self) -> dict[str, Any]:
        """Who leads, as people see it."""
        (only,) = [
            each
            for each in self.cluster.plane.ask("GET", "apis/coordination.k8s.io/v1/leases").json()["items"]
            if each["metadata"]["name"].startswith("stretto-leader-")
            and each["metadata"]["labels"]["stretto.dev/service"] == self.name
        ]
        return {"leader": only["spec"]["holderIdentity"], "changes": only["spec"]["leaseTransitions"]}

    @property
    def name(self) -> str:
        """By which its pods are found."""
        (name,) = {each["metadata"]["labels"]["stretto.dev/service"] for each in self.pods()}
        return str(name)

    def pods(self) -> list[dict[str, Any]]:
        """All of ours."""
        found = self.cluster.plane.ask("GET", "api/v1/pods").json()["items"]
        return [each for each in found if "stretto.dev/service" in each["metadata"].get("labels", {})]

    def lives(self) -> dict[str, str]:
        """By pod what tells one life of it from another."""
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in self.pods()}


@dataclass
class Run:
    """Jobs that run, and one that waits, when a takeover begins."""

    goes_on: str
    trains: str
    waits: str
    attempts: dict[str, int]
    pods: dict[str, str]
    began: int
    count: int


@pytest.fixture
def pair(world: KubernetesWorld, server: PostgreSQL, database: str, tmp_path: Path) -> Iterator[Pair]:
    """The first service runs."""
    service = Pair(world, tmp_path, server.url_of(database))
    service.begin()
    try:
        yield service
    finally:
        service.end()


def running(service: Pair) -> Run:
    """A job works on all GPUs of one type, a training on one of another, and a third job waits."""
    goes_on = service.submit("beat", MANY, gpus=4, gpu_type="a100", preemptible=False)
    trains = service.submit("train", MANY, gpu_type="t4", elastic={"min": 1, "max": 1})
    service.until_works(goes_on, 4)
    service.until_works(trains, 1)
    waits = service.submit("sleep", 0.2, gpus=2, gpu_type="a100")
    service.until(lambda: service.shown(waits)["reason"], "the third waits")
    service.until(lambda: service.count(goes_on) > 3 and service.count(trains) > 3, "they count")
    attempts = {job: service.shown(job)["attempt"] for job in (goes_on, trains)}
    began, count = len(service.notes("began")), service.count(goes_on)
    return Run(goes_on, trains, waits, attempts, service.lives(), began, count)


def taken_over(service: Pair, standby: Standby, since_s: float) -> str:
    """Wait until the standby leads, and the Lease says so; in words."""
    until(lambda: standby.get("/readyz").status_code == HTTPStatus.OK, what="the standby leads")
    ready_s = time.monotonic() - since_s
    until(lambda: service.lease()["leader"] == SECOND, what="the Lease has its name")
    shown_s = time.monotonic() - since_s
    assert ready_s < TAKEN_OVER_S
    assert shown_s < TAKEN_OVER_S
    standby.take_over_as(service.running)
    return f"ready after {ready_s:.1f} s, in the Lease after {shown_s:.1f} s"


def check_undisturbed(service: Pair, run: Run) -> None:
    """The same pods go on, the new leader resizes and starts, and in the end nothing is left."""
    assert service.lives() == run.pods, "no pod was touched"
    assert len(service.notes("began")) == run.began
    service.until(lambda: service.count(run.goes_on) > run.count + 3, "it went on")
    for job in (run.goes_on, run.trains):
        shown = service.shown(job)
        assert (shown["state"], shown["attempt"]) == ("RUNNING", run.attempts[job]), shown
    service.change(run.trains, "scale", min_gpus=2, max_gpus=2)
    service.until(lambda: service.shown(run.trains)["training_gpus"] == 2, "it grows in place")
    assert run.pods.items() < service.lives().items()
    assert "train begins" in service.log(run.trains), "what it printed before is there"
    for job in (run.goes_on, run.trains):
        service.change(job, "cancel")
    assert service.until_state(run.waits, "COMPLETED")["attempt"] == 1
    service.until(lambda: not service.open(), "all jobs have ended")
    service.check()
    service.until(lambda: not service.left(), "nothing is left of any worker")
    assert service.running.differences()[1] == 0


def test_a_standby_on_postgresql_takes_over_running_pods(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    run = running(pair)
    with ExitStack() as stack:
        standby = pair.stand_by()
        stack.callback(standby.end, signal.SIGKILL)
        assert pair.lease() == {"leader": FIRST, "changes": 0}
        pair.running.kill()
        said = taken_over(pair, standby, time.monotonic())
        assert pair.lease() == {"leader": SECOND, "changes": 1}
        check_undisturbed(pair, run)
    with capsys.disabled():
        print(f"\na leader is killed: {said}; load {os.getloadavg()[0]:.1f}")


@pytest.mark.long
def test_a_leader_that_was_frozen_commands_nothing_once_a_standby_has_taken_over(
    pair: Pair, server: PostgreSQL, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = running(pair)
    with ExitStack() as stack:
        standby = pair.stand_by()
        stack.callback(standby.end, signal.SIGKILL)
        former = pair.running.process
        assert former is not None
        former.send_signal(signal.SIGSTOP)
        stack.callback(former.kill)
        cut_off(server, database, standby)
        said = taken_over(pair, standby, time.monotonic())
        former.send_signal(signal.SIGCONT)
        assert former.wait(60) != 0, "it ends, since it leads no more"
        assert pair.lease() == {"leader": SECOND, "changes": 1}
        check_undisturbed(pair, run)
    with capsys.disabled():
        print(f"\na leader is frozen and cut off from its store: {said}; load {os.getloadavg()[0]:.1f}")


def cut_off(server: PostgreSQL, database: str, standby: Standby) -> None:
    """End the connections of all but the standby, as the server does where a machine has vanished."""
    mine = set(ports_of(standby.process.pid))
    with psycopg.connect(server.url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid, client_port FROM pg_stat_activity WHERE datname = %s", [database]
        ).fetchall()
        for pid, port in found:
            if port not in mine:
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])


def ports_of(pid: int) -> Iterator[int]:
    """Local ports of the connections of a process."""
    sockets = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if f"socket:[{columns[9]}]" in sockets:
            yield int(columns[1].partition(":")[2], 16)
