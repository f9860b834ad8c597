"""Tests that are coroutines have a loop of their own. Those on real servers begin with these."""

from collections.abc import Iterator

import pytest
from tests.conformance.worlds.kubernetes import KubernetesWorld, until_closed
from tests.coroutines import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesWorld]:
    """Real servers, and nodes by the tests' agents."""
    with until_closed(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
