"""A backup of a service as one file, and a service restored from one.

The file is a tar archive. It has the log as a SQLite database, whatever database that came from, the key of
workers' tokens, and the name on a shared cluster. `backup.json` says what the archive holds, with digests.
So a service also moves from SQLite to PostgreSQL and back. Uploads are in it unless that is not wanted.
Checkpoints and logs of jobs are not.
"""

import hashlib
import io
import json
import logging
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, insert, select
from sqlalchemy.exc import DBAPIError

from stretto import __version__
from stretto.errors import InputError
from stretto.service.backup_uploads import (
    NamedUploads,
    entries_in,
    pack_uploads,
    reading,
    unpack_upload,
    written,
)
from stretto.service.eventlog import LogDamaged, Store, StoreError, open_store
from stretto.service.eventlog.database import (
    METADATA,
    address_of,
    engine_of,
    line_of,
    migrate,
    newest_version,
    stored_version,
)
from stretto.service.uploads import UPLOADS

log = logging.getLogger(__name__)

DATABASE, MANIFEST = "stretto.db", "backup.json"
BESIDE = ("key", "name", "admin-token")  # files of the state directory that a restored service needs
FORM = 2  # of the archive; 1 had no uploads
AT_ONCE = 1_000  # rows; chosen: flat in memory
MOST_BESIDE = 1 << 16  # bytes of such a file, far more than any has; chosen
MOST_NAMED = 5  # jobs, in one line; chosen


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds."""

    form: int
    version: str  # of Stretto, that wrote it
    schema: str  # of the database
    unix_s: float  # when it was made
    events: int  # the number of the last event
    digests: dict[str, str]  # SHA-256 by file
    upload_files: int = 0  # beside these, which are named by their own SHA-256


def write_backup(state: Path, source: str, archive: Path, uploads: Path | None = None) -> Manifest:
    """Back a service up into a file, also while it runs; what was backed up.

    source: of the log: a path or a URL; "": in the state directory. uploads: where these are; None: without
    them. The log is read in one transaction, and each event is checked. A warning says which open jobs name
    uploads that are not there. Raises InputError, StoreError; nothing is left behind then.
    """
    if archive.exists():
        raise InputError(f"{archive}: is there already: expected a new file")
    if not source and not (state / DATABASE).is_file():
        raise InputError(f"--state {state}: expected the state directory of a service: it has no {DATABASE}")
    with _folder_beside(archive) as folder:
        with open_store(source or state / DATABASE, upgrade=False, begun=True) as store:
            _copy(store.engine, engine_of(address_of(folder / DATABASE)), store.name)
        named = NamedUploads()
        events = _checked(folder / DATABASE, named)
        for name in BESIDE:
            if (state / name).is_file():
                with reading(state / name):
                    content = (state / name).read_bytes()[:MOST_BESIDE]
                _write_private(folder / name, content)
        if not (folder / "key").exists():
            raise InputError(
                f"--state {state}: expected the file `key` there: without it no worker is adopted"
            )
        names = [DATABASE, *(name for name in BESIDE if (folder / name).exists())]
        digests = {name: _digest(folder / name) for name in names}
        manifest = Manifest(FORM, __version__, newest_version(), round(time.time(), 3), events, digests)
        return _pack(folder, names, manifest, archive, uploads, named)


def restore_backup(archive: Path, state: Path, target: str) -> Manifest:
    """Make the state directory of a service from a backup; what it holds.

    target: where the log goes: a path or a URL of a database without one; "": into the state directory.
    Raises InputError where something is there already, or the archive is not what was written.
    """
    if state.exists() and (not state.is_dir() or any(state.iterdir())):
        raise InputError(f"--state {state}: expected a directory that is empty or not there yet")
    with _folder_beside(state) as folder:
        try:
            manifest = _unpack(archive, folder)
        except OSError as wrong:
            file = state / Path(wrong.filename or folder).relative_to(folder)  # where it was to be in the end
            raise InputError(f"{file}: cannot be written: {wrong.strerror}") from None
        try:
            _checked(folder / DATABASE, NamedUploads())
        except LogDamaged as damaged:
            raise InputError(f"{archive}: {damaged}") from None
        if target:
            _fill(target, folder / DATABASE)
            (folder / DATABASE).unlink()
        if state.exists():
            state.rmdir()
        folder.rename(state)
    return manifest


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A folder on the same file system that is for its owner alone, and gone afterwards unless moved."""
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.absolute().parent))
    except OSError as wrong:
        raise InputError(f"{path}: cannot be written: {wrong.strerror}") from None
    try:
        yield folder
    except OSError as wrong:
        raise InputError(f"{path}: cannot be written: {wrong.strerror}") from None
    finally:
        if folder.exists():
            shutil.rmtree(folder)


# ── the log, from one database to another ─────────────────────────────────────────────────────────────


def _copy(source: Engine, target: Engine, name: str) -> None:
    """All tables as they stand at one moment. Raises StoreError."""
    isolated = (
        source.execution_options(isolation_level="REPEATABLE READ") if _is_postgresql(source) else source
    )
    try:
        with isolated.connect() as reading, reading.begin():
            if (version := stored_version(reading)) != newest_version():
                raise InputError(
                    f"{name}: expected a schema of version {newest_version()}, got {version}: start this "
                    "version on it once, or back it up with the version that wrote it"
                )
            with target.connect().execution_options(stretto_writes=True) as writing, writing.begin():
                migrate(writing, str(target.url.database))
                _copy_rows(reading, writing)
    except DBAPIError as failed:
        raise StoreError(f"{name}: {line_of(failed)}") from None
    finally:
        target.dispose()


def _copy_rows(reading: Connection, writing: Connection) -> None:
    for table in METADATA.sorted_tables:
        ordered = select(table).order_by(*table.primary_key.columns)
        with reading.execution_options(yield_per=AT_ONCE).execute(ordered) as rows:
            for batch in rows.mappings().partitions(AT_ONCE):
                writing.execute(insert(table), [dict(row) for row in batch])


def _fill(target: str, database: Path) -> None:
    """Put the log into a database that has none. Raises InputError where it has one."""
    engine = engine_of(address_of(target))
    name = str(engine.url.database) if not _is_postgresql(engine) else str(engine.url)
    try:
        with engine.connect() as connection:
            is_there = stored_version(connection) is not None
    except DBAPIError as failed:
        raise StoreError(f"{name}: {line_of(failed)}") from None
    if is_there:
        raise InputError(f"{name}: has a log already: expected an empty database")
    _copy(engine_of(address_of(database)), engine, str(database))


def _is_postgresql(engine: Engine) -> bool:
    return engine.dialect.name == "postgresql"


def _checked(database: Path, named: NamedUploads) -> int:
    """The number of the last event, after each was held against its digest and `named` has seen it.

    Raises LogDamaged.
    """
    with closing(sqlite3.connect(database)) as connection:  # one file, without the files of a write-ahead log
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    with open_store(database, begun=True) as store:
        events = _last_verified(store, named)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return events


def _last_verified(store: Store, named: NamedUploads) -> int:
    last = 0
    for event in store.read(verify=True):
        named.take(event)
        last = event.seq
    return last


# ── the archive ───────────────────────────────────────────────────────────────────────────────────────


def _pack(
    folder: Path,
    names: list[str],
    manifest: Manifest,
    archive: Path,
    uploads: Path | None,
    named: NamedUploads,
) -> Manifest:
    """The archive appears whole or not at all, and is for its owner alone: it holds a key."""
    packed = folder / "archive"
    _write_private(packed, b"")
    with packed.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name in names:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = (folder / name).stat().st_size, 0o600
                with (folder / name).open("rb") as content:
                    tar.addfile(entry, content)
            if uploads is not None:
                count, lacking = 0, {*named.of_job.values()}
                for name in pack_uploads(tar, uploads, folder):
                    count += 1
                    lacking.discard(name)
                manifest = replace(manifest, upload_files=count)
                _warn_of([job for job, name in named.of_job.items() if name in lacking], uploads)
            text = json.dumps(asdict(manifest), indent=2).encode()
            entry = tarfile.TarInfo(MANIFEST)
            entry.size, entry.mode = len(text), 0o600
            tar.addfile(entry, io.BytesIO(text))
        file.flush()
        os.fsync(file.fileno())
    os.link(packed, archive)  # which fails where a file has come there meanwhile
    return manifest


def _warn_of(jobs: list[str], uploads: Path) -> None:
    """Say which jobs will not start where this is restored."""
    if jobs:
        more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
        named = f"job{'s' * (len(jobs) > 1)} {', '.join(jobs[:MOST_NAMED])}{more}"
        log.warning(
            "the backup lacks the uploads of %s: %s has them not: expected --uploads as of `stretto serve`",
            named,
            uploads,
        )


def _unpack(archive: Path, folder: Path) -> Manifest:
    """Put the files of an archive into a folder, each held against its digest.

    Raises InputError for the archive, OSError where it cannot write.
    """
    try:
        manifest = _manifest_in(archive)
        missing, uploads = dict(manifest.digests), 0
        for entry, content in entries_in(archive):
            if entry.name.startswith(f"{UPLOADS}/"):
                unpack_upload(archive, entry, content, folder)
                uploads += 1
            elif entry.name in missing:
                if entry.name not in (DATABASE, *BESIDE):
                    raise InputError(f"{archive}: expected no {entry.name!r} in a backup")
                if written(folder / entry.name, content) != missing.pop(entry.name):
                    raise InputError(f"{archive}: {entry.name} is not what was written")
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
        if uploads != manifest.upload_files:
            raise ValueError(f"it has {uploads} files of uploads, and not {manifest.upload_files}")
    except (tarfile.TarError, KeyError, TypeError, ValueError, EOFError) as wrong:
        raise InputError(f"{archive}: expected a backup of stretto: {wrong}") from None
    return manifest


def _manifest_in(archive: Path) -> Manifest:
    """What the archive says of itself, at its end."""
    text = b""
    for entry, content in entries_in(archive):
        if entry.name == MANIFEST:
            text = b"".join(content)
    fields: dict[str, Any] = json.loads(text)
    manifest = Manifest(**fields)
    if not 1 <= manifest.form <= FORM or manifest.schema > newest_version():
        raise InputError(f"{archive}: is of Stretto {manifest.version}: expected one that this version knows")
    if DATABASE not in manifest.digests or "key" not in manifest.digests:
        raise ValueError("it has no log, or no key")
    return manifest


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _write_private(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened, suppress(BrokenPipeError):
        opened.write(content)
