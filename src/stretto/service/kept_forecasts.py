"""Forecasts that a service makes by itself every few minutes, and how often they have held.

They answer `explain` where so many jobs are open that a simulation would take too long to wait for. And each
is compared with what happens: of a job its first forecast of its start, and its first of its end.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan

from stretto.errors import InputError
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.forecast.all_jobs import AllJobs, Spans, all_jobs
from stretto.service.forecast.corrections import (
    Corrections,
    DrawnInterval,
    ForecastRecord,
    Interval,
    corrected,
)
from stretto.service.forecast.fork import Fork, fork_of
from stretto.service.forecast.simulate import answered, packed
from stretto.service.pool import Closed, OutOfMemory, OutOfTime, Pool, TooManyWaiting
from stretto.service.pool.pool import Work
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.state import events as happened
from stretto.service.state.events import Event

EVERY_S = 300.0  # of wall time, at least; chosen
PART_OF_A_CORE = 0.05  # that forecasts take at most, beside the service and with low priority; chosen
FIRST_S = 20.0  # after a start, and after the first job has come; chosen: others begin then, too
MOST_WAITING = 1_000  # jobs that wait and are foreseen, the first in line; chosen: copying them takes 20 ms
OWN = "\0forecasts"  # in whose turn the work is done; no user is called so

log = logging.getLogger(__name__)


@dataclass
class KeptForecasts:
    """The newest forecast of all, and what became of earlier ones."""

    log_writer: LogWriter
    scheduling: SchedulingLoop
    clock: Clock
    pool: Pool
    latest: dict[str, tuple[Interval, Interval]] = field(default_factory=dict)  # starts and ends
    made_s: float = -inf  # on the clock of the service
    reached_s: float = nan  # up to when was looked ahead then; NaN: never
    draws: int = 0
    took_s: float = 0.0  # of a processor
    assumed: tuple[str, ...] = ()
    found: Counter[tuple[str, str]] = field(default_factory=Counter)  # (start | end, inside | early | late)
    record: ForecastRecord = field(default_factory=ForecastRecord)
    corrections: Corrections = field(default_factory=dict)  # what earlier forecasts say of the next
    # First forecasts, by what and job: as drawn, and as told.
    _open: dict[tuple[str, str], tuple[DrawnInterval, Interval]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.log_writer.listeners.append(self.heard)

    async def run(self) -> None:
        """Look ahead again and again, until cancelled; not while no job is open."""
        await asyncio.sleep(FIRST_S)
        while True:
            state = self.log_writer.state
            if state.open and state.cluster is not None:
                await self.look_ahead()
                await asyncio.sleep(max(EVERY_S, self.took_s / PART_OF_A_CORE))
            else:
                self.latest = {}
                await asyncio.sleep(FIRST_S)

    async def look_ahead(self) -> None:
        """One forecast of what is open; what cannot be foreseen now is foreseen later."""
        forks: list[Fork] = []

        async def prepare() -> Work:
            state = self.log_writer.state
            now_s, memory = self.clock.now_s(), self.scheduling.memory
            forks.append(fork_of(state, now_s, memory=memory, most_waiting=MOST_WAITING))
            return answered, (state.configured, await asyncio.to_thread(packed, all_jobs, forks[0]))

        try:
            seen: AllJobs = await self.pool.call(OWN, prepare)
            self.take(seen.spans, forks[0].now_s)
            self.assumed = (*forks[0].assumed, *seen.assumed)
            self.reached_s, self.draws, self.took_s = seen.reached_s, seen.draws, seen.took_s
        except (TooManyWaiting, OutOfTime, OutOfMemory, InputError, RuntimeError) as wrong:
            log.warning("no forecast was made: %s", wrong or type(wrong).__name__)
        except Closed:
            return

    def take(self, spans: Spans, made_s: float) -> None:
        """Keep a forecast, corrected. Of jobs of which nothing was said it is compared with what happens.

        spans: as drawn from the state at `made_s`.
        """
        waits = ((kind, drawn) for (kind, _), (drawn, _) in self._open.items())
        self.corrections = self.record.corrections(waits, self.clock.now_s())
        self.latest, self.made_s = {}, made_s
        for job, (start, end) in spans.items():
            record = self.log_writer.state.open_job(job)
            if record is None:
                continue
            has_started = record.accounting.starts > 0
            first = start if has_started else corrected(self.corrections, "start", start, made_s)
            self.latest[job] = first, corrected(self.corrections, "end", end, made_s)
            for kind, drawn, span in zip(("start", "end"), (start, end), self.latest[job], strict=True):
                if isfinite(drawn.middle_s) and not (kind == "start" and has_started):
                    self._open.setdefault((kind, job), (DrawnInterval(made_s, drawn), span))

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Compare what has happened with what was foreseen."""
        state = self.log_writer.state
        for _, event in told:
            if isinstance(event, happened.Decided):
                for action in event.actions:
                    record = state.jobs.get(str(action["job"]))
                    if record is not None and record.accounting.starts:
                        self._compare("start", record.id, record.accounting.first_start_s)
            elif isinstance(event, happened.Ended) and (record := state.jobs.get(event.job)) is not None:
                self._compare("end", record.id, record.ended_s)
                self._open.pop(("start", record.id), None)  # it never started
                self.latest.pop(record.id, None)

    def _compare(self, kind: str, job: str, at_s: float) -> None:
        drawn, span = self._open.pop((kind, job), (None, None))
        if drawn is not None and span is not None:
            self.found[kind, span.side_of(at_s)] += 1
            self.record.note(kind, drawn, span, at_s)

    def held(self) -> Mapping[str, Mapping[str, int]]:
        """How many forecasts have held, of how many, for starts and ends."""
        return {
            what: {
                "inside": self.found[what, "inside"],
                "of": sum(self.found[what, word] for word in ("inside", "early", "late")),
            }
            for what in ("start", "end")
        }
