"""Connections that make what is committed durable, and the patience to get new ones."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError

from stretto.live.store.errors import StoreError
from stretto.live.store.presence import this_service
from stretto.model import InputError

Result = TypeVar("Result")

SQLITE, POSTGRESQL = "sqlite", "postgresql"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0  # chosen: a restarted PostgreSQL answers within a second
BUSY_S = 5.0  # how long a statement waits for another writer before it is tried anew
CONNECT_S = 5  # PostgreSQL's client counts whole seconds
# States of PostgreSQL that pass: connections lost, server stopping or starting, too many clients, lock or
# serialisation conflicts. 23505, a number that is taken, is settled by looking again who has it.
PASSING = ("08", "57P01", "57P02", "57P03", "53300", "55P03", "40001", "40P01", "23505")

# The server must notice a dead client, and drop its locks and transactions, before we give up waiting.
POSTGRESQL_SESSION = """
SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '15s'; SET statement_timeout = '120s';
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""


def address_of(source: str | Path) -> URL:
    """The URL of a store: a path is a SQLite file. Raises InputError for what we do not speak."""
    if isinstance(source, Path) or "://" not in source:
        return URL.create(SQLITE, database=str(Path(source).absolute()))
    try:
        url = make_url(source)
    except (ArgumentError, ValueError):
        raise InputError("a store must be a path or a URL, got one that cannot be read") from None
    name = url.get_backend_name()
    if name == SQLITE:
        if url.database in {None, "", ":memory:"} or url.query:
            raise InputError(f"a SQLite store must be a plain file, got {url}")
        return URL.create(SQLITE, database=str(Path(str(url.database)).absolute()))
    if name not in {POSTGRESQL, "postgres"}:
        raise InputError(f"a store must be a path, or a URL of sqlite or postgresql, got {name!r}")
    return url.set(drivername="postgresql+psycopg")


def engine_of(url: URL) -> Engine:
    """An engine for the address. Connects to nothing yet, but makes SQLite's file, for its owner only."""
    if url.get_backend_name() == SQLITE:
        _make_file(Path(str(url.database)))
        engine = create_engine(url, connect_args={"timeout": BUSY_S})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    arguments = {"connect_timeout": CONNECT_S, "application_name": this_service(), "tcp_user_timeout": 15_000}
    arguments |= {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    try:
        engine = create_engine(url, connect_args=arguments, pool_size=5, max_overflow=10)
    except ModuleNotFoundError as error:
        raise InputError(f"{url} needs {error.name}: pip install 'stretto[postgres]'") from None
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def patiently(
    engine: Engine,
    work: Callable[[Connection], Result],
    *,
    writes: bool = False,
    patience_s: float,
    connects: bool = True,
) -> Result:
    """What `work` returns, in a transaction of its own that is committed; again after what passes.

    `work` must bear being done twice: the answer to its commit may have been lost. connects: whether a server
    that cannot be reached is waited for. Raises StoreError for what does not pass within `patience_s`.
    """
    until_s = time.monotonic() + patience_s
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            with engine.connect() as connection:
                connection = connection.execution_options(stretto_writes=writes)
                with connection.begin():
                    return work(connection)
        except (DBAPIError, OSError) as error:
            if not _passes(error, connects) or time.monotonic() + pause_s > until_s:
                raise StoreError(f"{engine.url}: {line_of(error)}") from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _passes(error: DBAPIError | OSError, connects: bool) -> bool:
    if isinstance(error, OSError):
        return connects
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated:
        return True
    if state is not None:
        return str(state).startswith(PASSING)
    said = str(error.orig)
    if isinstance(error, IntegrityError):
        return "UNIQUE" in said
    if "locked" in said or "starting up" in said:
        return isinstance(error, OperationalError)
    # psycopg gives no state where no connection came about
    return (
        connects
        and "psycopg" in type(error.orig).__module__
        and isinstance(error, OperationalError | InterfaceError)
    )


def line_of(error: DBAPIError | OSError) -> str:
    """What went wrong, on one line."""
    cause: object = error.orig if isinstance(error, DBAPIError) else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__


def _make_file(path: Path) -> None:
    """The log holds people's commands and environments: nobody else may read it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error.strerror}") from None


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves: the driver would leave reads and DDL outside
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL would lose the last commits with the power
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError("SQLite refuses write-ahead logging here: is the file on a network file system?")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its turn at once: one that has read first could not become a writer any more.
    writes = connection.get_execution_options().get("stretto_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgresql(connection: Any, _: object) -> None:
    connection.execute(POSTGRESQL_SESSION)
    connection.commit()
