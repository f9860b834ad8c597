"""The database of the log: tables, connections, its schema, and what can go wrong with a store.

The tables as queries see them. Migrations make them; they say the same in their own words.

StoreError        it cannot be reached, read or written; the message says why
├── LogMoved      another process has written: what was to be written no longer follows on what was known
├── LedByOther    another service is the one writer
├── LeadLost      another service is, or may have been, the one writer since we were
└── LogDamaged    some of the log is missing, or is not what was written
"""

import os
import socket
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, InterfaceError, OperationalError

from stretto.errors import InputError, StrettoError


class StoreError(StrettoError):
    """The store did not do what was asked, and nothing of it was done."""


class LogMoved(StoreError):
    """The log does not end where the writer believed; nothing was written."""

    def __init__(self, after: int, last: int) -> None:
        super().__init__(f"the log ends at {last}, not at {after}: another service writes to it")
        self.after, self.last = after, last


class LeadLost(StoreError):
    """We are not the one writer any more: what we know may be out of date, and nothing may follow from it."""

    def __init__(self) -> None:
        super().__init__("another service leads now: this one has ended, and its jobs go on")


class LedByOther(StoreError):
    """Another service holds the lead; the message names it where that is known."""

    def __init__(self, store: object, holder: str) -> None:
        self.holder = who = holder or "another service"
        super().__init__(f"{store}: {who} writes to this store: end that one, or say --state or --store")


class LogDamaged(StoreError, InputError):
    """Some of the log is missing, or is not what was written. Nothing was done about it."""

    def __init__(self, store: object, what: str) -> None:
        super().__init__(
            f"{store}: the log is damaged: {what}: put its backup there, or say --begin-anew to go on without"
        )


# ── the database of the log: tables, connections, and its schema ────────────────────────────────────────────


METADATA = MetaData()

LOG = Table(
    "stretto_log",
    METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # the writer numbers, without gaps
    Column("at_s", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    # Not JSONB, which turns 1e2 into 100 and reorders keys: a fold must see what was written.
    Column("body", Text, nullable=False),
    Column("append", BigInteger, nullable=False),  # drawn for each append, to recognise its own rows
    Column("chain", LargeBinary),  # its digest over the one before; NULL of versions that had none
)

GAPS = Table(
    "stretto_gaps",  # events that are missing or damaged, and that the operator goes on without
    METADATA,
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
)

STATES = Table(
    "stretto_states",
    METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),  # the last event that is folded into it
    Column("state", LargeBinary, nullable=False),
)

ENDED_JOBS = Table(
    "stretto_ended_jobs",  # that have left the state; all but the last column follows from the log
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # in the order of submission
    Column("job", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("array", Text, nullable=False),  # "": it is no task of one
    Column("key", Text, nullable=False),  # of idempotency; "": none
    Column("state", Text, nullable=False),
    Column("ended_s", Double, nullable=False),
    Column("body", Text, nullable=False),  # what is shown of it, as JSON
    Column("logs_deleted_s", Double),  # when that was; NULL: not yet
)

USAGE = Table(
    "stretto_usage",  # GPU time of these jobs, which follows from the log, too; times are Unix microseconds
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # of the job
    Column("place", BigInteger, primary_key=True, autoincrement=False),  # among the job's
    Column("job", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("from_us", BigInteger, nullable=False),
    Column("until_us", BigInteger, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("use", Text, nullable=False),
    Column("cause", Text, nullable=False),  # of lost time, and who is charged for it
    Column("cause_name", Text, nullable=False),
    Column("cause_user", Text, nullable=False),
    Column("cause_queue", Text, nullable=False),
    Column("gpu_us", BigInteger, nullable=False),
)

SECRETS = Table(
    "stretto_secrets",  # values that users keep for their jobs; nothing in the log depends on them
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),  # by a key that is not in the database
    Column("set_unix_s", Double, nullable=False),
)

VERSION_TABLE = "stretto_schema"  # of its own, so that another program's migrations may share the database


# ── which process this is, as others that want the same store see it ────────────────────────────────────────


def this_service() -> str:
    """Process and host."""
    return f"stretto {os.getpid()} on {socket.gethostname()}"[:63]  # PostgreSQL cuts names there


# ── connections that make what is committed durable, and the patience to get new ones ───────────────────────


Result = TypeVar("Result")

SQLITE, POSTGRESQL = "sqlite", "postgresql"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0  # chosen: a restarted PostgreSQL answers within a second
BUSY_S = 5.0  # how long a statement waits for another writer before it is tried anew
CONNECT_S = 5  # PostgreSQL's client counts whole seconds
# States of PostgreSQL that pass: connections lost, server stopping or starting, too many clients, lock or
# serialisation conflicts. 23505, a number that is taken, is settled by looking again which event has it.
PASSING = ("08", "57P01", "57P02", "57P03", "53300", "55P03", "40001", "40P01", "23505")

# The server must notice a dead client, and drop its locks and transactions, before we give up waiting.
POSTGRESQL_SESSION = """
SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '15s'; SET statement_timeout = '120s';
SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
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
    message = str(error.orig)
    if isinstance(error, IntegrityError):
        return "UNIQUE" in message
    if "locked" in message or "starting up" in message:
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
    """The log holds people's commands and environments: no other user may read it."""
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


# ── bringing a database to the schema that this version knows ───────────────────────────────────────────────


CHAINED = "0003"  # from which on events have digests
MIGRATION_LOCK = 0x5354_5245_5454_4F00  # an advisory lock of PostgreSQL, held while the schema changes


def stored_version(connection: Connection) -> str | None:
    """The version of the schema; None where there is none yet."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def newest_version() -> str:
    """The version that the newest migration makes."""
    return str(_scripts().get_current_head())


def check_known(version: str | None, where: str) -> None:
    """Raise StoreError for a schema that a newer Stretto has made."""
    known = {script.revision for script in _scripts().walk_revisions()}
    if version is not None and version not in known:
        raise StoreError(
            f"{where}: expected a schema up to version {newest_version()}, got {version!r}: "
            "a newer Stretto has written to it"
        )


def migrate(connection: Connection, where: str) -> None:
    """Apply what is missing, within the transaction of the connection. One at a time, the first to come.

    Alembic's commands would want a script that makes the connection; we hand it ours.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    check_known(stored_version(connection), where)
    scripts = _scripts()
    environment = EnvironmentContext(
        Config(),
        scripts,
        fn=lambda revision, _: scripts._upgrade_revs("head", revision),  # as alembic's own `upgrade` does
    )
    with environment:
        environment.configure(connection, target_metadata=METADATA, version_table=VERSION_TABLE)
        environment.run_migrations()


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent / "migrations"))
