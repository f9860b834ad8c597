"""The table of jobs that have ended and left the state: written with the log, asked when a caller asks."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Select, delete, func, insert, or_, select, update

from stretto.service.eventlog.database import ENDED_JOBS, LOG, USAGE, patiently

Result = TypeVar("Result")

USED_AT_ONCE = 5_000  # rows of usage that are read together; chosen: flat in memory
AT_ONCE = 500  # names in one statement; SQLite takes 32,766, older ones 999
ROWS = ENDED_JOBS.c
ARRAY_SUBMITTED = "ArraySubmitted"  # the kind of event that has the specification of an array


@dataclass(frozen=True, slots=True)
class UsedRow:
    """GPU time of a job that has left: one row of the table of usage. Times are Unix microseconds."""

    from_us: int
    until_us: int
    gpu_type: str
    queue: str
    use: str
    cause: str
    cause_name: str
    cause_user: str
    cause_queue: str
    gpu_us: int


@dataclass(frozen=True, slots=True)
class EndedJob:
    """One row, and those of the table of usage that are written with it."""

    number: int
    job: str
    owner: str
    name: str
    queue: str
    array: str
    key: str
    state: str
    ended_s: float
    body: str
    logs_deleted_s: float | None = None
    used: tuple[UsedRow, ...] = field(default=(), compare=False)  # only on the way into the table


@dataclass(frozen=True)
class EndedJobs:
    """Threads may share it. Every call raises StoreError where the database fails for good."""

    engine: Engine
    patience_s: float

    def of(self, names: Collection[str]) -> list[EndedJob]:
        """These jobs, as far as they are here."""
        return [
            row
            for some in _in_parts(sorted(set(names)))
            for row in self._rows(select(ENDED_JOBS).where(ROWS.job.in_(some)))
        ]

    def tasks_of(self, array: str) -> list[EndedJob]:
        """The tasks of an array, by submission."""
        return self._rows(
            select(ENDED_JOBS).where(ROWS.array == array, ROWS.array != "").order_by(ROWS.number)
        )

    def specs_of(self, arrays: Collection[str]) -> dict[str, dict[str, Any]]:
        """The specifications of arrays whose tasks share one, from the log."""
        specs: dict[str, dict[str, Any]] = {}
        for some in _in_parts(sorted(set(arrays))):
            query = select(LOG.c.subject, LOG.c.body)
            query = query.where(LOG.c.subject.in_(some), LOG.c.kind == ARRAY_SUBMITTED)
            rows = self._asked(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            specs |= {array: json.loads(body)["spec"] for array, body in rows}
        return specs

    def newest_named(self, owner: str, name: str) -> EndedJob | None:
        """The newest job of this user with this name."""
        query = select(ENDED_JOBS).where(ROWS.owner == owner, ROWS.name == name)
        return next(iter(self._rows(query.order_by(ROWS.number.desc()).limit(1))), None)

    def by_key(self, owner: str, key: str) -> EndedJob | None:
        """The job that this user has submitted with this key."""
        query = select(ENDED_JOBS).where(ROWS.owner == owner, ROWS.key == key, ROWS.key != "")
        return next(iter(self._rows(query.limit(1))), None)

    def owners_of(self, names: Collection[str]) -> dict[str, str]:
        """The users of these jobs, by job."""
        found: dict[str, str] = {}
        for some in _in_parts(sorted(set(names))):
            query = select(ROWS.job, ROWS.owner).where(ROWS.job.in_(some))
            found |= self._asked(lambda connection, query=query: dict(connection.execute(query).all()))  # type: ignore[misc]
        return found

    def page(
        self,
        limit: int,
        *,
        after: int | None = None,
        newest_first: bool = False,
        owner: str | None = None,
        queue: str | None = None,
        states: Collection[str] = (),
    ) -> list[EndedJob]:
        """At most so many jobs by submission behind a number, or before it with the newest first."""
        query = select(ENDED_JOBS).limit(limit)
        query = query.order_by(ROWS.number.desc() if newest_first else ROWS.number)
        if after is not None:
            query = query.where(ROWS.number < after if newest_first else ROWS.number > after)
        wanted: list[ColumnElement[bool]] = []
        wanted += [ROWS.owner == owner] if owner is not None else []
        wanted += [ROWS.queue == queue] if queue is not None else []
        wanted += [ROWS.state.in_(sorted(states))] if states else []
        return self._rows(query.where(*wanted))

    def count(self) -> int:
        """How many there are."""
        return self._asked(lambda connection: int(connection.scalar(select(func.count(ROWS.number))) or 0))

    def add(self, rows: Sequence[EndedJob]) -> None:
        """Add these, as `written` does."""
        self._asked(lambda connection: written(connection, rows), writes=True)

    def drop(self, names: Collection[str]) -> None:
        """Forget these jobs."""
        for some in _in_parts(sorted(set(names))):
            for table in (ENDED_JOBS, USAGE):
                statement = delete(table).where(table.c.job.in_(some))
                self._asked(lambda connection, said=statement: connection.execute(said), writes=True)  # type: ignore[misc]

    def clear(self) -> None:
        """Forget all."""
        for table in (ENDED_JOBS, USAGE):
            statement = delete(table)
            self._asked(lambda connection, said=statement: connection.execute(said), writes=True)  # type: ignore[misc]

    # ── usage ─────────────────────────────────────────────────────────────────────────────────────

    def used_total(self) -> tuple[int, int]:
        """How many rows of usage there are, and their GPU time in microseconds."""
        query = select(func.count(USAGE.c.number), func.sum(USAGE.c.gpu_us))

        def look(connection: Connection) -> tuple[int, int]:
            count, gpu_us = connection.execute(query).one()
            return int(count), int(gpu_us or 0)

        return self._asked(look)

    def used_first_us(self) -> int | None:
        """When the first of it begins; None for none."""
        query = select(func.min(USAGE.c.from_us))

        def look(connection: Connection) -> int | None:
            first = connection.scalar(query)
            return None if first is None else int(first)

        return self._asked(look)

    def used(self, from_us: int | None, until_us: int | None) -> Iterator[tuple[int, str, str, UsedRow]]:
        """(number, job, owner, row) of all rows that touch a time, job by job."""
        query = select(USAGE).order_by(USAGE.c.number, USAGE.c.place).limit(USED_AT_ONCE)
        if from_us is not None:
            query = query.where(USAGE.c.until_us > from_us)
        if until_us is not None:
            query = query.where(USAGE.c.from_us < until_us)
        number, place = -1, -1
        while True:
            behind = or_(USAGE.c.number > number, (USAGE.c.number == number) & (USAGE.c.place > place))
            batch = query.where(behind)
            rows = self._asked(lambda connection, batch=batch: connection.execute(batch).all())  # type: ignore[misc]
            for row in rows:
                number, place, job, owner, *rest = row
                yield number, job, owner, UsedRow(*rest)
            if len(rows) < USED_AT_ONCE:
                return

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────

    def with_logs(
        self, before_s: float, after: tuple[float, int], limit: int
    ) -> list[tuple[float, int, str]]:
        """(end, number, job) of the next whose logs have not been deleted, of those that ended before."""
        ended_s, number = after
        query = (
            select(ROWS.ended_s, ROWS.number, ROWS.job)
            .where(ROWS.logs_deleted_s.is_(None), ROWS.ended_s < before_s, ROWS.ended_s >= ended_s)
            .where(or_(ROWS.ended_s > ended_s, ROWS.number > number))
            .order_by(ROWS.ended_s, ROWS.number)
            .limit(limit)
        )
        return self._asked(lambda connection: [tuple(row) for row in connection.execute(query)])

    def note_logs_deleted(self, names: Collection[str], at_s: float) -> None:
        """The logs of these jobs are gone."""
        for some in _in_parts(sorted(set(names))):
            statement = update(ENDED_JOBS).where(ROWS.job.in_(some)).values(logs_deleted_s=at_s)
            self._asked(lambda connection, said=statement: connection.execute(said), writes=True)  # type: ignore[misc]

    def _rows(self, query: Select[tuple[object, ...]]) -> list[EndedJob]:
        rows = self._asked(lambda connection: connection.execute(query).all())
        return [EndedJob(**row._mapping) for row in rows]

    def _asked(self, work: Callable[[Connection], Result], writes: bool = False) -> Result:
        return patiently(self.engine, work, writes=writes, patience_s=self.patience_s)


def written(connection: Connection, rows: Sequence[EndedJob]) -> None:
    """Write rows in the transaction of a connection; what was there of the same jobs is replaced."""
    for some in _in_parts(rows):
        numbers = [row.number for row in some]
        for table in (ENDED_JOBS, USAGE):
            connection.execute(delete(table).where(table.c.number.in_(numbers)))
        connection.execute(insert(ENDED_JOBS), [_columns(row) for row in some])
        rows_of_usage = [
            {"number": row.number, "place": place, "job": row.job, "owner": row.owner, **asdict(used)}
            for row in some
            for place, used in enumerate(row.used)
        ]
        if rows_of_usage:
            connection.execute(insert(USAGE), rows_of_usage)


def _columns(row: EndedJob) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ROWS.keys()}  # noqa: SIM118  (columns are no mapping)


Part = TypeVar("Part")


def _in_parts(everything: Sequence[Part]) -> Iterator[Sequence[Part]]:
    for start in range(0, len(everything), AT_ONCE):
        yield everything[start : start + AT_ONCE]
