"""Measuring the steps of a decision without touching it: spans that cost nothing while none are measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_measured: ContextVar[tuple[dict[str, float], Callable[[], float]] | None] = ContextVar(
    "measured", default=None
)


@contextmanager
def lapping(clock_s: Callable[[], float]) -> Iterator[dict[str, float]]:
    """Measure in this block by `clock_s`, as `time.perf_counter`; yields seconds by span, growing.

    The clock is passed in because decisions read none: only code that measures them has one.
    """
    laps: dict[str, float] = {}
    token = _measured.set((laps, clock_s))
    try:
        yield laps
    finally:
        _measured.reset(token)


@contextmanager
def span(step: str) -> Iterator[None]:
    """One step of a decision. Has no influence on what is decided."""
    measured = _measured.get()
    if measured is None:
        yield
        return
    laps, clock_s = measured
    began_s = clock_s()
    try:
        yield
    finally:
        laps[step] = laps.get(step, 0.0) + clock_s() - began_s
