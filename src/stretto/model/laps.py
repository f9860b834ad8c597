"""Measuring the steps of a decision without touching it: spans that cost nothing while nobody measures."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_laps: ContextVar[dict[str, float] | None] = ContextVar("laps", default=None)


@contextmanager
def lapping() -> Iterator[dict[str, float]]:
    """Measure in this block; yields seconds by span, growing."""
    laps: dict[str, float] = {}
    token = _laps.set(laps)
    try:
        yield laps
    finally:
        _laps.reset(token)


@contextmanager
def span(step: str) -> Iterator[None]:
    """One step of a decision. Has no influence on what is decided."""
    laps = _laps.get()
    if laps is None:
        yield
        return
    began = time.perf_counter()
    try:
        yield
    finally:
        laps[step] = laps.get(step, 0.0) + time.perf_counter() - began
