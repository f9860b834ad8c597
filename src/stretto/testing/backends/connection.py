"""One connection to a cluster for many tests: to open one takes seconds where it needs a process."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from stretto.backends.protocol import Backend
from stretto.testing.backends.world import World

Found = TypeVar("Found")


class Connection:
    """A loop that always runs, in a thread of its own, and a backend that lives in it once asked for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.backend: Backend | None = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, story: Coroutine[Any, Any, Found]) -> Found:
        """What a story comes to, which is played in the loop."""
        playing = asyncio.run_coroutine_threadsafe(story, self.loop)
        try:
            return playing.result()
        except BaseException:
            playing.cancel()
            raise

    async def opened(self) -> Backend:
        """The backend. Within the loop."""
        if self.backend is None:
            self.backend = await self.world.open()
        return self.backend

    async def drop(self) -> None:
        """The next test gets a new backend. Within the loop."""
        backend, self.backend = self.backend, None
        if backend is not None:
            await backend.close()

    def close(self) -> None:
        """End loop and thread."""
        self.run(self.drop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
