"""What GPUs were held for, by job and time of day: useful, lost to restarts, idle.

Times are whole microseconds, so that sums do not depend on their order. A job's time is a list of *spells*.
A spell has one number of GPUs from its beginning to its end, or it lies within one quarter of an hour of UTC.
So it can be cut exactly where a quarter begins, and days of all zones begin there. A job that is resized
every minute has some spells per quarter, and one that is never resized has one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile
from math import isnan

US_PER_S = 1_000_000
QUARTER_US = 900 * US_PER_S
MOST_LOOKED_AT = 16  # spells, for one to add to; chosen: a quarter has one of each type, use and cause


class Use(StrEnum):
    """What GPUs were held for."""

    USEFUL = "useful"  # training that was saved, or that ended for good
    UNSAVED = "unsaved"  # training since the last checkpoint: useful or lost, which is not known yet
    LOST = "lost"  # training since the last checkpoint before a stop, and the restart after it
    IDLE = "idle"  # held while nothing trained: the first start


class CauseKind(StrEnum):
    """What made a job lose time."""

    NONE = ""
    OWNER = "owner"  # the job failed, or its owner held, requeued or resized it
    JOB = "job"  # a job of higher priority took its GPUs
    POLICY = "policy"  # the policy gave its GPUs to others
    LENDER = "lender"  # nodes went back to their lender
    NODE = "node"  # a node was lost, or others killed its workers
    OPERATOR = "operator"  # a node was closed or drained


@dataclass(frozen=True, slots=True)
class Cause:
    """What is charged for lost time. Without a user it is the cluster."""

    kind: CauseKind = CauseKind.NONE
    name: str = ""  # of the other job, the policy, or the node
    user: str = ""
    queue: str = ""


NO_CAUSE = Cause()


@dataclass(frozen=True, slots=True)
class SizeChange:
    """From a time on a job holds so many GPUs of a type."""

    at_s: float  # on the clock of the service
    gpus: int
    gpu_type: str
    cause: Cause
    due: tuple[str, ...] = ()  # why the decision was made that says so; (): no decision


@dataclass(frozen=True, slots=True)
class Spell:
    """Some GPU time of a job. Times are Unix times in microseconds, as they were known then."""

    from_us: int
    until_us: int
    gpu_type: str
    queue: str
    use: Use
    cause: Cause
    gpu_us: int

    @property
    def is_in_one_quarter(self) -> bool:
        """Whether it need not be cut, and may be added to others."""
        return self.from_us // QUARTER_US == (self.until_us - 1) // QUARTER_US

    def cut(self, at_us: int) -> "tuple[Spell, Spell]":
        """Its parts before and after a time within it, at which a quarter of an hour begins."""
        gpus = self.gpu_us // (self.until_us - self.from_us)
        first = replace(self, until_us=at_us, gpu_us=gpus * (at_us - self.from_us))
        return first, replace(self, from_us=at_us, gpu_us=self.gpu_us - first.gpu_us)


@dataclass(slots=True)
class JobUsage:
    """The spells of a job; what it holds now comes on top."""

    spells: list[Spell] = field(default_factory=list)  # of which is known what they were for
    unsaved: list[Spell] = field(default_factory=list)  # training since the last checkpoint
    held: tuple[tuple[str, int], ...] = ()  # now: (type, GPUs), several where it trains on several types
    queue: str = ""
    since_s: float = 0.0  # on the clock of the service
    since_us: int = 0  # the same as a Unix time
    trains: bool = False
    cause: Cause | None = None  # of its last stop; None: it has not been stopped
    changed_by: Cause = NO_CAUSE  # who last changed what it holds
    lost_s: float = 0.0  # of training, in switches in place
    version: int = 0  # another one whenever a spell has changed

    def hold(self, held: Mapping[str, int], queue: str, now_s: float, unix_s: float) -> None:
        """From now on the job holds so many GPUs of each type, for a queue."""
        self.note(now_s, unix_s)
        self.held, self.queue = tuple(held.items()), queue

    def note(self, now_s: float, unix_s: float) -> None:
        """Add what has been held until now."""
        self.version += 1
        for spell in self.open_spells(now_s):
            _add(self.unsaved if self.trains else self.spells, spell)
        self.since_s, self.since_us = now_s, _us(unix_s + now_s)

    def open_spells(self, now_s: float) -> list[Spell]:
        """What has been held since the last change, of each type."""
        length_us = _us(now_s) - _us(self.since_s)
        if length_us <= 0:
            return []
        use = Use.UNSAVED if self.trains else Use.IDLE if self.cause is None else Use.LOST
        cause = self.cause if use is Use.LOST and self.cause is not None else NO_CAUSE
        until_us = self.since_us + length_us
        return [
            Spell(self.since_us, until_us, gpu_type, self.queue, use, cause, gpus * length_us)
            for gpu_type, gpus in self.held
        ]

    def until(self, now_s: float) -> Iterator[Spell]:
        """All of it up to now."""
        yield from self.spells
        yield from self.unsaved
        yield from self.open_spells(now_s)

    def settle(self, use: Use, cause: Cause = NO_CAUSE) -> None:
        """What became of the training that was not saved: it is useful, or lost."""
        self.version += 1
        for spell in self.unsaved:
            _add(self.spells, replace(spell, use=use, cause=cause))
        self.unsaved = []

    def lose(self, seconds: float, cause: Cause) -> None:
        """The newest training was lost for so long, although the attempt goes on."""
        self.version += 1
        left_us = 0 if isnan(seconds) else _us(max(seconds, 0.0))
        while left_us > 0 and self.unsaved:
            newest = self.unsaved[-1]
            length_us = newest.until_us - newest.from_us
            lost_us = min(left_us, length_us)
            left_us -= lost_us
            at_us = newest.until_us - lost_us
            together = _of_one_time(self.unsaved)  # of several types, which lose the same time
            del self.unsaved[-len(together) :]
            for spell in together:
                gpu_us = spell.gpu_us * lost_us // length_us
                if lost_us < length_us:
                    self.unsaved.append(replace(spell, until_us=at_us, gpu_us=spell.gpu_us - gpu_us))
                _add(self.spells, replace(spell, from_us=at_us, gpu_us=gpu_us, use=Use.LOST, cause=cause))


def _of_one_time(spells: Sequence[Spell]) -> list[Spell]:
    """The last of them, with those before it that begin and end when it does."""
    last = spells[-1]
    same = takewhile(
        lambda each: (each.from_us, each.until_us) == (last.from_us, last.until_us), reversed(spells)
    )
    return list(same)[::-1]


def _add(spells: list[Spell], spell: Spell) -> None:
    """Add a spell, to another of its kind where both lie in the same quarter of an hour."""
    if not spell.gpu_us:
        return
    if spell.is_in_one_quarter:
        quarter, key = spell.from_us // QUARTER_US, _key(spell)
        for place in range(len(spells) - 1, max(len(spells) - MOST_LOOKED_AT, 0) - 1, -1):
            other = spells[place]
            if other.from_us // QUARTER_US == quarter and other.is_in_one_quarter and _key(other) == key:
                spells[place] = replace(
                    other,
                    from_us=min(other.from_us, spell.from_us),
                    until_us=max(other.until_us, spell.until_us),
                    gpu_us=other.gpu_us + spell.gpu_us,
                )
                return
    spells.append(spell)


def _key(spell: Spell) -> tuple[object, ...]:
    return spell.gpu_type, spell.queue, spell.use, spell.cause


def _us(seconds: float) -> int:
    return round(seconds * US_PER_S)
