"""Jobs wherever they are: in the state, or, once they have left it, in the table of ended jobs.

The table is asked in threads. A row is there before its job leaves, so that who looks into the state first
and into the table afterwards misses nobody; somebody may be found in both.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stretto.live.history.retired import record_of
from stretto.live.jobfile import JobSpec
from stretto.live.state.records import JobRecord
from stretto.live.state.relations import Named, named
from stretto.live.state.state import State
from stretto.live.store import EndedJob, EndedJobs

Found = TypeVar("Found")


@dataclass(frozen=True)
class Archive:
    """Asked by those who know a job by its id, name or key. Raises StoreError where the store fails."""

    state: State
    table: EndedJobs

    async def job(self, name: str) -> JobRecord | None:
        """A job; None where there is none."""
        return next(iter(await self.jobs([name])), None)

    async def jobs(self, names: Sequence[str]) -> list[JobRecord]:
        """Those of these jobs that there are, in this order."""
        found = {name: record for name in names if (record := self.state.jobs.get(name)) is not None}
        missing = [name for name in names if name not in found]
        if missing:
            found |= {one.id: one for one in await self._records(lambda: self.table.of(missing))}
        return [found[name] for name in names if name in found]

    async def meant(self, word: str, user: str) -> list[JobRecord]:
        """A job, or the tasks of an array: by id, whoever has submitted it, or by the name of the newest."""
        state = self.state
        if word in state.jobs or word in state.relations.arrays:
            return await self.jobs(state.relations.jobs_of(word))
        left = await self._left(word, user)
        by_id = [one for one in left if word in (one.id, one.array)]
        name = state.relations.newest.get((user, word), "")
        if by_id or not name:
            return by_id or left
        return await self.jobs(state.relations.jobs_of(name))

    async def named(self, spec: JobSpec, user: str) -> dict[str, Named]:
        """What the words of `depends_on` mean among jobs that have left."""
        found = {}
        for word in dict.fromkeys(one.job for one in spec.depends_on):
            one = named(await self._left(word, user), word, user)
            if one is not None:
                found[word] = one
        return found

    async def by_key(self, user: str, key: str) -> JobRecord | None:
        """The first job of a submission with this key that has left."""

        def look() -> list[EndedJob]:
            row = self.table.by_key(user, key)
            return [] if row is None else [row]

        return next(iter(await self._records(look)), None)

    async def owners_of(self, names: Collection[str]) -> dict[str, str]:
        """Who has submitted these jobs, by job, as far as there are such."""
        found = {name: record.user for name in names if (record := self.state.jobs.get(name)) is not None}
        missing = [name for name in names if name not in found]
        if missing:
            nobody: dict[str, str] = {}
            found |= await self._asked(lambda: self.table.owners_of(missing), nobody)
        return found

    async def left(self, look: Callable[[EndedJobs], list[EndedJob]]) -> list[JobRecord]:
        """What a look at the table finds."""
        return await self._records(lambda: look(self.table))

    async def _left(self, word: str, user: str) -> list[JobRecord]:
        """Of those who have left, a job or the tasks of an array by id, and the newest of a user by name."""

        def look() -> list[EndedJob]:
            table = self.table
            by_id = table.of([word]) or table.tasks_of(word)
            newest = table.newest_named(user, word)
            if newest is None:
                return by_id
            return [*by_id, *(table.tasks_of(newest.array) if newest.array else [newest])]

        return await self._records(look)

    async def _records(self, look: Callable[[], list[EndedJob]]) -> list[JobRecord]:
        def records() -> list[JobRecord]:
            rows = look()
            specs = self.table.specs_of({row.array for row in rows if row.array})
            shared = {array: JobSpec.from_json(spec) for array, spec in specs.items()}
            return [record_of(row, shared.get(row.array)) for row in rows]

        return await self._asked(records, [])

    async def _asked(self, look: Callable[[], Found], nothing: Found) -> Found:
        """What a look finds, beside the loop; nothing is looked for where nobody has left."""
        return await asyncio.to_thread(look) if self.state.past.jobs else nothing
