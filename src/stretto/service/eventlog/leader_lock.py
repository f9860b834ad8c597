"""One writer at a time: the right to write, as a lock that ends with its holder."""

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from stretto.service.eventlog.database import LedByOther, StoreError, line_of, this_service

LEAD_LOCK = 0x5354_5245  # first half of the key of an advisory lock; the second is of the schema's name
ASK_AGAIN_S = 0.1

TAKE = text("SELECT pg_try_advisory_lock(:lock, hashtext(current_schema()))")
GIVE_BACK = text("SELECT pg_advisory_unlock(:lock, hashtext(current_schema()))")
HELD = text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = :lock AND granted"
    " AND objid = hashtext(current_schema())::bit(32)::bigint AND pid = pg_backend_pid()"
)
HOLDER = text(
    "SELECT application_name, client_addr::text FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND classid = :lock AND granted"
    " AND objid = hashtext(current_schema())::bit(32)::bigint"
    " AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Standing(Enum):
    """What is known of a lead."""

    HELD = "held"  # ever since it was taken
    RETAKEN = "retaken"  # it was lost and has just been taken anew: another process may have led in between
    LOST = "lost"  # another process has it, or may
    UNKNOWN = "unknown"  # the server does not answer


class Lead(Protocol):
    """The right to be the one writer. Leaving the `with` block gives it back."""

    is_near: bool  # it can be asked without waiting for any other machine

    def standing(self) -> Standing:
        """What is known now; a lost one is retaken if no other process has it. One thread at a time."""

    def holds(self) -> bool:
        """Whether we have it now, though perhaps not all the time since it was taken."""

    def release(self) -> None:
        """Give it back; again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Released:
    """Leaving the block releases."""

    def standing(self) -> Standing:
        raise NotImplementedError

    def holds(self) -> bool:
        """Whether we have it now, though perhaps not all the time since it was taken."""
        return self.standing() in (Standing.HELD, Standing.RETAKEN)

    def release(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class FileLead(_Released):
    """A lock on a file beside the database. The file stays: one that is removed could be locked twice."""

    is_near = True

    def __init__(self, path: Path) -> None:
        """Raises LedByOther; StoreError where the file cannot be made."""
        self.path = path
        try:
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self.file, 256, 0).decode(errors="replace").strip()
            os.close(self.file)
            raise LedByOther(path, holder) from None
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, f"{this_service()}\n".encode(), 0)

    def standing(self) -> Standing:
        """Held as long as the locked file is the one that others would lock."""
        if self.file < 0:
            return Standing.LOST
        try:
            is_same = os.path.samestat(os.fstat(self.file), self.path.stat())
        except FileNotFoundError:
            return Standing.LOST
        except OSError:  # a disk that does not answer
            return Standing.UNKNOWN
        return Standing.HELD if is_same else Standing.LOST

    def release(self) -> None:
        """Unlock."""
        if self.file >= 0:
            os.ftruncate(self.file, 0)
            os.close(self.file)
            self.file = -1


class ConnectionLead(_Released):
    """An advisory lock of PostgreSQL on a connection that is kept for it alone."""

    is_near = False

    def __init__(self, engine: Engine) -> None:
        """Raises LedByOther; StoreError where the server does not answer."""
        self.engine = engine
        self.released = False
        self.connection: Connection | None = self._taken()

    def standing(self) -> Standing:
        """Whether the server counts us as the holder, if need be anew over a fresh connection."""
        if self.released:
            return Standing.LOST
        if self.connection is not None:
            try:
                if self.connection.scalar(HELD, {"lock": LEAD_LOCK}):
                    return Standing.HELD
            except DBAPIError:
                pass
            self._drop()
        try:
            self.connection = self._taken()
        except LedByOther:
            return Standing.LOST
        except StoreError:
            return Standing.UNKNOWN
        return Standing.RETAKEN

    def release(self) -> None:
        """Unlock, and close the connection: the server may be slow to notice that it is closed."""
        self.released = True
        if self.connection is not None:
            with suppress(DBAPIError):  # then the lock is gone already
                self.connection.execute(GIVE_BACK, {"lock": LEAD_LOCK})
        self._drop()

    def _drop(self) -> None:
        if self.connection is not None:
            self.connection.invalidate()  # never back into the pool: the lock belongs to the session
            self.connection.close()
            self.connection = None

    def _taken(self) -> Connection:
        try:
            return self._take()
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise StoreError(f"{self.engine.url}: {line_of(error)}") from error
        try:  # a connection of the pool had been ended while it lay there; all others are now dropped, too
            return self._take()
        except DBAPIError as error:
            raise StoreError(f"{self.engine.url}: {line_of(error)}") from error

    def _take(self) -> Connection:
        with ExitStack() as unless_taken:
            connection = unless_taken.enter_context(self.engine.connect())
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            if connection.scalar(TAKE, {"lock": LEAD_LOCK}):
                unless_taken.pop_all()
                return connection
            rows = connection.execute(HOLDER, {"lock": LEAD_LOCK}).all()
        who = ", ".join(f"{name or 'a service'} at {where or 'a socket'}" for name, where in rows)
        raise LedByOther(self.engine.url, who)


def lead_by_file(path: Path, wait_s: float) -> Lead:
    """The lead of a store in a file."""
    return _asked_again(lambda: FileLead(path), wait_s)


def lead_by_connection(engine: Engine, wait_s: float) -> Lead:
    """The lead of a store on a server."""
    return _asked_again(lambda: ConnectionLead(engine), wait_s)


def _asked_again(take: Callable[[], Lead], wait_s: float) -> Lead:
    until_s = time.monotonic() + wait_s
    while True:
        try:
            return take()
        except LedByOther:
            if time.monotonic() + ASK_AGAIN_S > until_s:
                raise
        time.sleep(ASK_AGAIN_S)
