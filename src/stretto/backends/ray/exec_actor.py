"""The actor that has one program beside a worker, on the worker's node, for as long as its line lasts.

Ray ends it with the gateway that began it. Its end of the line goes with it, and so does what it has started.
"""

import asyncio
import base64
import socket
from pathlib import Path
from typing import Any

from stretto.agent import run_directory

PIECE = 1 << 18  # bytes of one answer at most; chosen


class ExecActor:
    """An `agent.exec_session` of one worker. Its methods run beside each other."""

    def __init__(self, run: str) -> None:
        self.ours, theirs = socket.socketpair()
        with theirs:
            run_directory.spawn_exec_session(Path(run), theirs.fileno())
        self.opening = asyncio.Lock()
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def _line(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with self.opening:
            if self.streams is None:
                self.streams = await asyncio.open_unix_connection(sock=self.ours, limit=PIECE)
            return self.streams

    async def read(self, wait_s: float) -> dict[str, Any]:
        """What has come from the program, at its end nothing, which is said; waits for either for a while."""
        reader, _ = await self._line()
        try:
            async with asyncio.timeout(wait_s):
                data = await reader.read(PIECE)
        except TimeoutError:
            return {"data": "", "ends": False}
        except ConnectionError:
            data = b""
        return {"data": base64.b64encode(data).decode(), "ends": not data}

    async def write(self, data: str) -> None:
        """Hand bytes on, in base64; returns once there is room for more. Raises OSError."""
        _, writer = await self._line()
        writer.write(base64.b64decode(data))
        await writer.drain()
