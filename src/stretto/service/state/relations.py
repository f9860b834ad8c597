"""Which jobs belong together and which wait for which: tasks of arrays, dependencies, and jobs by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from stretto.errors import InputError
from stretto.jobfile import JobSpec
from stretto.service.state.records import JobRecord


@dataclass
class ArrayRecord:
    """The tasks of one array, by index."""

    id: str
    user: str
    max_parallel: int | None  # at most so many run at the same time
    tasks: list[str] = field(default_factory=list)
    open: dict[str, None] = field(default_factory=dict)  # that have not ended
    completed: int = 0
    retired: int = 0  # tasks that have left the state
    one_spec: bool = False  # the log has one specification for all of them, under the array's id

    # Which jobs may be given GPUs, as found after event `seen`; it holds until the next event, or `until_s`.
    seen: int = -1
    from_s: float = 0.0
    until_s: float = 0.0
    admitted: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DependencyStatus:
    """What has become of a job, or of all tasks of an array."""

    started: bool
    ended: bool
    succeeded: bool  # all of them; false while that may still come
    failed: bool  # one of them


def known_outcome(well: bool) -> DependencyStatus:
    """The fate of jobs that had ended, whether well, before any named them as coming first."""
    return DependencyStatus(started=True, ended=True, succeeded=well, failed=not well)


@dataclass
class Relations:
    """Kept by the fold."""

    arrays: dict[str, ArrayRecord] = field(default_factory=dict)
    newest: dict[tuple[str, str], str] = field(default_factory=dict)  # (user, name) → job or array
    waiting: dict[str, dict[str, None]] = field(default_factory=dict)  # job or array → open jobs that name it

    def add(self, record: JobRecord) -> None:
        """A job has been submitted."""
        own = record.array or record.id
        self.newest[record.user, record.spec.name] = own
        if record.array:
            array = self.arrays.setdefault(own, ArrayRecord(own, record.user, record.max_parallel))
            array.tasks.append(record.id)
            array.open[record.id] = None
        for name in record.after:
            self.waiting.setdefault(name, {})[record.id] = None

    def end(self, record: JobRecord) -> Iterable[str]:
        """A job has ended; those for which that may mean something."""
        array = self.arrays.get(record.array)
        if array is not None:
            array.open.pop(record.id, None)
            array.completed += record.state == "COMPLETED"
        for name in dict.fromkeys(record.after):
            del self.waiting[name][record.id]
            if not self.waiting[name]:
                del self.waiting[name]
        return [*self.waiting.get(record.id, ()), *self.waiting.get(record.array, ())]

    def may_retire(self, record: JobRecord) -> bool:
        """Whether a job has ended and no open job needs to know how, nor it for its array."""
        array = self.arrays.get(record.array)
        if not record.has_ended or record.id in self.waiting:
            return False
        return array is None or not (array.open or array.id in self.waiting)

    def retire(self, record: JobRecord) -> None:
        """A job leaves the state, and with the last of its tasks an array."""
        array = self.arrays.get(record.array)
        if array is not None:
            array.retired += 1
            if array.retired < len(array.tasks):
                return
            del self.arrays[array.id]
        own = (record.user, record.spec.name)
        if self.newest.get(own) == (record.array or record.id):
            del self.newest[own]

    def fate(self, jobs: Mapping[str, JobRecord], name: str) -> DependencyStatus | None:
        """What has become of a job or an array; None where there is none, or not any more."""
        record = jobs.get(name)
        if record is not None:
            succeeded = record.state == "COMPLETED"
            ended = record.has_ended
            return DependencyStatus(record.attempt > 0 or ended, ended, succeeded, ended and not succeeded)
        array = self.arrays.get(name)
        if array is None:
            return None
        over = len(array.tasks) - len(array.open)
        started = all(jobs[task].attempt > 0 for task in array.open)
        return DependencyStatus(
            started, not array.open, array.completed == len(array.tasks), array.completed < over
        )

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
        """Whether a task is among those that may hold GPUs: those that do, and then the first that are ready.

        now: number of the last event, and the time.
        """
        array = self.arrays[record.array]
        if array.max_parallel is None:
            return True
        seq, now_s = now
        if array.seen != seq or not array.from_s <= now_s < array.until_s:
            tasks = [jobs[name] for name in array.open]
            runs = [task for task in tasks if task.accounting.held_gpus or task.alive]
            room = array.max_parallel - len(runs)
            waits = [
                task for task in tasks if not task.accounting.held_gpus and not task.alive and ready(task)
            ]
            array.admitted = frozenset(task.id for task in [*runs, *waits[: max(room, 0)]])
            later = (task.not_before_s for task in tasks if task.not_before_s > now_s)
            array.seen, array.from_s, array.until_s = seq, now_s, min(later, default=inf)
        return record.id in array.admitted


@dataclass(frozen=True)
class Named:
    """What a word means among jobs and arrays that have left the state."""

    name: str  # job or array
    by_id: bool  # the word is its id; else it is the newest of that name
    well: bool  # whether all of it has ended well


NOTHING_PAST: Mapping[str, Named] = MappingProxyType({})


def named(past: Iterable[JobRecord], word: str, user: str) -> Named | None:
    """What a word means among these jobs of a user, which have left; None for nothing."""
    mine = [record for record in past if record.user == user]
    named_records = [record for record in mine if word in (record.id, record.array)]
    by_id = bool(named_records)
    if not named_records:
        newest = max(
            (record for record in mine if record.spec.name == word),
            key=lambda record: record.number,
            default=None,
        )
        own = "" if newest is None else newest.array or newest.id
        named_records = [record for record in mine if own in (record.id, record.array)] if own else []
    if not named_records:
        return None
    name = word if by_id else named_records[0].array or named_records[0].id
    return Named(name, by_id, all(record.state == "COMPLETED" for record in named_records))


def resolved(
    relations: Relations,
    jobs: Mapping[str, JobRecord],
    spec: JobSpec,
    user: str,
    past: Mapping[str, Named] = NOTHING_PAST,
) -> tuple[str, ...]:
    """The ids of what comes first, in the order of `depends_on`. Raises InputError.

    They exist already, so that no job can wait for itself, whichever way round. past: what the words mean
    among jobs that have left the state.
    """
    names = []
    for dependency in spec.depends_on:
        name, left = relations.found(jobs, dependency.job, user), past.get(dependency.job)
        if left is not None and name != dependency.job and (left.by_id or not name):
            name = left.name
        if not name:
            raise InputError(
                "depends_on: expected the id or name of a job that you have submitted, "
                f"got {dependency.job!r}"
            )
        names.append(name)
    return tuple(names)


def outcomes_of(
    relations: Relations,
    jobs: Mapping[str, JobRecord],
    names: Iterable[str],
    past: Mapping[str, Named] = NOTHING_PAST,
) -> dict[str, bool]:
    """Whether those of these jobs and arrays that have ended did so well."""
    left = {ended.name: ended.well for ended in past.values()}
    outcomes = {}
    for name in names:
        fate = relations.fate(jobs, name)
        if fate is None:
            outcomes[name] = left[name]
        elif fate.ended:
            outcomes[name] = fate.succeeded
    return outcomes
