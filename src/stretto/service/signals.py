"""Signals that end the service in its own time."""

import asyncio
import signal
from contextlib import suppress
from types import TracebackType
from typing import Self


class StopSignals:
    """Within the block, SIGTERM, SIGINT and SIGHUP set an event instead of ending the process."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._numbers: list[int] = []

    def __enter__(self) -> Self:
        hung_up = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []  # by nohup
        for number in (signal.SIGTERM, signal.SIGINT, *hung_up):
            with suppress(NotImplementedError, ValueError, RuntimeError):  # not in this thread
                asyncio.get_running_loop().add_signal_handler(number, self._event.set)
                self._numbers.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def wait(self) -> None:
        """Return once such a signal has come."""
        await self._event.wait()
