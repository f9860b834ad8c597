"""Fixtures of the suite, and the hook that runs its coroutines; the author adds a fixture `cluster`."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.testing.backends.connection import Connection
from stretto.testing.backends.stage import Stage
from stretto.testing.backends.world import World

LONGEST_S = 300.0  # that a test may take which is not long


@pytest.fixture(scope="session")
def open_cluster(cluster: World) -> Iterator[World]:
    """The cluster, which is closed after the last test."""
    yield cluster
    asyncio.run(cluster.close())


@pytest.fixture
def world(request: pytest.FixtureRequest, open_cluster: World) -> World:
    """The cluster, if this test applies to it."""
    name = request.function.__name__
    if name in open_cluster.lacks:
        pytest.skip(open_cluster.lacks[name])
    return open_cluster


@pytest.fixture(scope="session")
def connection(open_cluster: World) -> Iterator[Connection]:
    """One connection for all tests over a cluster that do not ask for another."""
    connection = Connection(open_cluster)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def stage(world: World, connection: Connection, tmp_path: Path) -> Stage:
    """Workers over the connection; open while the test runs."""
    return Stage(connection, tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in the loop of its stage's connection, the stage open meanwhile."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    (stage,) = (value for value in arguments.values() if isinstance(value, Stage))

    async def run() -> None:
        async with asyncio.timeout(LONGEST_S), stage:
            await pyfuncitem.obj(**arguments)

    stage.connection.run(run())
    return True
