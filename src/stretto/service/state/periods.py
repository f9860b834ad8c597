"""Days, weeks and months of a time zone, as Unix times in microseconds."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from stretto.service.state.usage import US_PER_S

PERIODS = ("day", "week", "month")


def starts(period: str, zone: ZoneInfo, from_us: int, until_us: int) -> Iterator[datetime]:
    """Beginnings of periods, from the one in which a time lies on, up to another time."""
    day = datetime.fromtimestamp(from_us / US_PER_S, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        day -= timedelta(days=day.weekday())
    elif period == "month":
        day = day.replace(day=1)
    while day.timestamp() * US_PER_S <= max(until_us, from_us):
        yield day
        day = _next(period, day)


def period_around(period: str, zone: ZoneInfo, at_us: int) -> tuple[int, int]:
    """When the period begins in which a time lies, and when it ends."""
    begins = next(starts(period, zone, at_us, at_us))
    return unix_us(begins), unix_us(_next(period, begins))


def unix_us(at: datetime) -> int:
    """A time as Unix microseconds; periods begin at whole seconds."""
    return round(at.timestamp()) * US_PER_S


def _next(period: str, begins: datetime) -> datetime:
    if period == "month":
        return (begins + timedelta(days=32)).replace(day=1)
    return begins + timedelta(days=7 if period == "week" else 1)
