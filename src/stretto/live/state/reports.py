"""What of a worker's report is believed: scripts write reports, and decisions are made of them.

What is not of its kind is left out, so that nothing that a script says can break a decision; keys that we
do not know are kept as they are, as long as they are small.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from stretto.model import InputError

LARGEST_REPORT = 64  # keys of a report; chosen
LONGEST_LIST, LONGEST_TEXT, DEEPEST = 4096, 1024, 3  # chosen: a report is some hundred bytes
MOST_COUNTED = 2**53  # beyond, floats cannot tell two counts apart


def checked_report(said: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what is no number, text or short list, or not what its name says.

    Raises InputError for one with too many entries.
    """
    if len(said) > LARGEST_REPORT:
        raise InputError(f"a report must have at most {LARGEST_REPORT} entries, got {len(said)}")
    return {
        str(key): value
        for key, value in said.items()
        if key != "worker" and _plain(value) and (value is None or _KINDS.get(key, _anything)(value))
    }


def _anything(value: Any) -> bool:
    return True


def _never(value: Any) -> bool:
    return False


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _amount(value: Any) -> bool:
    """At least 0."""
    return _number(value) and 0 <= value <= MOST_COUNTED


def _count(value: Any) -> bool:
    return isinstance(value, int) and _amount(value)


def _some(value: Any) -> bool:
    return _count(value) and value > 0


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _points(value: Any) -> bool:
    """[nodes, gpus, local_batch, passes of a step, grad_s of a pass, step_s of all passes], each."""
    return isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 6 and all(map(_amount, point)) for point in value
    )


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("step", "epoch", "samples"), _count),
    **dict.fromkeys(("dataset_samples", "init_batch", "max_batch", "max_local", "min_local"), _some),
    **dict.fromkeys(("progress_steps", "left_s", "grad_sqr", "grad_var"), _amount),
    **dict.fromkeys(("loss", "metric"), _number),
    **dict.fromkeys(("finished", "accumulates", "epoch_end", "in_place"), _truth),
    "profile": _never,  # is for those who measure; scripts report what they see
    "batch": _some,
    "points": _points,
    "epoch_metrics": _numbers,
}


def _plain(value: Any, depth: int = DEEPEST) -> bool:
    """JSON of bounded size whose numbers are finite."""
    if value is None or isinstance(value, bool | str):
        return not isinstance(value, str) or len(value) <= LONGEST_TEXT
    if isinstance(value, int | float):
        return isfinite(value) if isinstance(value, float) else abs(value) <= MOST_COUNTED
    if depth and isinstance(value, list):
        return len(value) <= LONGEST_LIST and all(_plain(one, depth - 1) for one in value)
    if depth and isinstance(value, dict):
        return len(value) <= LARGEST_REPORT and all(_plain(one, depth - 1) for one in value.values())
    return False
