"""What values of a job file may look like. Each check raises InputError naming key, value and expectation."""

import re
from math import isfinite

from stretto.model import InputError

LONGEST_NAME = 63
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
LABEL = re.compile(r"[A-Za-z0-9._/-]{1,128}")  # keys as on Kubernetes: a prefix may stand before the name
ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
RESERVED = "STRETTO_"  # environment variables that workers get from us
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

LONGEST_TEXT = 1 << 20
LONGEST_PATH = 4096
MOST_GPUS = 1_000_000  # chosen: far beyond any cluster; a slip should not fill the memory
MOST_SAMPLES = 2**53
LONGEST_S = 10 * 365 * 86_400.0  # chosen: ten years
LATEST_UNIX_S = 253_402_300_800.0  # the end of the year 9999
LARGEST_PRIORITY = 1_000_000


def shown(value: object) -> str:
    """A value as it stands in a message: on one line, and not long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def plain(text: str, longest: int = 80) -> str:
    """A text of somebody else's inside a message: on one line, and not long."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def wrong(key: str, expected: str, value: object) -> InputError:
    """What to raise for a value."""
    return InputError(f"{key} must be {expected}, got {shown(value)}")


def check_name(key: str, value: str) -> None:
    """A name: of jobs, queues and whatever becomes part of a path or an address."""
    if not NAME.fullmatch(value) or value in {".", ".."}:
        raise wrong(key, "a name of 1 to 63 letters, digits, dots, dashes and underscores", value)


def check_text(key: str, value: str, longest: int = LONGEST_TEXT) -> None:
    """A text that a process can be given."""
    if "\0" in value:
        raise wrong(key, "a text without NUL", value)
    if len(value) > longest:
        raise wrong(key, f"a text of at most {longest} characters", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(key, "a text that UTF-8 can hold", value) from None


def check_line(key: str, value: str, longest: int = 256) -> None:
    """A text on one line."""
    check_text(key, value, longest)
    if CONTROL.search(value):
        raise wrong(key, "a text without control characters", value)


def check_path(key: str, value: str) -> None:
    """A path that stays below where it starts."""
    check_line(key, value, LONGEST_PATH)
    if ".." in value.split("/"):
        raise wrong(key, "a path without '..'", value)


def check_count(key: str, value: int | None, at_least: int = 1, at_most: int = MOST_GPUS) -> None:
    """A whole number within bounds; None passes."""
    if value is not None and not at_least <= value <= at_most:
        raise wrong(key, f"a whole number from {at_least} to {at_most}", value)


def check_number(key: str, value: float | None, above: float, at_most: float) -> None:
    """A finite number within bounds; None passes."""
    if value is not None and not (isfinite(value) and above < value <= at_most):
        raise wrong(key, f"a number above {above:g} and at most {at_most:g}", value)


def check_seconds(key: str, value: float | None, at_least: float = 0.0) -> None:
    """A duration; None passes."""
    if value is not None and not (isfinite(value) and at_least <= value <= LONGEST_S):
        bound = f"of at least {at_least:g} s and " if at_least else ""
        raise wrong(key, f"a duration {bound}of at most ten years", f"{value:g}s")
