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


class span:  # noqa: N801  (reads like a function, and is asked for several times in each decision)
    """One step of a decision, in a `with` block. Has no influence on what is decided."""

    __slots__ = ("_began_s", "_measured", "step")

    def __init__(self, step: str) -> None:
        self.step = step

    def __enter__(self) -> None:
        """Note the time, where spans are measured."""
        self._measured = _measured.get()
        if self._measured is not None:
            self._began_s = self._measured[1]()

    def __exit__(self, *raised: object) -> None:
        """Add what it took to the other spans of this step."""
        if self._measured is not None:
            laps, clock_s = self._measured
            laps[self.step] = laps.get(self.step, 0.0) + clock_s() - self._began_s
