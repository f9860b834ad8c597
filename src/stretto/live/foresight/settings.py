"""Bounds of the settings that a what-if may name: users choose them, and the service pays in time."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass

from stretto.model import InputError
from stretto.scheduler.round import Scheduler

LARGEST_COUNT = 1_000  # of a setting that is a whole number; chosen
TIMES_USUAL = 10  # that its default may be multiplied by, where this gives more; chosen


def check_settings(scheduler: Scheduler, named: Iterable[str]) -> None:
    """Raise InputError for a named setting whose count would make a decision take for ever."""
    parts = {"policy": scheduler.policy, "place": scheduler.placer, "estimate": scheduler.estimator}
    for name in named:
        space, _, key = name.partition(".")
        part = parts.get(space)
        usual = {entry.name: entry.default for entry in fields(part)} if is_dataclass(part) else {}
        default, given = usual.get(key), getattr(part, key, None)
        if not isinstance(given, int) or isinstance(given, bool):
            continue
        most = max(LARGEST_COUNT, TIMES_USUAL * default if isinstance(default, int) else 0)
        if given > most:
            raise InputError(f"{name} in a what-if must be at most {most}, got {given}")
