"""Waiting until something has changed, as every backend lets its service wait."""

import asyncio
from contextlib import suppress


class LongPoll:
    """A version that counts changes, and any number of waits for the next one."""

    def __init__(self) -> None:
        self.version = 1  # 0 comes before everything, so that a first wait ends at once
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Count a change, and end all waits."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()  # a new one, for waits that begin from now on

    async def wait(self, after: int, wait_s: float) -> int:
        """The version, once it is not `after` any more or `wait_s` is over."""
        if self.version == after:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        return self.version
