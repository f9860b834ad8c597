"""Whatever is killed, at whatever moment: nothing acknowledged is lost, and nothing is done twice."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from stretto.demo.own_service import until

from ..running import Running
from ..store.servers import PostgreSQL
from .strikes import OPTIONS, Scene

KINDS = ("worker", "keeper", "agent", "service", "stubborn", "polite", "clock")
OF_EACH = 10  # in the long tests


def survive(scene: Scene, blows: Sequence[str], patience_s: float) -> Counter[str]:
    """Blows one after another, then the checks; how many of each kind there were."""
    try:
        scene.running.begin()
        for kind in blows:
            scene.strike(kind)
        scene.settle(patience_s)
        scene.check()
    finally:
        scene.running.end()
    return scene.struck


def shuffled(kinds: Sequence[str], times: int, seed: int) -> list[str]:
    blows = [kind for kind in kinds for _ in range(times)]
    random.Random(seed).shuffle(blows)
    return blows


def test_one_blow_of_each_kind_loses_nothing(tmp_path: Path) -> None:
    survive(Scene(tmp_path / "scene", 1), shuffled(KINDS, 1, 1), 60)


def test_a_lost_database_connection_loses_nothing(tmp_path: Path, server: PostgreSQL, database: str) -> None:
    scene = Scene(tmp_path / "scene", 2, store=server.url_of(database))
    survive(scene, ["database", "worker", "database"], 60)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "policy"), [(11, "fifo"), (12, "sia"), (13, "cornucopia")])
def test_blows_at_random_moments_lose_nothing(tmp_path: Path, seed: int, policy: str) -> None:
    times = OF_EACH // 3 + 1
    struck = survive(Scene(tmp_path / "scene", seed, policy), shuffled(KINDS, times, seed), 300)
    assert struck == dict.fromkeys(KINDS, times)


@pytest.mark.long
def test_lost_database_connections_lose_nothing(tmp_path: Path, server: PostgreSQL, database: str) -> None:
    scene = Scene(tmp_path / "scene", 21, store=server.url_of(database))
    survive(scene, shuffled(("database", "database", "service", "worker"), OF_EACH // 2, 21), 300)


@pytest.mark.long
def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    scene = Scene(tmp_path / "scene", 31, small_disk=small_disk)
    survive(scene, ["disk"] * OF_EACH, 300)


def test_what_a_job_leaves_behind_is_ended_after_its_grace_period(tmp_path: Path) -> None:
    running = Running(tmp_path, *OPTIONS)
    try:
        running.begin()
        with running.client() as client:
            job = '{"name": "forks", "run": "setsid sleep 600 & exit 0", "grace_period": "0.2s"}'
            found = client.submit(job)["id"]
            until(lambda: client.describe(found)["state"] == "COMPLETED", 20, "the job is completed")
        assert running.processes() == []
    finally:
        running.end()
