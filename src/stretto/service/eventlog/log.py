"""The log of events: appended to in one place, in one order, and read from anywhere.

Events before and after they have their number.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, delete, func, insert, null, select

from stretto.errors import InputError
from stretto.service.eventlog.continuity import (
    Follows,
    Gap,
    Reached,
    Row,
    chained,
    check_whole,
    damage_in,
    gaps_of,
    go_on_without,
)
from stretto.service.eventlog.database import (
    CHAINED,
    LOG,
    SQLITE,
    STATES,
    LogDamaged,
    LogMoved,
    StoreError,
    address_of,
    check_known,
    engine_of,
    migrate,
    newest_version,
    patiently,
    stored_version,
)
from stretto.service.eventlog.ended_jobs import EndedJob, EndedJobs, written
from stretto.service.eventlog.leader_lock import Lead, lead_by_connection, lead_by_file
from stretto.service.eventlog.secret_table import SecretTable

UNFIT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
LONGEST_KIND, LONGEST_SUBJECT = 64, 255


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """An event that is to be appended; its body is turned into JSON here, once. Raises InputError."""

    at_s: float
    kind: str
    subject: str
    body: Mapping[str, Any]
    text: str = field(init=False, repr=False, compare=False)  # the body as it is stored

    def __post_init__(self) -> None:
        """Check what columns cannot hold, and write the body as JSON."""
        if not isfinite(self.at_s):
            raise InputError(f"at_s of an event must be finite, got {self.at_s}")
        for name, value, longest in (
            ("kind", self.kind, LONGEST_KIND),
            ("subject", self.subject, LONGEST_SUBJECT),
        ):
            if len(value) > longest or UNFIT.search(value):
                raise InputError(
                    f"{name} of an event must be a line of at most {longest} characters, got {value[:80]!r}"
                )
        try:
            text = json.dumps(self.body, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"body of event {self.kind!r} must be JSON: {error}") from None
        object.__setattr__(self, "text", text)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of the log."""

    seq: int  # from 1, without gaps
    at_s: float
    kind: str
    subject: str
    body: dict[str, Any]


def recorded(events: Sequence[Unrecorded], after: int) -> tuple[Recorded, ...]:
    """The events as a later reader will see them: numbered, and lists where there were tuples."""
    return tuple(
        Recorded(seq, float(event.at_s), event.kind, event.subject, json.loads(event.text))
        for seq, event in enumerate(events, start=after + 1)
    )


# ── the log: appended to in one place, in one order, and read from anywhere ─────────────────────────────────


Result = TypeVar("Result")

READ_AT_ONCE = 2_000  # rows; chosen: flat in memory, and few round trips
STATES_KEPT = 3
PATIENCE_S = 30.0  # chosen: longer than a restart of PostgreSQL, shorter than a worker's patience


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state as it was kept: what folding all events up to `seq` gave."""

    seq: int
    state: bytes


@dataclass(slots=True)
class Tip:
    """The last event that was appended here."""

    seq: int = 0
    chain: bytes = b""


@dataclass(frozen=True)
class Store:
    """An open log. Threads may share it. Every call raises StoreError where the database fails for good."""

    engine: Engine
    patience_s: float = PATIENCE_S  # how long a lost database is waited for
    has_chain: bool = True  # a log of an older version, which a mere reader leaves as it is, has none
    tip: Tip = field(default_factory=Tip)  # of what this store has appended

    @property
    def name(self) -> str:
        """What messages call it: where it is, without a password."""
        url = self.engine.url
        return str(url.database) if url.get_backend_name() == SQLITE else str(url)

    @property
    def ended(self) -> EndedJobs:
        """The jobs that have left the state."""
        return EndedJobs(self.engine, self.patience_s)

    @property
    def secrets(self) -> SecretTable:
        """What users keep for their jobs, sealed."""
        return SecretTable(self.engine, self.patience_s)

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
        rows: list[dict[str, Any]] = [
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

        def write(connection: Connection) -> bytes:
            last = _last(connection)
            chain = self._chain_onto(connection, after, rows)
            if last == after:
                connection.execute(insert(LOG), rows)
                written(connection, ended)
            elif connection.scalar(select(LOG.c.append).where(LOG.c.seq == after + 1)) != drawn:
                raise LogMoved(after, last)
            return chain

        chain = patiently(self.engine, write, writes=True, patience_s=self.patience_s)
        numbers = tuple(range(after + 1, after + 1 + len(events)))
        self.tip.seq, self.tip.chain = numbers[-1], chain
        return numbers

    def _chain_onto(self, connection: Connection, after: int, rows: Sequence[dict[str, Any]]) -> bytes:
        """Give rows their digests; that of the last. An older schema has no place for them."""
        if not self.has_chain:
            return b""
        chain = bytes(connection.scalar(select(LOG.c.chain).where(LOG.c.seq == after)) or b"")
        for row in rows:
            columns = (row["seq"], row["at_s"], row["kind"], row["subject"], row["body"])
            chain = row["chain"] = chained(chain, *columns)
        return chain

    def last(self) -> int:
        """The number of the last event; 0 for an empty log."""
        return patiently(self.engine, _last, patience_s=self.patience_s)

    def read(
        self,
        after: int = 0,
        kinds: Collection[str] | None = None,
        subjects: Collection[str] | None = None,
        limit: int | None = None,
        up_to: int | None = None,
        verify: bool = False,
    ) -> Iterator[Recorded]:
        """Events behind `after`, in order: of these kinds, about these subjects, so many, up to a number.

        Batch by batch: a reader holds neither a lock nor much memory, and sees what is appended meanwhile.
        What was given up is left out. Raises LogDamaged for what cannot be read. It does so for a missing
        event where all are asked for. To `verify`, it does so for one that is not what was written.
        """
        all_are_asked = kinds is None and subjects is None
        gaps = self.gaps()
        follows = Follows(after, self.chain_of(after) if verify else None)
        for row in self._rows(after, kinds, subjects, limit, up_to):
            seq, at_s, kind, about, body, _ = row
            missing = follows.gap_before(row) if all_are_asked else None
            if missing and not any(gap.covers(missing) for gap in gaps):
                raise LogDamaged(self.name, f"{missing.words} missing")
            is_left_out = any(gap.first <= seq <= gap.last for gap in gaps)
            if verify and all_are_asked and not is_left_out and not follows.fits(row):
                raise LogDamaged(self.name, f"event {seq} is not what was written")
            follows.take(row)
            if not is_left_out:
                yield Recorded(seq, at_s, kind, about, self._object(seq, body))

    def _rows(
        self,
        after: int = 0,
        kinds: Collection[str] | None = None,
        subjects: Collection[str] | None = None,
        limit: int | None = None,
        up_to: int | None = None,
    ) -> Iterator[Row]:
        chain = LOG.c.chain if self.has_chain else null()
        query = select(LOG.c.seq, LOG.c.at_s, LOG.c.kind, LOG.c.subject, LOG.c.body, chain)
        query = query.order_by(LOG.c.seq)
        if kinds is not None:
            query = query.where(LOG.c.kind.in_(sorted(set(kinds))))
        if subjects is not None:
            query = query.where(LOG.c.subject.in_(sorted(set(subjects))))
        if up_to is not None:
            query = query.where(LOG.c.seq <= up_to)
        while limit is None or limit > 0:
            most = READ_AT_ONCE if limit is None else min(limit, READ_AT_ONCE)
            batch = query.where(LOG.c.seq > after).limit(most)
            rows = patiently(
                self.engine,
                lambda connection, batch=batch: connection.execute(batch).all(),  # type: ignore[misc]
                patience_s=self.patience_s,
            )
            yield from (tuple(row) for row in rows)
            if len(rows) < most:
                return
            after = rows[-1].seq
            limit = None if limit is None else limit - len(rows)

    def chain_of(self, seq: int) -> bytes | None:
        """The digest of an event, b"" before the first; None where there is none to be believed."""
        if not self.has_chain:
            return None
        query = select(LOG.c.chain).where(LOG.c.seq == seq)
        row = patiently(
            self.engine, lambda connection: connection.execute(query).first(), patience_s=self.patience_s
        )
        return b"" if seq == 0 else None if row is None else bytes(row.chain or b"")

    def _object(self, seq: int, body: str) -> dict[str, Any]:
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise LogDamaged(self.name, f"the body of event {seq} is no JSON object")
        return found

    # ── what was lost ─────────────────────────────────────────────────────────────────────────────

    def check_whole(self, reached: Reached | None) -> None:
        """Raise LogDamaged where events are missing, or the log does not come as far as it had come.

        Quick: it counts. Whether an event is what was written is seen when it is read.
        """
        self._asked(lambda connection: check_whole(connection, self.name, reached))

    def damage(self) -> list[Gap]:
        """What is missing, cannot be read, or is not what was written; reads everything."""
        return damage_in(self._rows())

    def gaps(self) -> list[Gap]:
        """What the operator has decided to go on without."""
        return self._asked(gaps_of) if self.has_chain else []

    def go_on_without(self, gaps: Sequence[Gap]) -> None:
        """Leave these events out from now on, and forget states that were kept of a longer log."""
        self._asked(lambda connection: go_on_without(connection, gaps), writes=True)

    def _asked(self, work: Callable[[Connection], Result], writes: bool = False) -> Result:
        return patiently(self.engine, work, writes=writes, patience_s=self.patience_s)

    # ── states ────────────────────────────────────────────────────────────────────────────────────

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


def open_store(
    source: str | Path, *, upgrade: bool = True, begun: bool = False, patience_s: float = PATIENCE_S
) -> Store:
    """The store in a SQLite file, or at a URL of sqlite or postgresql, with its schema brought up to date.

    upgrade: if not, the schema stays as it is, so that a mere reader leaves a running service alone. An older
    schema has the log as well, and where there is none, that is refused. begun: there has been a log there.
    Raises InputError for an address that cannot be one. Raises StoreError for what cannot be opened, and
    LogDamaged for a log that has begun and is gone.
    """
    url = address_of(source)
    if begun and url.get_backend_name() == SQLITE and not Path(str(url.database)).exists():
        raise LogDamaged(url.database, "it is gone")
    engine = engine_of(url)
    try:
        version = patiently(engine, stored_version, patience_s=patience_s, connects=False)
        if begun and version is None:
            raise LogDamaged(engine.url.database, "it is gone")
        version = _brought_up(engine, str(url), version, upgrade, patience_s)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine, patience_s, has_chain=version >= CHAINED)


def _brought_up(engine: Engine, where: str, version: str | None, upgrade: bool, patience_s: float) -> str:
    """The version of the schema that there is now."""
    check_known(version, where)
    if version is not None and (version == newest_version() or not upgrade):
        return version
    if not upgrade:
        raise StoreError(f"{where}: expected a schema of version {newest_version()}, got none")
    patiently(
        engine,
        lambda connection: migrate(connection, where),
        writes=True,
        patience_s=patience_s,
        connects=False,
    )
    return newest_version()


def _last(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(LOG.c.seq))) or 0)
