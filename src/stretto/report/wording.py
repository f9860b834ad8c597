"""Numbers as people read them: the unit that fits, three digits, a dash for what is not known."""

from dataclasses import dataclass
from math import floor, isfinite, log10

DASH = "–"
MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0


def digits(value: float, significant: int = 3) -> str:
    """The number with about `significant` digits, no exponent, thousands set apart by a thin space."""
    if not isfinite(value):
        return DASH if value != value else "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    places = max(0, significant - 1 - floor(log10(abs(value))))
    text = f"{value:,.{min(places, 6)}f}".replace(",", "\u2009")
    return text.rstrip("0").rstrip(".") if "." in text and abs(value) < 0.01 else text


def plain(value: float) -> str:
    """A round number as it is: 12, 0.5, 1 500."""
    return f"{value:,.12g}".replace(",", "\u2009") if isfinite(value) else digits(value)


def duration(seconds: float, significant: int = 3) -> str:
    """A time in the unit that people would choose: 350 ms, 42 s, 12 min, 0.54 h, 11.0 h, 5.2 d."""
    if not isfinite(seconds):
        return digits(seconds)
    size = abs(seconds)
    if size == 0:
        return "0 s"
    if size < 1:
        return f"{digits(seconds * 1e3, significant)} ms"
    if size < 1.5 * MINUTE_S:
        return f"{digits(seconds, min(significant, 2 if size < 10 else 3))} s"
    if size < 30 * MINUTE_S:
        return f"{digits(seconds / MINUTE_S, min(significant, 2))} min"
    if size < 100 * HOUR_S:
        return f"{digits(seconds / HOUR_S, min(significant, 2 if size < HOUR_S else 3))} h"
    return f"{digits(seconds / DAY_S, significant)} d"


def share(fraction: float) -> str:
    """A fraction as per cent, with a decimal only near the ends where it matters."""
    if not isfinite(fraction):
        return DASH
    percent = 100 * fraction
    exact = percent in (0.0, 100.0)
    return f"{percent:.1f} %" if not exact and (percent < 10 or percent > 99) else f"{percent:.0f} %"


def times(ratio: float) -> str:
    """A ratio as a multiple: 1.57×."""
    return f"{digits(ratio)}×" if isfinite(ratio) else DASH


def milliseconds(value: float) -> str:
    """A time given in milliseconds, in the unit that fits."""
    return duration(value / 1e3) if isfinite(value) else DASH


def plural(count: int, one: str, many: str = "") -> str:
    """'1 job', '160 jobs'."""
    return f"{plain(count)} {one if count == 1 else many or one + 's'}"


def listed(names: list[str] | tuple[str, ...]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit for a whole column, so that its figures can be compared at a glance."""

    name: str  # "h"; empty for plain numbers
    scale: float  # what one unit is in the metric's own unit
    places: int  # decimals

    def text(self, value: float) -> str:
        """The figure without its unit."""
        if not isfinite(value):
            return digits(value)
        return f"{value / self.scale:,.{self.places}f}".replace(",", "\u2009")


TIME_UNITS = ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"), (1.0, "s"))


def column_unit(quantity: str, values: list[float]) -> Unit:
    """The unit in which these figures of one quantity ("time", "ms", "share", "number", ...) read best."""
    finite = sorted(abs(value) for value in values if isfinite(value) and value)
    middle = finite[len(finite) // 2] if finite else 1.0
    if quantity == "share":
        return Unit("%", 0.01, 1)
    if quantity == "time":
        scale, name = next(
            ((scale, name) for scale, name in TIME_UNITS if middle >= (4 if name == "d" else 0.2) * scale),
            (1.0, "s"),
        )
        return Unit(name, scale, _places(middle / scale))
    if quantity == "ms":
        return Unit("ms", 1.0, _places(middle)) if middle < 1e4 else Unit("s", 1e3, _places(middle / 1e3))
    name = {"gpu_h": "GPU·h", "server_s": "server·s", "mb": "MB"}.get(quantity, "")
    return Unit(name, 1.0, 0 if quantity == "count" or all(v == int(v) for v in finite) else _places(middle))


def _places(typical: float) -> int:
    """Decimals that give a typical value about three digits."""
    return 0 if typical >= 100 else 1 if typical >= 10 else 2
