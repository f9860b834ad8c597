"""The Ray cluster that these tests share with all others of the session."""

import importlib.util
from collections.abc import Iterator

import pytest
from tests.backends.ray.cluster import RayCluster, release, shared


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """Begun when it is first asked for."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed; install stretto[ray]")
    found = shared()
    try:
        yield found
    finally:
        release()
