"""The time of day, compared with clocks that cannot be set: a wrong setting, or a right one, is noticed.

In one run of the machine, the time of day moves on exactly as the clock that counts what has passed since the
start (CLOCK_BOOTTIME). Where it does not, it was set, and which time is right is unknown. So
named times (reservations, deadlines, starts) stay where they were, counted in seconds, until the new time of
day has stood for an hour. Small steps are followed at once. So is the clock of a machine that seems to have
been off for less than a week, which is what machines usually are.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from stretto.service.eventlog.clock import Clock, Reading, read_clocks
from stretto.service.eventlog.writer import LogWriter
from stretto.service.state.calendar import SMALL_S, Calendar
from stretto.service.state.events import ClockSet

CHECK_S = 5.0  # between two looks; chosen
TOLERANCE_S = 2.0  # chosen: a leap second and a slow step of NTP are no news
SETTLE_S = 3600.0  # until a time of day that has jumped counts; chosen: NTP, or a person, has spoken by then
LONGEST_OFF_S = 7 * 86_400.0  # that a machine was off, as far as its clock is believed at once; chosen

log = logging.getLogger(__name__)


def noticed(calendar: Calendar, now_s: float, reading: Reading) -> ClockSet | None:
    """What is to be recorded of the clocks; None where they agree with what is known. Pure.

    now_s: on the clock of the service, at the moment of the reading.
    """
    unix_s, last = reading.unix_s - now_s, calendar.latest
    was_off = -SMALL_S <= unix_s - calendar.bound_unix_s <= LONGEST_OFF_S or not calendar.has_begun
    if last is None or not reading.follows(last):
        if was_off:
            return _clock_set(now_s, reading, unix_s, 0.0)
        return _clock_set(now_s, reading, calendar.bound_unix_s, unix_s - calendar.unix_s)
    slept_s = (reading.passed_s - last.passed_s) - (reading.awake_s - last.awake_s)
    jumped_s = unix_s - (last.unix_s + slept_s)
    bound_unix_s = calendar.bound_unix_s + slept_s
    since_s = calendar.unsettled_since_s
    stands = abs(jumped_s) <= TOLERANCE_S
    has_settled = since_s is not None and stands and now_s - since_s >= SETTLE_S
    if stands and slept_s <= TOLERANCE_S and not has_settled:
        return None
    is_of_this_run = calendar.bound_boot == reading.boot
    if has_settled or abs(unix_s - bound_unix_s) <= SMALL_S or (was_off and not is_of_this_run):
        bound_unix_s = unix_s
    return _clock_set(now_s, reading, bound_unix_s, 0.0 if stands else jumped_s)


def _clock_set(now_s: float, reading: Reading, bound_unix_s: float, jumped_s: float) -> ClockSet:
    return ClockSet(
        round(now_s, 6),
        round(reading.unix_s - now_s, 6),
        round(bound_unix_s, 6),
        reading.boot,
        round(reading.awake_s, 6),
        round(reading.passed_s, 6),
        round(jumped_s, 3),
    )


@dataclass
class ClockWatch:
    """Looks at the clocks now and then, and records what it notices."""

    log_writer: LogWriter
    clock: Clock
    read: Callable[[], Reading] = read_clocks

    async def run(self) -> None:
        """Look until cancelled. A clock that goes faster than others has no time of day."""
        while self.clock.pace == 1.0:
            await asyncio.sleep(CHECK_S)
            if event := self.look():
                await self.log_writer.record(event)

    def look(self) -> ClockSet | None:
        """What is to be recorded now; what people should know of it is logged."""
        calendar = self.log_writer.state.calendar
        event = noticed(calendar, self.clock.now_s(), self.read())
        if event is None:
            return None
        if abs(event.jumped_s) > SMALL_S:
            log.warning("%s", words_of(event))
        elif calendar.unsettled_since_s is not None and event.bound_unix_s == event.unix_s:
            log.warning("the time of day counts from now on for reservations, deadlines and starts")
        return event


def words_of(event: ClockSet) -> str:
    """What has happened to the time of day, on one line."""
    jumped_s = round(abs(event.jumped_s))
    days, rest = divmod(jumped_s, 86_400)
    length = f"{days} d {rest // 3600} h" if days else f"{rest // 3600} h {rest % 3600 // 60} min"
    jump = f"the time of day has jumped {'ahead' if event.jumped_s > 0 else 'back'} by {length}"
    if abs(event.unix_s - event.bound_unix_s) <= SMALL_S:
        return f"{jump}: it is again what it was"
    return f"{jump}: reservations, deadlines and starts stay where they were, until it has stood for an hour"
