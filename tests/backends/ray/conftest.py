"""The Ray cluster that these tests share with all others of the session."""

import importlib.util
from collections.abc import Iterator

import pytest
from tests.backends.ray.cluster import RayCluster, release, shared


@pytest.fixture(scope="session")
def cluster_of_all() -> Iterator[RayCluster]:
    """Begun when it is first asked for."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed; install stretto[ray]")
    found = shared()
    try:
        yield found
    finally:
        release()


@pytest.fixture
def cluster(cluster_of_all: RayCluster) -> Iterator[RayCluster]:
    """With all its nodes, whatever an earlier test has met; a test that loses one says so where it fails."""
    cluster_of_all.bring_back_lost_nodes()
    yield cluster_of_all
    cluster_of_all.bring_back_lost_nodes()
