"""Whatever is killed, at whatever moment: nothing acknowledged is lost, and nothing is done twice."""

import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..eventlog.servers import PostgreSQL
from ..running import Running
from .conftest import Tell
from .strikes import OPTIONS, Scene
from .verdict import check

pytestmark = [pytest.mark.processes, pytest.mark.large]

KINDS = ("worker", "supervisor", "agent", "service", "graceful", "stubborn", "polite", "clock")
SEEDS = (11, 12, 13)
OF_EACH = 10  # in the long tests


def survive(scene: Scene, blows: Sequence[str], patience_s: float, tell: Tell) -> None:
    """Blows one after another until so many of each kind did what they were to do, then the checks."""
    try:
        scene.running.begin()
        for kind in blows:
            scene.strike(kind)
        while missed := Counter(blows) - scene.landed():
            assert len(scene.blows) < 3 * len(blows), missed
            scene.strike(min(missed))
        fell = scene.landed()
        scene.settle(patience_s)
        tell(fell, check(scene))
    finally:
        scene.running.end()


def shuffled(kinds: Sequence[str], times: int, seed: int) -> list[str]:
    blows = [kind for kind in kinds for _ in range(times)]
    random.Random(seed).shuffle(blows)
    return blows


def test_one_blow_of_each_kind_loses_nothing(tmp_path: Path, tell: Tell) -> None:
    survive(Scene(tmp_path / "scene", 1), shuffled(KINDS, 1, 1), 180, tell)


@pytest.mark.postgres
def test_a_lost_database_connection_loses_nothing(
    tmp_path: Path, server: PostgreSQL, database: str, tell: Tell
) -> None:
    scene = Scene(tmp_path / "scene", 2, store=server.url_of(database))
    survive(scene, ["database", "worker", "database"], 180, tell)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "policy"), [*zip(SEEDS, ("fifo", "sia", "cornucopia"), strict=True)])
def test_blows_at_random_moments_lose_nothing(tmp_path: Path, seed: int, policy: str, tell: Tell) -> None:
    blows = shuffled(KINDS, -(-OF_EACH // len(SEEDS)), seed)
    survive(Scene(tmp_path / "scene", seed, policy), blows, 300, tell)


@pytest.mark.postgres
@pytest.mark.long
def test_lost_database_connections_lose_nothing(
    tmp_path: Path, server: PostgreSQL, database: str, tell: Tell
) -> None:
    scene = Scene(tmp_path / "scene", 21, store=server.url_of(database))
    survive(scene, shuffled(("database", "database", "service", "worker"), OF_EACH // 2, 21), 300, tell)


@pytest.mark.long
def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path, small_disk: Path, tell: Tell) -> None:
    survive(Scene(tmp_path / "scene", 31, small_disk=small_disk), ["disk"] * OF_EACH, 300, tell)


def test_a_service_that_is_told_to_end_leaves_its_jobs_alone_and_finds_them_again(tmp_path: Path) -> None:
    running, notes = Running(tmp_path, *OPTIONS), tmp_path / "notes"
    notes.mkdir()
    run = f"while [ ! -e {notes}/go ]; do sleep 0.05; done"
    try:
        running.begin()
        with running.client() as client:
            jobs = [client.submit(f'{{"name": "stays", "run": "{run}"}}')["id"] for _ in range(2)]
            until(lambda: all(client.describe(job)["state"] == "RUNNING" for job in jobs), what="both run")
        before, agent = running.workers(), running.agent()
        follow = {"follow": True, "after": -1}
        with running.client() as client, client.http.stream("GET", "/api/v1/events", params=follow) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert running.kill(signal.SIGTERM) == 0
            assert "WorkerEnded" not in "".join(lines)  # which come to an end, and do not break off
        assert (running.workers(), running.agent()) == (before, agent)
        assert "Traceback" not in running.log.read_text()
        running.begin()
        (notes / "go").touch()
        with running.client() as client:
            until(lambda: not list(client.jobs(everybody=True)), what="both have ended")
            shown = [client.describe(job) for job in jobs]
        assert [(one["state"], one["attempt"], one["restarts"]) for one in shown] == [("COMPLETED", 1, 0)] * 2
    finally:
        running.end()


def test_what_a_job_leaves_behind_is_ended_after_its_grace_period(tmp_path: Path) -> None:
    running = Running(tmp_path, *OPTIONS)
    try:
        running.begin()
        with running.client() as client:
            job = '{"name": "forks", "run": "setsid sleep 600 & exit 0", "grace_period": "0.2s"}'
            found = client.submit(job)["id"]
            until(lambda: client.describe(found)["state"] == "COMPLETED", what="the job is completed")
        assert running.processes() == []
    finally:
        running.end()
