"""Which times of day belong to times of the service.

The service counts the seconds that it knows to have passed. The time of day is something else: it can be
set, and while the machine is off it goes on. So each run of the machine has an offset of its own, from the
clock of the service to the time of day. A later one may correct it.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from stretto.service.state.events import ClockSet

SMALL_S = 60.0  # a difference that changes nothing for people, such as a step of NTP; chosen


@dataclass(frozen=True, slots=True)
class Span:
    """From a time of the service on, the time of day is so much more."""

    from_s: float
    unix_s: float  # the offset
    boot: str  # the run of the machine


@dataclass
class Calendar:
    """The offsets so far. Named times (reservations, deadlines, starts) are kept by `bound_unix_s`.

    That is the newest offset, unless the time of day has jumped and it is not sure yet which is right.
    """

    bound_unix_s: float = 0.0
    bound_boot: str = ""  # in which run of the machine that was the offset
    latest: ClockSet | None = None  # the newest reading
    unsettled_since_s: float | None = None  # when the time of day jumped; None: named times follow it
    jumps: int = 0  # noticed so far
    _spans: list[Span] = field(default_factory=list)
    _shown: list[float] = field(default_factory=list)  # offsets by which each span is shown

    @property
    def has_begun(self) -> bool:
        """Whether any offset is known."""
        return bool(self._spans)

    @property
    def unix_s(self) -> float:
        """The offset now."""
        return self._spans[-1].unix_s if self._spans else 0.0

    @property
    def jumped_s(self) -> float:
        """By how much the time of day is ahead of what named times are kept by; 0 where that is settled."""
        return 0.0 if self.unsettled_since_s is None else self.unix_s - self.bound_unix_s

    def unix_at(self, at_s: float) -> float:
        """The time of day at a time of the service."""
        if not self._spans:
            return at_s
        place = max(bisect_right(self._spans, at_s, key=lambda span: span.from_s) - 1, 0)
        return at_s + self._shown[place]

    def begin(self, unix_s: float) -> None:
        """The log begins."""
        self.bound_unix_s = unix_s
        self._spans = [Span(0.0, unix_s, "")]
        self._settle_shown()

    def set(self, event: ClockSet, now_s: float) -> None:
        """The clocks were read. Within one run of the machine the newest reading is right for all of it."""
        newest = self._spans[-1] if self._spans else Span(0.0, event.unix_s, event.boot)
        is_new = event.unix_s != newest.unix_s
        self.jumps += event.jumped_s != 0.0
        if newest.boot == event.boot and event.jumped_s:
            self._spans = [
                replace(span, unix_s=span.unix_s + event.jumped_s) if span.boot == event.boot else span
                for span in self._spans
            ]
        if newest.boot != event.boot or self._spans[-1].unix_s != event.unix_s:
            self._spans.append(Span(event.read_s, event.unix_s, event.boot))
        self._repair()
        self._settle_shown()
        self.latest, self.bound_unix_s = event, event.bound_unix_s
        if event.bound_unix_s == event.unix_s:
            self.bound_boot = event.boot
        if abs(event.unix_s - event.bound_unix_s) <= SMALL_S:
            self.unsettled_since_s = None
        elif is_new or self.unsettled_since_s is None:
            self.unsettled_since_s = now_s

    def _repair(self) -> None:
        """A run of the machine whose clock was behind that of the runs before and after it was wrong."""
        if len(self._spans) > 2:
            before, middle, after = self._spans[-3:]
            if middle.boot and middle.unix_s < before.unix_s <= after.unix_s:
                self._spans[-2] = replace(middle, unix_s=before.unix_s)

    def _settle_shown(self) -> None:
        """Time never runs backwards: a run whose clock was ahead of a later one's was wrong.

        Not before the first reading: then the clock of the service itself has followed the time of day.
        """
        least, shown = float("inf"), []
        for span in reversed(self._spans):
            shown.append(min(span.unix_s, least) if span.boot else span.unix_s)
            least = min(least, span.unix_s)
        self._shown = shown[::-1]
