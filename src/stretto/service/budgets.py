"""What has been used of each budget, as usage grows, and the events by which they come to another level."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from stretto.model.queue import parents_of
from stretto.service.eventlog import EndedJobs, StoreError
from stretto.service.eventlog.archive import spell_of
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.state import events as happened
from stretto.service.state.budget_sums import Key, PeriodSums, rates, used_of
from stretto.service.state.budgets import Budget, Level
from stretto.service.state.events import BudgetReached, Event
from stretto.service.state.on_hold import unix_us
from stretto.service.state.periods import period_around
from stretto.service.state.state import State

LOOK_EVERY_S, LEAST_WAIT_S = 5.0, 0.05  # of wall time, at most and at least between two looks; chosen
AT_ONCE = 200  # jobs that are counted without a pause; chosen
# After these, budgets are looked at at once: rates, prices, or what is counted may be others.
WAKING = (
    happened.BudgetSet,
    happened.BudgetDeleted,
    happened.GpuPriceSet,
    happened.QueueSet,
    happened.QueueDeleted,
    happened.ClockSet,
    happened.Decided,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a budget stands in its present period. Times are Unix times in microseconds."""

    budget: Budget
    used: float
    from_us: int
    until_us: int
    per_s: float  # what is used of it each second, as jobs run now

    @property
    def level(self) -> Level:
        """What so much means."""
        return self.budget.level_at(self.used)

    @property
    def share(self) -> float:
        """What part of it is used."""
        return self.used / self.budget.amount

    def as_event(self) -> BudgetReached:
        """That it is at this level now."""
        budget = self.budget
        return BudgetReached(
            budget.name,
            self.level.value,
            self.used,
            budget.amount,
            budget.unit.value,
            self.from_us,
            self.until_us,
        )


@dataclass
class BudgetWatch:
    """Adds up what is charged in the periods of all budgets, and records when one comes to another level."""

    log_writer: LogWriter
    clock: Clock
    table: EndedJobs  # that has the usage of jobs that have left the state
    latest: dict[str, Standing] = field(default_factory=dict)  # by name, at most some seconds old
    _sums: dict[tuple[str, str], PeriodSums] = field(default_factory=dict)  # by period and zone
    _seen: int = 0  # the last event whose jobs are counted
    _left: int = 0  # jobs that had left the state then
    _priced: int = 0  # times that a price was set
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.log_writer.listeners.append(self.heard)

    @property
    def state(self) -> State:
        """Where everything stands."""
        return self.log_writer.state

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Note what may bring a level sooner."""
        for _, event in told:
            if isinstance(event, happened.GpuPriceSet):  # also of times that are over
                self._sums, self._priced = {}, self._priced + 1
            if isinstance(event, WAKING):
                self._wake.set()

    async def run(self) -> None:
        """Record levels until cancelled."""
        while True:
            self._wake.clear()
            if not self.state.budgets:
                self.latest, self._sums = {}, {}
                await self._wake.wait()
                continue
            try:
                standings = await self.standings()
            except StoreError as wrong:
                log.warning("budgets are looked at again in a while: %s", wrong)
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            at_us = unix_us(self.state, self.clock.now_s())
            changed = [
                standing.as_event()
                for standing in standings
                if self.state.budgets.by_name.get(standing.budget.name) is standing.budget
                and at_us < standing.until_us  # else the next period has begun meanwhile
                and standing.level is not self.state.budgets.level(standing.budget.name, at_us)
            ]
            if changed:
                await self.log_writer.record(*changed)
            try:
                async with asyncio.timeout(self._wait_s(standings)):
                    await self._wake.wait()
                    await asyncio.sleep(LEAST_WAIT_S)  # what comes together is looked at together
            except TimeoutError:
                pass

    def _wait_s(self, standings: Sequence[Standing]) -> float:
        """Wall time until the first budget comes to its next level, as jobs run now."""
        times = [LOOK_EVERY_S]
        for standing in standings:
            threshold = standing.budget.next_threshold(standing.used)
            if threshold is not None and standing.per_s > 0:
                times.append(self.clock.wall_s((threshold - standing.used) / standing.per_s))
        return max(min(times), LEAST_WAIT_S)

    async def standings(self, more: Sequence[Budget] = ()) -> list[Standing]:
        """How each budget stands now, by name. more: budgets that are not set yet, which come last."""
        async with self._lock:
            budgets = [*(budget for _, budget in sorted(self.state.budgets.by_name.items())), *more]
            await self._count(budgets)
            standings = self._standings(budgets)
            are_set = standings[: len(standings) - len(more)]
            self.latest = {standing.budget.name: standing for standing in are_set}
            return standings

    def _standings(self, budgets: Sequence[Budget]) -> list[Standing]:
        state, now_s = self.state, max(self.clock.now_s(), self.state.at_s)
        holders = [state.jobs[name] for name in state.placement or ()]
        parents = parents_of(state.queues)
        per_s = [rates(holders, state.gpu_prices, unix_us(state, now_s))]
        open_charges = {key: sums.open_charges(holders, now_s) for key, sums in self._sums.items()}
        standings = []
        for budget in budgets:
            key = budget.period, budget.zone
            sums = self._sums[key]
            used = used_of(budget, (sums.total, open_charges[key]), parents)
            rate = used_of(budget, per_s, parents)
            standings.append(Standing(budget, used, sums.from_us, sums.until_us, rate))
        return standings

    # ── counting ──────────────────────────────────────────────────────────────────────────────────

    async def _count(self, budgets: Sequence[Budget]) -> None:
        """Bring the sums of the periods of these budgets up to date."""
        while True:
            state = self.state
            at_us = unix_us(state, self.clock.now_s())
            pairs = {(budget.period, budget.zone) for budget in budgets}
            periods = {pair: period_around(pair[0], ZoneInfo(pair[1]), at_us) for pair in sorted(pairs)}
            if state.unchanged > self._seen:  # a job has changed and left since
                self._sums.clear()
            kept = self._sums = {
                pair: sums
                for pair, sums in self._sums.items()
                if pair in periods and (sums.from_us, sums.until_us) == periods[pair]
            }
            missing = {
                pair: PeriodSums(*period, state.gpu_prices)
                for pair, period in periods.items()
                if pair not in kept
            }
            if not missing:
                break
            # What changes meanwhile is counted in the next turn.
            self._seen, priced = self._seen if kept else state.seq, self._priced
            await self._count_all(list(missing.values()))
            if priced == self._priced:
                self._sums |= missing
        for record in state.changed_since(self._seen):
            for sums in self._sums.values():
                sums.take(record)
        if state.past.jobs != self._left:
            self._left = state.past.jobs
            for sums in self._sums.values():
                sums.forget(state.jobs)
        self._seen = state.seq

    async def _count_all(self, all_sums: Sequence[PeriodSums]) -> None:
        """All jobs, also those that have left the state."""
        state = self.state
        records = list(state.jobs.values())
        numbers = {record.number for record in records}
        for number, record in enumerate(records, start=1):
            for sums in all_sums:
                sums.take(record)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)  # others come in between
        if not state.past.spells:
            return
        first_us = min(sums.from_us for sums in all_sums)
        last_us = max(sums.until_us for sums in all_sums)

        def of_those_that_left() -> list[Counter[Key]]:
            charged = [Counter[Key]() for _ in all_sums]
            for number, job, owner, row in self.table.used(first_us, last_us):
                if number not in numbers:  # else it has left since, and is counted
                    for total, sums in zip(charged, all_sums, strict=True):
                        total.update(sums.charges(job, owner, [spell_of(row)]))
            return charged

        for sums, total in zip(all_sums, await asyncio.to_thread(of_those_that_left), strict=True):
            sums.total.update(total)
