"""Fixtures of the suite; the author adds a fixture `cluster`."""

from collections.abc import Iterator

import pytest

from stretto.testing.backends.plugin import open_cluster, world
from stretto.testing.services.fixture import ServiceFixture
from stretto.testing.services.world import ServiceWorld

__all__ = ["only_service", "open_cluster", "service", "world"]  # the fixtures


@pytest.fixture(scope="session")
def only_service(open_cluster: ServiceWorld) -> Iterator[ServiceFixture]:
    """One service over a cluster, for all tests; its folder lies in that of the cluster."""
    service = ServiceFixture(open_cluster, open_cluster.folder / "service")
    service.begin()
    try:
        yield service
    finally:
        service.end()


@pytest.fixture
def service(world: ServiceWorld, only_service: ServiceFixture) -> Iterator[ServiceFixture]:
    """The service, without jobs before and after."""
    yield only_service
    only_service.cancel_all()
    only_service.check()
    only_service.until(lambda: not only_service.left(), "nothing is left of any worker")
