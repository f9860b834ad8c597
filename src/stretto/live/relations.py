"""Who belongs together and who waits for whom: tasks of arrays, dependencies, and jobs by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from stretto.live.jobfile import JobSpec
from stretto.live.records import JobRecord
from stretto.model import InputError


@dataclass
class ArrayRecord:
    """The tasks of one array, by index."""

    id: str
    user: str
    at_once: int | None  # at most so many run at the same time
    tasks: list[str] = field(default_factory=list)
    open: dict[str, None] = field(default_factory=dict)  # that have not ended
    completed: int = 0

    # Who may be given GPUs, as found after event `seen`; it holds until the next event, or `until_s`.
    seen: int = -1
    from_s: float = 0.0
    until_s: float = 0.0
    admitted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fate:
    """What has become of a job, or of all tasks of an array."""

    started: bool
    ended: bool
    succeeded: bool  # all of them; false while that may still come
    failed: bool  # one of them


@dataclass
class Relations:
    """Kept by the fold."""

    arrays: dict[str, ArrayRecord] = field(default_factory=dict)
    newest: dict[tuple[str, str], str] = field(default_factory=dict)  # (user, name) → job or array
    waiting: dict[str, list[str]] = field(default_factory=dict)  # job or array → who names it as coming first

    def add(self, record: JobRecord) -> None:
        """A job has been submitted."""
        own = record.array or record.id
        self.newest[record.user, record.spec.name] = own
        if record.array:
            array = self.arrays.setdefault(own, ArrayRecord(own, record.user, record.at_once))
            array.tasks.append(record.id)
            array.open[record.id] = None
        for name in record.after:
            self.waiting.setdefault(name, []).append(record.id)

    def end(self, record: JobRecord) -> Iterable[str]:
        """A job has ended; those for whom that may mean something."""
        array = self.arrays.get(record.array)
        if array is not None:
            array.open.pop(record.id, None)
            array.completed += record.state == "COMPLETED"
        return [*self.waiting.get(record.id, ()), *self.waiting.get(record.array, ())]

    def fate(self, jobs: Mapping[str, JobRecord], name: str) -> Fate | None:
        """What has become of a job or an array; None where there is none."""
        record = jobs.get(name)
        if record is not None:
            succeeded = record.state == "COMPLETED"
            ended = record.has_ended
            return Fate(record.attempt > 0 or ended, ended, succeeded, ended and not succeeded)
        array = self.arrays.get(name)
        if array is None:
            return None
        over = len(array.tasks) - len(array.open)
        started = all(jobs[one].attempt > 0 for one in array.open)
        return Fate(started, not array.open, array.completed == len(array.tasks), array.completed < over)

    def found(self, jobs: Mapping[str, JobRecord], word: str, user: str) -> str:
        """The job or array of a user that an id or a name means, by name the newest; "" for none."""
        record, array = jobs.get(word), self.arrays.get(word)
        if (record is not None and record.user == user) or (array is not None and array.user == user):
            return word
        return self.newest.get((user, word), "")

    def jobs_of(self, name: str) -> list[str]:
        """The tasks of an array, or the job itself."""
        array = self.arrays.get(name)
        return [name] if array is None else array.tasks

    def admitted(
        self,
        record: JobRecord,
        jobs: Mapping[str, JobRecord],
        ready: Callable[[JobRecord], bool],
        now: tuple[int, float],
    ) -> bool:
        """Whether a task is among those that may hold GPUs: who does, and then the first that are ready.

        now: number of the last event, and the time.
        """
        array = self.arrays[record.array]
        if array.at_once is None:
            return True
        seq, now_s = now
        if array.seen != seq or not array.from_s <= now_s < array.until_s:
            tasks = [jobs[name] for name in array.open]
            runs = [one for one in tasks if one.books.held_gpus or one.alive]
            room = array.at_once - len(runs)
            waits = [one for one in tasks if not one.books.held_gpus and not one.alive and ready(one)]
            array.admitted = frozenset(one.id for one in [*runs, *waits[: max(room, 0)]])
            later = (one.not_before_s for one in tasks if one.not_before_s > now_s)
            array.seen, array.from_s, array.until_s = seq, now_s, min(later, default=inf)
        return record.id in array.admitted


def resolved(
    relations: Relations, jobs: Mapping[str, JobRecord], spec: JobSpec, user: str
) -> tuple[str, ...]:
    """The ids of what comes first, in the order of `depends_on`. Raises InputError.

    They exist already, so that nobody can wait for himself, whichever way round.
    """
    found = []
    for one in spec.depends_on:
        name = relations.found(jobs, one.job, user)
        if not name:
            raise InputError(
                f"depends_on: expected the id or name of a job that you have submitted, got {one.job!r}"
            )
        found.append(name)
    return tuple(found)
