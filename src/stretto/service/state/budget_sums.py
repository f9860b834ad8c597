"""What is charged in one period, by account, GPU type and price: whole microseconds, so that sums are exact.

A job's part is replaced when its usage has changed. What a job holds now is not in it: it grows by itself.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.model.queue import line_of
from stretto.service.state.budgets import Budget, Unit
from stretto.service.state.gpu_prices import GpuPrices
from stretto.service.state.records import JobRecord
from stretto.service.state.usage import Spell
from stretto.service.state.usage_report import US_PER_HOUR, charged_to, parts_of

# User, queue, GPU type, and the price of an hour of one GPU; None: it had none
Key = tuple[str, str, str, float | None]


@dataclass
class PeriodSums:
    """GPU-microseconds that are charged in a period. Times are Unix times in microseconds."""

    from_us: int
    until_us: int
    prices: GpuPrices
    total: Counter[Key] = field(default_factory=Counter)
    _of_job: dict[str, tuple[int, Counter[Key]]] = field(default_factory=dict)  # by the version of its usage
    _edges_us: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        """Spells are cut where the period ends, and where prices change."""
        self._edges_us = sorted({self.from_us, self.until_us, *self.prices.changes_us()})

    def take(self, record: JobRecord) -> None:
        """Count what a job has held before now, instead of what was counted of it."""
        usage = record.usage
        version, before = self._of_job.get(record.id, (-1, None))
        if version == usage.version:
            return
        if before is not None:
            self.total.subtract(before)
        now = self.charges(record.id, record.user, (*usage.spells, *usage.unsaved))
        self.total.update(now)
        self._of_job[record.id] = usage.version, now

    def forget(self, jobs: Mapping[str, object]) -> None:
        """What jobs that are not among these were charged for stays as it is: they have left."""
        for name in [name for name in self._of_job if name not in jobs]:
            del self._of_job[name]

    def charges(self, job: str, user: str, spells: Iterable[Spell]) -> Counter[Key]:
        """What some GPU time of a job is charged to, as far as it is in the period."""
        charged: Counter[Key] = Counter()
        for spell in spells:
            if spell.until_us <= self.from_us or spell.from_us >= self.until_us:
                continue
            _, charged_user, queue = charged_to(job, user, spell)
            for part in parts_of(spell, self._edges_us):
                if self.from_us <= part.from_us < self.until_us:
                    price = self.prices.at(part.gpu_type, part.from_us)
                    charged[charged_user, queue, part.gpu_type, price] += part.gpu_us
        return charged

    def open_charges(self, records: Iterable[JobRecord], now_s: float) -> Counter[Key]:
        """What these jobs are charged for since their last change, up to a time of the service."""
        charged: Counter[Key] = Counter()
        for record in records:
            charged.update(self.charges(record.id, record.user, record.usage.open_spells(now_s)))
        return charged


def rates(records: Iterable[JobRecord], prices: GpuPrices, at_us: int) -> Counter[Key]:
    """GPU-microseconds a second that jobs are charged for now."""
    per_s: Counter[Key] = Counter()
    for record in records:
        for spell in record.usage.open_spells(record.usage.since_s + 1.0):
            _, user, queue = charged_to(record.id, record.user, spell)
            per_s[user, queue, spell.gpu_type, prices.at(spell.gpu_type, at_us)] += spell.gpu_us
    return per_s


def used_of(budget: Budget, sums: Sequence[Mapping[Key, int]], parents: Mapping[str, str]) -> float:
    """What these sums mean for a budget, in its unit. parents: of queues that are in others."""
    covers = _coverage(budget, parents)
    mine = [(key[3], gpu_us) for each in sums for key, gpu_us in each.items() if covers(key[0], key[1])]
    if budget.unit is Unit.GPU_HOURS:
        return sum(gpu_us for _, gpu_us in mine) / US_PER_HOUR
    return math.fsum(gpu_us * price for price, gpu_us in mine if price is not None) / US_PER_HOUR


def _coverage(budget: Budget, parents: Mapping[str, str]) -> Callable[[str, str], bool]:
    lines: dict[str, list[str]] = {}

    def covers(user: str, queue: str) -> bool:
        if queue not in lines:
            lines[queue] = line_of(queue, parents)
        return budget.covers(user, lines[queue])

    return covers
