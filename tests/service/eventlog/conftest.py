"""Every test that asks for `source` runs over SQLite and over PostgreSQL."""

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from stretto.service.eventlog import Store, open_store

from .servers import PostgreSQL, new_server

NUMBERS = count()


@pytest.fixture(scope="session")
def server() -> Iterator[PostgreSQL]:
    """One server for all tests."""
    running = new_server(pytest.skip)
    try:
        yield running
    finally:
        running.stop("immediate")  # what it holds is thrown away
        shutil.rmtree(running.folder)


@pytest.fixture
def database(server: PostgreSQL) -> str:
    """The name of an empty database of the test's own."""
    import psycopg

    name = f"store{next(NUMBERS)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return name


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store may be."""
    if request.param == "sqlite":
        return str(tmp_path / "log.db")
    server: PostgreSQL = request.getfixturevalue("server")
    return server.url_of(request.getfixturevalue("database"))


@pytest.fixture
def store(source: str) -> Iterator[Store]:
    """An empty store."""
    with open_store(source) as opened:
        yield opened
