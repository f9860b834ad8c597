"""How long is what is known of a job kept? In memory for a while after its end, in the store for ever."""

import asyncio
import logging
from collections.abc import Container
from dataclasses import dataclass
from math import inf, isnan

from stretto.errors import InputError
from stretto.jobfile.quantities import duration_s
from stretto.service.eventlog import EndedJob, Store
from stretto.service.eventlog.archive import rows_of
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter, fold, understood
from stretto.service.state.events import Retired
from stretto.service.state.state import State

MOST_ENDED = 2_000  # in memory; chosen: some 8 MB
LEAST_ENDED_S = 60.0  # chosen: a caller that waits for an end hears of it from memory
AT_ONCE = 100  # jobs that leave together; chosen: writing their rows takes some milliseconds
CHECK_S, PAUSE_S = 5.0, 0.02  # of wall time between two looks, and while many leave; chosen
TABLE_AT_ONCE = 1_000  # rows written together where the table is made anew
DAY_S = 86_400.0
FOREVER = "forever"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetentionPolicy:
    """For how long after its end what of a job is kept."""

    ended_s: float = 3600.0  # it itself in memory
    most_ended: int = MOST_ENDED  # so many of those that ended last
    logs_s: float = 30 * DAY_S  # what its workers have written; infinite: for ever
    checkpoints_s: float = inf  # its checkpoints, where the service chose their place; likewise

    def __post_init__(self) -> None:
        """Check the times. A job leaves before its files do: whose they were is asked in the store."""
        for name, value, least_s in (
            ("keep-ended", self.ended_s, LEAST_ENDED_S),
            ("keep-logs", self.logs_s, LEAST_ENDED_S),
            ("keep-checkpoints", self.checkpoints_s, LEAST_ENDED_S),
        ):
            if isnan(value) or value < least_s:
                raise InputError(f"--{name}: expected at least {least_s:g} s, got {value:g}")
        object.__setattr__(self, "ended_s", min(self.ended_s, self.logs_s, self.checkpoints_s))


def due(state: State, keep: RetentionPolicy, now_s: float, dirty: Container[str] = ()) -> list[str]:
    """Some jobs that may leave, the first to have ended first: too old, or too many have ended since.

    dirty: jobs that the reconciler has not looked at since they changed: something may follow from their end.
    """
    too_many = len(state.ended) - keep.most_ended

    names: list[str] = []
    for place, name in enumerate(state.ended):
        record = state.jobs[name]
        if (place >= too_many and record.ended_s > now_s - keep.ended_s) or len(names) == AT_ONCE:
            break
        if name not in dirty and state.relations.may_retire(record):
            names.append(name)
    return names


async def retire_periodically(
    log_writer: LogWriter, clock: Clock, keep: RetentionPolicy, dirty: Container[str] = ()
) -> None:
    """Let jobs leave whose time has come, until cancelled. dirty: see `due`."""
    while True:
        names = due(log_writer.state, keep, clock.now_s(), dirty)
        if names:
            await log_writer.record(Retired(tuple(names)))
        every_s = min(CHECK_S, clock.wall_s(keep.ended_s) / 10)
        await asyncio.sleep(PAUSE_S if len(names) == AT_ONCE else max(every_s, PAUSE_S))


def mend(store: Store, state: State) -> None:
    """Have the table hold exactly the jobs that have left, where it was changed or lost."""
    if _is_whole(store, state):
        return
    store.ended.drop(list(state.ended))  # rows of jobs that were needed after all when they were to leave
    if not _is_whole(store, state):
        there = store.ended.count()
        log.warning("of %d ended jobs the table has %d: it is made anew", state.past.jobs, there)
        make_anew(store, state.seq)


def _is_whole(store: Store, state: State) -> bool:
    """Whether the tables have as many jobs, and as much of their usage, as have left."""
    past = state.past
    return store.ended.count() == past.jobs and store.ended.used_total() == (past.spells, past.spell_gpu_us)


def make_anew(store: Store, up_to: int) -> None:
    """Write the table of ended jobs from the log, up to an event; not whose logs were deleted."""
    table, state = store.ended, State()
    table.clear()
    rows: dict[str, EndedJob] = {}
    for recorded in store.read(up_to=up_to):
        event = understood(recorded)
        leaving = {row.job: row for row in rows_of(state, event)} if isinstance(event, Retired) else {}
        fold(state, recorded)
        rows |= {name: row for name, row in leaving.items() if name not in state.jobs}
        if len(rows) >= TABLE_AT_ONCE:
            table.add(list(rows.values()))
            rows = {}
    table.add(list(rows.values()))


def keep_of(ended: str, logs: str, checkpoints: str = FOREVER) -> RetentionPolicy:
    """From the words of a command line: durations, or `forever` for files. Raises InputError."""
    return RetentionPolicy(
        ended_s=_seconds("--keep-ended", ended),
        logs_s=_seconds_or_ever("--keep-logs", logs),
        checkpoints_s=_seconds_or_ever("--keep-checkpoints", checkpoints),
    )


def _seconds_or_ever(option: str, said: str) -> float:
    return inf if said == FOREVER else _seconds(option, said, f" or {FOREVER}")


def _seconds(option: str, said: str, more: str = "") -> float:
    try:
        return duration_s(said)
    except ValueError:
        raise InputError(f"{option} {said}: expected a duration like 1h or 14d{more}") from None
