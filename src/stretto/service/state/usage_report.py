"""GPU time summed up: by user, queue, GPU type, job and period, with what it costs and who is charged."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from stretto.errors import InputError
from stretto.service.state.periods import PERIODS, starts, unix_us
from stretto.service.state.state import State
from stretto.service.state.usage import QUARTER_US, US_PER_S, CauseKind, Spell, Use

ACCOUNTS = ("user", "queue", "type", "job")
DIMENSIONS = (*ACCOUNTS, *PERIODS)
US_PER_HOUR = 3600 * US_PER_S
MOST_PERIODS = 4_000  # of one answer; chosen: ten years of days
MOST_ROWS = 100_000  # likewise: some 30 MB


@dataclass(frozen=True)
class Question:
    """What is to be summed up."""

    by: tuple[str, ...] = ("user",)
    from_us: int | None = None  # None: from the first start on
    until_us: int | None = None  # None: up to now
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))  # of days, weeks and months

    def __post_init__(self) -> None:
        """Check that it makes sense. Raises InputError."""
        for dimension in self.by:
            if dimension not in DIMENSIONS:
                raise InputError(f"by: expected {', '.join(DIMENSIONS)}, got {dimension!r}")
        if len(set(self.by)) < len(self.by) or len(set(self.by) & set(PERIODS)) > 1:
            raise InputError(f"by: expected each once, and one period at most, got {', '.join(self.by)}")
        for name, at_us in (("from", self.from_us), ("to", self.until_us)):
            if at_us is not None and at_us % QUARTER_US:
                shown = datetime.fromtimestamp(at_us / US_PER_S, UTC).isoformat()
                raise InputError(f"{name}: expected a time at a quarter of an hour, got {shown}")
        if self.from_us is not None and self.until_us is not None and self.from_us >= self.until_us:
            raise InputError("to: expected a time after that of from")

    @property
    def period(self) -> str:
        """Which one it is summed by; "": none."""
        return next((one for one in self.by if one in PERIODS), "")


@dataclass(frozen=True, slots=True)
class Holding:
    """Some GPU time, and the job that held the GPUs."""

    job: str
    user: str
    spell: Spell
    gpus_now: int = 0


def holdings_of(state: State, now_s: float) -> list[Holding]:
    """What the jobs in the state have held up to now."""
    holdings: list[Holding] = []
    for record in state.jobs.values():
        usage = record.usage
        own = [Holding(record.id, record.user, spell) for spell in usage.until(max(now_s, usage.since_s))]
        last = {holding.spell.gpu_type: place for place, holding in enumerate(own)}
        for gpu_type, gpus in usage.held:
            if (place := last.get(gpu_type)) is not None:  # else it holds them from this very moment on
                own[place] = replace(own[place], gpus_now=gpus)
        holdings += own
    return holdings


@dataclass(slots=True)
class Sums:
    """GPU time of one row in microseconds, by what it was for."""

    jobs: set[str] = field(default_factory=set)
    gpus: int = 0
    held_us: int = 0
    by_use_us: dict[Use, int] = field(default_factory=lambda: dict.fromkeys(Use, 0))
    charged_us: int = 0
    unpriced_us: int = 0
    costs: list[float] = field(default_factory=list)

    def as_json(self, is_priced: bool) -> dict[str, Any]:
        """A row without what it is of."""
        return {
            "jobs": len(self.jobs),
            "gpus": self.gpus,
            "gpu_hours": self.held_us / US_PER_HOUR,
            "gpu_seconds": self.held_us / US_PER_S,
            **{f"{use.value}_gpu_seconds": amount / US_PER_S for use, amount in self.by_use_us.items()},
            "charged_gpu_seconds": self.charged_us / US_PER_S,
            "unpriced_gpu_seconds": self.unpriced_us / US_PER_S if is_priced else None,
            "cost": round(math.fsum(self.costs), 6) if is_priced else None,
        }


Price = Callable[[str, int], float | None]  # of a GPU-hour of a type at a Unix time in microseconds


@dataclass
class Report:
    """Sums that grow with every holding that is added.

    shows: whether what a user held, or is charged for, is in it. price: None where no type has a price.
    changes_us: when prices change, in order.
    """

    question: Question
    now_us: int
    shows: Callable[[str], bool] = lambda user: True
    price: Price | None = None
    changes_us: Sequence[int] = ()
    rows: dict[tuple[str, ...], Sums] = field(default_factory=dict)
    _starts_us: list[int] = field(default_factory=list)  # of periods
    _labels: list[str] = field(default_factory=list)
    _edges_us: tuple[int, ...] = ()

    def begin(self, first_us: int) -> None:
        """Work out where periods begin. first_us: no holding begins before. Raises InputError."""
        question = self.question
        start_us = first_us if question.from_us is None else question.from_us
        until_us = self.now_us if question.until_us is None else question.until_us
        if question.period:
            for begins in starts(question.period, question.zone, start_us, until_us):
                self._starts_us.append(unix_us(begins))
                self._labels.append(begins.strftime("%Y-%m" if question.period == "month" else "%Y-%m-%d"))
                if len(self._labels) > MOST_PERIODS:
                    raise InputError(f"from: expected at most {MOST_PERIODS} of each {question.period}")
        ends = [at_us for at_us in (question.from_us, question.until_us) if at_us is not None]
        self._edges_us = tuple(sorted({*self._starts_us, *ends, *self.changes_us}))

    def add(self, holding: Holding) -> None:
        """Add one. Raises InputError where the answer becomes too long."""
        for spell in parts_of(holding.spell, self._edges_us):
            if self._is_asked(spell):
                self._add(holding, spell)
        if holding.gpus_now and self._is_asked_at(self.now_us) and self.shows(holding.user):
            self._row(holding.job, holding.user, holding.spell, self.now_us).gpus += holding.gpus_now

    def _is_asked(self, spell: Spell) -> bool:
        from_us, until_us = self.question.from_us, self.question.until_us
        begins = from_us is None or spell.from_us >= from_us
        return begins and (until_us is None or spell.from_us < until_us)

    def _is_asked_at(self, at_us: int) -> bool:
        from_us, until_us = self.question.from_us, self.question.until_us
        return (from_us is None or at_us >= from_us) and (until_us is None or at_us < until_us)

    def _add(self, holding: Holding, spell: Spell) -> None:
        if self.shows(holding.user):
            row = self._row(holding.job, holding.user, spell, spell.from_us)
            row.jobs.add(holding.job)
            row.held_us += spell.gpu_us
            row.by_use_us[spell.use] += spell.gpu_us
        job, user, queue = charged_to(holding.job, holding.user, spell)
        if not self.shows(user):
            return
        charged = self._row(job, user, spell, spell.from_us, queue)
        charged.charged_us += spell.gpu_us
        if self.price is not None:
            price = self.price(spell.gpu_type, spell.from_us)
            charged.unpriced_us += spell.gpu_us if price is None else 0
            charged.costs.append(0.0 if price is None else spell.gpu_us / US_PER_HOUR * price)

    def _row(self, job: str, user: str, spell: Spell, at_us: int, queue: str | None = None) -> Sums:
        period = self._labels[bisect_right(self._starts_us, at_us) - 1] if self._labels else ""
        queue = spell.queue if queue is None else queue
        values = {"user": user, "queue": queue, "type": spell.gpu_type, "job": job}
        key = tuple(values.get(dimension, period) for dimension in self.question.by)
        if key not in self.rows and len(self.rows) >= MOST_ROWS:
            raise InputError(f"by: more than {MOST_ROWS} rows: ask for fewer, or for a shorter time")
        return self.rows.setdefault(key, Sums())

    def as_json(self) -> list[dict[str, Any]]:
        """The rows, in the order of what they are of."""
        by = self.question.by
        return [
            {
                **{
                    ("period" if name in PERIODS else name): value
                    for name, value in zip(by, key, strict=True)
                },
                **sums.as_json(self.price is not None),
            }
            for key, sums in sorted(self.rows.items())
        ]


def charged_to(job: str, user: str, spell: Spell) -> tuple[str, str, str]:
    """The job, user and queue that some GPU time of a job is charged to: for lost time, its cause."""
    cause = spell.cause
    if spell.use is not Use.LOST or cause.kind is CauseKind.OWNER:
        return job, user, spell.queue
    return cause.name if cause.kind is CauseKind.JOB else "", cause.user, cause.queue


def parts_of(spell: Spell, edges_us: Sequence[int]) -> Iterator[Spell]:
    """The parts of a spell between these times, which are at quarters of an hour and in order."""
    if not spell.is_in_one_quarter:
        for at_us in edges_us[bisect_right(edges_us, spell.from_us) :]:
            if at_us >= spell.until_us:
                break
            before, spell = spell.cut(at_us)
            yield before
    yield spell


def first_us_of(holdings: Iterable[Holding], otherwise_us: int) -> int:
    """When the first of these begins."""
    return min((holding.spell.from_us for holding in holdings), default=otherwise_us)
