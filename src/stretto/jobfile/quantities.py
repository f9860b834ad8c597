"""Durations, times, sizes and GPUs as people write them. Each raises ValueError for what it cannot read."""

import re
from datetime import UTC, datetime

from stretto.jobfile.parts import Accelerators, Array, When

DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|w|d|h|min|m|s)\s*)+", re.ASCII)
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|w|d|h|min|m|s)", re.ASCII)
UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}

MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?(?:[eE]\d{1,2})?)\s*([A-Za-z]*)", re.ASCII)
GB = {
    "b": 1e-9, "k": 1e-6, "m": 1e-3, "g": 1.0, "t": 1e3,
    "kb": 1e-6, "mb": 1e-3, "gb": 1.0, "tb": 1e3,
    "ki": 2**10 / 1e9, "mi": 2**20 / 1e9, "gi": 2**30 / 1e9, "ti": 2**40 / 1e9,
    "kib": 2**10 / 1e9, "mib": 2**20 / 1e9, "gib": 2**30 / 1e9, "tib": 2**40 / 1e9,
}  # fmt: skip

WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?", re.ASCII)
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
TYPE = re.compile(r"[A-Za-z0-9._-]{1,63}")
TRUE, FALSE = {"true", "yes", "on"}, {"false", "no", "off"}


def whole(text: str) -> int:
    """A whole number; underscores may group its digits."""
    bare = text.replace("_", "")
    if not WHOLE.fullmatch(bare):
        raise ValueError(text)
    return int(bare)


def number(text: str) -> float:
    """A finite number."""
    bare = text.replace("_", "")
    if not NUMBER.fullmatch(bare) or float(bare) in {float("inf"), float("-inf")}:
        raise ValueError(text)
    return float(bare)


def truth(text: str) -> bool:
    """Yes or no, in any of YAML's words."""
    if text.lower() not in TRUE | FALSE:
        raise ValueError(text)
    return text.lower() in TRUE


def duration_s(text: str) -> float:
    """Seconds of `90s`, `1h30m`, `1.5d`. A bare number is refused: it could be seconds, minutes or hours."""
    if len(text) > 64 or not DURATION.fullmatch(text.strip()):
        raise ValueError(text)
    return sum(float(amount) * UNIT_S[unit] for amount, unit in PART.findall(text))


def unix_s(text: str) -> float:
    """Unix time of an ISO date and time that says its zone."""
    try:
        parsed = datetime.fromisoformat(text.strip())
        if parsed.tzinfo is None:
            raise ValueError(text)
        return parsed.astimezone(UTC).timestamp()
    except OverflowError:
        raise ValueError(text) from None


def when(text: str) -> When:
    """A date with a zone, or a duration from the submission on."""
    if DURATION.fullmatch(text.strip()):
        return When(after_s=duration_s(text))
    return When(at_unix_s=unix_s(text))


def memory_gb(text: str, bare: str = "gb") -> float:
    """Gigabytes of `64GB`, `512Mi`; without a unit, of `bare`."""
    found = MEMORY.fullmatch(text.strip())
    if not found or (found[2] or bare).lower() not in GB:
        raise ValueError(text)
    return float(found[1]) * GB[(found[2] or bare).lower()]


def accelerators(text: str) -> Accelerators:
    """`A100:8`, `A100`, or `8` of any type."""
    if WHOLE.fullmatch(text):
        return Accelerators("", _gpus(text))
    gpu_type, colon, count = text.partition(":")
    if not TYPE.fullmatch(gpu_type):
        raise ValueError(text)
    if gpu_type.lower() == "any":
        gpu_type = ""
    return Accelerators(gpu_type, _gpus(count) if colon else 0)


def array(text: str) -> Array:
    """`10` (0 to 9), `0-15`, `1-9:2`, `1,3,8-10`; `%4` behind it: four at once."""
    listed, percent, at_once = text.replace(" ", "").partition("%")
    most = whole(at_once) if percent else None
    if listed.isdecimal():
        return Array(tuple(_span(0, whole(listed) - 1, 1)), most)
    indices: set[int] = set()
    listed_count = 0
    for part in listed.split(","):
        matched = RANGE.fullmatch(part)
        if not matched:
            raise ValueError(text)
        first = int(matched[1])
        span = _span(first, int(matched[2] or first), int(matched[3] or 1))
        listed_count += len(span)  # overlaps count again: a hundred thousand of them would take a minute
        if listed_count > MOST_INDICES:
            raise ValueError(text)
        indices.update(span)
    return Array(tuple(sorted(indices)), most)


MOST_INDICES = 10_000


def _span(first: int, last: int, step: int) -> range:
    if last < first or step < 1 or (last - first) // step >= MOST_INDICES:
        raise ValueError(f"{first}-{last}:{step}")
    return range(first, last + 1, step)


def _gpus(text: str) -> int:
    count = whole(text)
    if count < 1:
        raise ValueError(text)
    return count
