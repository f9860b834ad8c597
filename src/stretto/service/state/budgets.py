"""Budgets: how much GPU time, or cost, some jobs may be charged for in a day, a week or a month.

What has been used is not kept here. It follows from the usage of jobs, also of those that have left memory.
The service adds it up (`service/budgets.py`), and an event says when a budget comes to another level. So
decisions depend on the log alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from zoneinfo import ZoneInfo

from stretto.service.state.usage import US_PER_S

MOST_BUDGETS = 1_000  # chosen: each is looked at again whenever usage grows


class Unit(StrEnum):
    """What a budget counts."""

    GPU_HOURS = "gpu_hours"  # that are charged
    COST = "cost"  # of these, at the prices of their time


class Level(StrEnum):
    """How far a budget has been used in its period."""

    NONE = ""
    WARN = "warn"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Budget:
    """So much in each period, for the jobs of a user, of a queue and those in it, or for all jobs."""

    name: str
    unit: Unit
    amount: float
    period: str  # day, week, month
    zone: str = "UTC"  # in which they begin
    user: str = ""  # "": of all users
    queue: str = ""  # "": of all queues
    warn: float = 0.0  # share of the amount from which on it warns; 0: never
    hold: float = 0.0  # share from which on its jobs wait for the next period; 0: never
    stops: bool = False  # then jobs that run are stopped, too; else they go on, and do not grow
    notify: tuple[str, ...] = ()  # addresses that are told
    set_by: str = ""  # whose secret signs what is told

    def covers(self, user: str, queues: Collection[str]) -> bool:
        """Whether it counts what is charged to a user in a queue. queues: that queue and those around it."""
        return self.user in ("", user) and (not self.queue or self.queue in queues)

    def level_at(self, used: float) -> Level:
        """The level that so much of it means."""
        if self.hold and used >= self.hold * self.amount:
            return Level.HOLD
        return Level.WARN if self.warn and used >= self.warn * self.amount else Level.NONE

    def next_threshold(self, used: float) -> float | None:
        """What has to be used for the next level; None: there is none."""
        later = [share * self.amount for share in (self.warn, self.hold) if share * self.amount > used]
        return min(later, default=None)

    @property
    def whose(self) -> str:
        """Which jobs it is for, in words."""
        whom = [f"user {self.user}"] if self.user else []
        whom += [f"queue {self.queue}"] if self.queue else []
        return ", ".join(whom) or "all jobs"

    def words(self, used: float) -> str:
        """How much of it is used, in words."""
        unit = "GPU-hours" if self.unit is Unit.GPU_HOURS else "of cost"
        return f"budget {self.name}: {used:.2f} of {self.amount:g} {unit} are used this {self.period}"

    def until_in_words(self, until_us: int) -> str:
        """The end of a period, in its zone."""
        at = datetime.fromtimestamp(until_us / US_PER_S, ZoneInfo(self.zone))
        return f"{at:%Y-%m-%d %H:%M} {self.zone}"


@dataclass(frozen=True, slots=True)
class Reached:
    """The level of a budget in one period. Times are Unix times in microseconds."""

    level: Level
    from_us: int
    until_us: int
    used: float  # when it came to this level


@dataclass
class Budgets:
    """All of them by name, and the levels that they have reached."""

    by_name: dict[str, Budget] = field(default_factory=dict)
    reached: dict[str, Reached] = field(default_factory=dict)  # in their latest period with any level

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.by_name)

    def set(self, budget: Budget) -> None:
        """From now on it is so; its level is told anew."""
        self.by_name[budget.name] = budget
        self.reached.pop(budget.name, None)

    def delete(self, name: str) -> None:
        """There is none of this name."""
        self.by_name.pop(name, None)
        self.reached.pop(name, None)

    def level(self, name: str, at_us: int) -> Level:
        """The level of a budget at a time: none, where the period of its last level is over."""
        reached = self.reached.get(name)
        return reached.level if reached is not None and at_us < reached.until_us else Level.NONE

    def holding(self, at_us: int) -> list[tuple[Budget, Reached]]:
        """Budgets whose jobs wait at a time, and until when, by name."""
        return [
            (self.by_name[name], reached)
            for name, reached in sorted(self.reached.items())
            if reached.level is Level.HOLD and at_us < reached.until_us
        ]


def longest_hold(
    holds: Sequence[tuple[Budget, Reached]], user: str, queues: Collection[str]
) -> tuple[Budget, Reached] | None:
    """Of budgets that hold jobs, the one that does so for the longest for those of a user in a queue."""
    of_these = [hold for hold in holds if hold[0].covers(user, queues)]
    return max(of_these, key=lambda hold: hold[1].until_us, default=None)
