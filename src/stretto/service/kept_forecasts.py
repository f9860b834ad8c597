"""Forecasts that a service makes by itself every few minutes, and how often they have held.

They answer `explain` where so many jobs are open that a simulation would take too long to wait for. And each
is compared with what happens: of a job its first forecast of its start, and its first of its end.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from stretto.model import InputError
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.forecast.fork import Fork, fork_of
from stretto.service.forecast.simulate import DRAWS, LONGEST_S, Interval, answered, outlook_of, packed
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
JUST_S = 1.0  # beside an interval that still counts as inside; chosen
Spans = dict[str, tuple[Interval, Interval]]  # of start and end, by job

log = logging.getLogger(__name__)


@dataclass
class KeptForecasts:
    """The newest forecast of all, and what became of earlier ones."""

    log_writer: LogWriter
    scheduling: SchedulingLoop
    clock: Clock
    pool: Pool
    latest: Spans = field(default_factory=dict)
    made_s: float = -float("inf")  # on the clock of the service
    assumed: tuple[str, ...] = ()
    found: Counter[tuple[str, str]] = field(default_factory=Counter)  # (start | end, inside | early | late)
    _open: dict[tuple[str, str], Interval] = field(default_factory=dict)  # first forecasts, by what and job

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.log_writer.listeners.append(self.heard)

    async def run(self) -> None:
        """Look ahead again and again, until cancelled; not while no job is open."""
        await asyncio.sleep(FIRST_S)
        while True:
            began = time.monotonic()
            state = self.log_writer.state
            if state.open and state.cluster is not None:
                await self.look_ahead()
                took_s = time.monotonic() - began
                await asyncio.sleep(max(EVERY_S, took_s / PART_OF_A_CORE))
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
            return answered, (state.configured, await asyncio.to_thread(packed, spans_of, forks[0]))

        try:
            self.take(await self.pool.call(OWN, prepare))
            self.made_s, self.assumed = forks[0].now_s, forks[0].assumed
        except (TooManyWaiting, OutOfTime, OutOfMemory, InputError, RuntimeError) as wrong:
            log.warning("no forecast was made: %s", wrong or type(wrong).__name__)
        except Closed:
            return

    def take(self, spans: Spans) -> None:
        """Keep a forecast. Of a job of which nothing was said before it is compared with what happens."""
        self.latest = spans
        for job, (start, end) in spans.items():
            record = self.log_writer.state.open_job(job)
            if record is None:
                continue
            foreseen = [("start", start)] if not record.accounting.starts else []
            for what, span in (*foreseen, ("end", end)):
                if isfinite(span.middle_s):
                    self._open.setdefault((what, job), span)

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

    def _compare(self, what: str, job: str, at_s: float) -> None:
        span = self._open.pop((what, job), None)
        if span is not None:
            early, late = at_s < span.low_s - JUST_S, at_s > span.high_s + JUST_S
            self.found[what, "early" if early else "late" if late else "inside"] += 1

    def held(self) -> Mapping[str, Mapping[str, int]]:
        """How many forecasts have held, of how many, for starts and ends."""
        return {
            what: {
                "inside": self.found[what, "inside"],
                "of": sum(self.found[what, word] for word in ("inside", "early", "late")),
            }
            for what in ("start", "end")
        }


def spans_of(fork: Fork) -> Spans:
    """When each job of a fork would start and end."""
    outlook = outlook_of(fork, DRAWS, None, time.perf_counter() + LONGEST_S)
    return {
        str(member.job.id): (outlook.start(member.job.id), outlook.end(member.job.id))
        for member in fork.members
    }
