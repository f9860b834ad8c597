"""How a client waits: it keeps its thread. What `async_waiting` does without that."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

Returned = TypeVar("Returned")


def sleep(seconds: float) -> None:
    """Wait for a while."""
    time.sleep(seconds)


def apart(work: Callable[..., Returned], *given: Any) -> Returned:
    """What a function returns that may take long."""
    return work(*given)
