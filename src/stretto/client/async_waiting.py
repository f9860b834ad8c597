"""How an async client waits: others go on meanwhile. `waiting` is its blocking twin."""

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

Returned = TypeVar("Returned")


async def sleep(seconds: float) -> None:
    """Wait for a while."""
    await anyio.sleep(seconds)


async def apart(work: Callable[..., Returned], *given: Any) -> Returned:
    """What a function returns that may take long, in a thread of its own."""
    return await anyio.to_thread.run_sync(work, *given)
