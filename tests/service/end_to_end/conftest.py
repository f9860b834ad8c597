"""Servers that tests of whole services share."""

import shutil
from collections.abc import Iterator

import pytest

from ..eventlog.servers import PostgreSQL, new_server


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server of the test's own."""
    running = new_server(pytest.skip)
    try:
        yield running
    finally:
        running.stop("immediate")
        shutil.rmtree(running.folder)
