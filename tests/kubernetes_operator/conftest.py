"""Tests that are coroutines have a loop of their own. Those on real API servers share a service."""

from collections.abc import Iterator

import pytest
from tests.coroutines import pytest_pyfunc_call
from tests.service.running import Running

from .installation import token_from

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that an operator follows, with two places for workers."""
    running = Running(
        tmp_path_factory.mktemp("service"), *("--slots", "2", "--gpu-type", "cpu", "--policy", "cornucopia")
    )
    try:
        running.begin()
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def token(service: Running) -> str:
    """What the operator shows it."""
    return token_from(service)
