"""Bringing a database to the schema that this version knows."""

from functools import cache
from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from stretto.live.store.errors import StoreError
from stretto.live.store.tables import METADATA, VERSION_TABLE

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
    """Apply what is missing, within the transaction of the connection. One at a time, whoever comes first.

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
