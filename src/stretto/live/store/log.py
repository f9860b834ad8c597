"""The log: appended to in one place, in one order, and read from anywhere."""

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from sqlalchemy import Connection, Engine, delete, func, insert, select

from stretto.live.store.ended import EndedJob, EndedJobs, written
from stretto.live.store.engine import SQLITE, address_of, engine_of, patiently
from stretto.live.store.errors import LogMoved, StoreError
from stretto.live.store.events import Recorded, Unrecorded
from stretto.live.store.lead import Lead, lead_by_connection, lead_by_file
from stretto.live.store.schema import check_known, migrate, newest_version, stored_version
from stretto.live.store.tables import LOG, STATES
from stretto.model import InputError

READ_AT_ONCE = 2_000  # rows; chosen: flat in memory, and few round trips
STATES_KEPT = 3
PATIENCE_S = 30.0  # chosen: longer than a restart of PostgreSQL, shorter than a worker's patience


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state as it was kept: what folding all events up to `seq` gave."""

    seq: int
    state: bytes


@dataclass(frozen=True)
class Store:
    """An open log. Threads may share it. Every call raises StoreError where the database fails for good."""

    engine: Engine
    patience_s: float = PATIENCE_S  # how long a lost database is waited for

    @property
    def ended(self) -> EndedJobs:
        """The jobs that have left the state."""
        return EndedJobs(self.engine, self.patience_s)

    def append(
        self, events: Sequence[Unrecorded], after: int, ended: Sequence[EndedJob] = ()
    ) -> tuple[int, ...]:
        """The numbers of the events, all or none of which are in the log, durably, when this returns.

        ended: rows that are written together with them, or not at all.
        Raises LogMoved, and writes nothing, unless the log ends at `after`. Never writes twice: numbers are
        unique, and where an answer was lost, the rows that are there are recognised by what this call drew.
        After a StoreError of a lost connection the events may or may not be there; read before going on.
        """
        if not events:
            return ()
        drawn = secrets.randbits(63)
        rows = [
            {
                "seq": seq,
                "at_s": float(event.at_s),
                "kind": event.kind,
                "subject": event.subject,
                "body": event.text,
                "append": drawn,
            }
            for seq, event in enumerate(events, start=after + 1)
        ]

        def write(connection: Connection) -> None:
            last = _last(connection)
            if last == after:
                connection.execute(insert(LOG), rows)
                written(connection, ended)
            elif connection.scalar(select(LOG.c.append).where(LOG.c.seq == after + 1)) != drawn:
                raise LogMoved(after, last)

        patiently(self.engine, write, writes=True, patience_s=self.patience_s)
        return tuple(range(after + 1, after + 1 + len(events)))

    def last(self) -> int:
        """The number of the last event; 0 for an empty log."""
        return patiently(self.engine, _last, patience_s=self.patience_s)

    def read(
        self,
        after: int = 0,
        kinds: Collection[str] | None = None,
        subjects: Collection[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Recorded]:
        """Events behind `after`, in order: of these kinds, about these subjects, at most so many.

        Batch by batch: a reader holds neither a lock nor much memory, and sees what is appended meanwhile.
        """
        query = select(LOG.c.seq, LOG.c.at_s, LOG.c.kind, LOG.c.subject, LOG.c.body).order_by(LOG.c.seq)
        if kinds is not None:
            query = query.where(LOG.c.kind.in_(sorted(set(kinds))))
        if subjects is not None:
            query = query.where(LOG.c.subject.in_(sorted(set(subjects))))
        while limit is None or limit > 0:
            most = READ_AT_ONCE if limit is None else min(limit, READ_AT_ONCE)
            batch = query.where(LOG.c.seq > after).limit(most)
            rows = patiently(
                self.engine,
                lambda connection, batch=batch: connection.execute(batch).all(),  # type: ignore[misc]
                patience_s=self.patience_s,
            )
            for seq, at_s, kind, about, body in rows:
                yield Recorded(seq, at_s, kind, about, json.loads(body))
            if len(rows) < most:
                return
            after = rows[-1].seq
            limit = None if limit is None else limit - len(rows)

    def keep_state(self, seq: int, state: bytes) -> None:
        """Keep what folding up to `seq` gave; older states but the newest few are forgotten."""

        def write(connection: Connection) -> None:
            last = _last(connection)
            if not 0 <= seq <= last:
                raise InputError(f"a state must be of an event from 0 to {last}, got seq={seq}")
            connection.execute(delete(STATES).where(STATES.c.seq == seq))
            connection.execute(insert(STATES), [{"seq": seq, "state": state}])
            kept = select(STATES.c.seq).order_by(STATES.c.seq.desc()).limit(STATES_KEPT)
            connection.execute(delete(STATES).where(STATES.c.seq.not_in(kept)))

        patiently(self.engine, write, writes=True, patience_s=self.patience_s)

    def newest_state(self, up_to: int | None = None) -> StoredState | None:
        """The newest kept state, of no event later than `up_to`; None where there is none."""
        query = select(STATES.c.seq, STATES.c.state).order_by(STATES.c.seq.desc()).limit(1)
        if up_to is not None:
            query = query.where(STATES.c.seq <= up_to)
        row = patiently(
            self.engine, lambda connection: connection.execute(query).first(), patience_s=self.patience_s
        )
        return None if row is None else StoredState(row.seq, bytes(row.state))

    def lead(self, wait_s: float = 0.0) -> Lead:
        """The right to be the one writer, until it is released or this process ends.

        Raises LedByOther where another service has it, and still has it after `wait_s`.
        """
        if self.engine.url.get_backend_name() == SQLITE:
            return lead_by_file(Path(f"{self.engine.url.database}.lock"), wait_s)
        return lead_by_connection(self.engine, wait_s)

    def close(self) -> None:
        """Give the connections back. A lead must be released by itself."""
        self.engine.dispose()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_store(source: str | Path, *, upgrade: bool = True, patience_s: float = PATIENCE_S) -> Store:
    """The store in a SQLite file, or at a URL of sqlite or postgresql, with its schema brought up to date.

    upgrade: if not, the schema stays as it is, so that a mere reader leaves a running service alone; an older
    one has the log as well, and where there is none, that is refused.
    Raises InputError for an address that cannot be one, StoreError for what cannot be opened.
    """
    url = address_of(source)
    engine = engine_of(url)
    try:
        _bring_up(engine, str(url), upgrade, patience_s)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine, patience_s)


def _bring_up(engine: Engine, where: str, upgrade: bool, patience_s: float) -> None:
    version = patiently(engine, stored_version, patience_s=patience_s, connects=False)
    if version == newest_version():
        return
    check_known(version, where)
    if not upgrade:
        if version is None:
            raise StoreError(f"{where}: expected a schema of version {newest_version()}, got none")
        return
    patiently(
        engine,
        lambda connection: migrate(connection, where),
        writes=True,
        patience_s=patience_s,
        connects=False,
    )


def _last(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(LOG.c.seq))) or 0)
