"""An API server that is away for longer than nodes may be silent costs no job an attempt."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.backends.kubernetes.control_plane import missing
from tests.conformance.service import StruckService
from tests.conformance.worlds.kubernetes import KubernetesWorld, begin

from stretto.backends.kubernetes.machines import SILENT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.kubernetes,
    pytest.mark.large,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

DEAD_AFTER_S = 5.0
AWAY_S = 30.0  # twice as long as it takes until what is known counts as stale
MANY = 100_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KubernetesWorld]:
    """Real servers, and nodes by the tests' agents."""
    found = begin(tmp_path / "cluster")
    assert isinstance(found, KubernetesWorld)
    try:
        yield found
    finally:
        asyncio.run(found.close())


@pytest.fixture
def service(world: KubernetesWorld, tmp_path: Path) -> Iterator[StruckService]:
    """A service over them, for which nodes may not be silent for long."""
    started = StruckService(world, tmp_path / "service", DEAD_AFTER_S)
    started.begin()
    try:
        yield started
    finally:
        started.end()


@contextmanager
def away(world: KubernetesWorld) -> Iterator[None]:
    """Within it there is no API server."""
    world.kill_api_server()
    try:
        yield
    finally:
        world.begin_api_server()
        world.plane.until_ready()


def test_jobs_train_on_while_the_api_server_is_away_and_are_none_the_worse_for_it(
    world: KubernetesWorld, service: StruckService
) -> None:
    beats = service.submit("beat", MANY, gpus=2)
    trains = service.submit("train", MANY, elastic={"min": 1, "max": 1})
    before = {job: service.until_works(job)["attempt"] for job in (beats, trains)}
    began = len(service.notes("began"))
    with away(world):
        waits = service.submit("sleep", 0.2)
        time.sleep(AWAY_S)
        counted = service.count(beats)
        assert {node["why"] for node in service.nodes().values()} == {SILENT}
    assert service.until_state(waits, "COMPLETED")["attempt"] == 1
    service.until(lambda: service.count(beats) > counted + 3, "it goes on")
    assert {job: service.shown(job)["attempt"] for job in before} == before
    assert len(service.notes("began")) == began + 1, "nobody has begun but who had waited"
    service.cancel_all()
    service.check()
    service.until(lambda: not service.left(), "nothing is left of any worker")
    assert service.running.differences()[1] == 0
