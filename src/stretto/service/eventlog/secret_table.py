"""The table of secrets: rows by owner and name, each with a value that is sealed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Select, delete, func, insert, select

from stretto.service.eventlog.database import SECRETS, patiently

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SecretRow:
    """One row."""

    owner: str
    name: str
    set_unix_s: float
    sealed: bytes = field(repr=False)


@dataclass(frozen=True)
class SecretTable:
    """Threads may share it. Every call raises StoreError where the database fails for good."""

    engine: Engine
    patience_s: float

    def put(self, row: SecretRow) -> None:
        """Write a row, in place of the one of this owner and name."""
        values = {
            "owner": row.owner,
            "name": row.name,
            "sealed": row.sealed,
            "set_unix_s": row.set_unix_s,
        }

        def write(connection: Connection) -> None:
            connection.execute(_deletion(row.owner, row.name))
            connection.execute(insert(SECRETS), [values])

        self._asked(write, writes=True)

    def remove(self, owner: str, name: str) -> bool:
        """Delete a row; whether there was one."""
        return self._asked(
            lambda connection: connection.execute(_deletion(owner, name)).rowcount > 0, writes=True
        )

    def rows(self, owner: str | None = None, names: Collection[str] | None = None) -> list[SecretRow]:
        """Rows by owner and name: all, those of an owner, or those of an owner with these names."""
        query: Select[Any] = select(SECRETS).order_by(SECRETS.c.owner, SECRETS.c.name)
        if owner is not None:
            query = query.where(SECRETS.c.owner == owner)
        if names is not None:
            query = query.where(SECRETS.c.name.in_(sorted(set(names))))
        rows = self._asked(lambda connection: connection.execute(query).all())
        return [SecretRow(row.owner, row.name, row.set_unix_s, bytes(row.sealed)) for row in rows]

    def count(self) -> int:
        """How many rows there are."""
        query = select(func.count()).select_from(SECRETS)
        return self._asked(lambda connection: int(connection.scalar(query) or 0))

    def _asked(self, work: Callable[[Connection], Result], writes: bool = False) -> Result:
        return patiently(self.engine, work, writes=writes, patience_s=self.patience_s)


def _deletion(owner: str, name: str) -> Any:
    return delete(SECRETS).where(SECRETS.c.owner == owner, SECRETS.c.name == name)
