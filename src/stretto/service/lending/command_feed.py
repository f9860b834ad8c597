"""A command that prints what a lender needs."""

import asyncio
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite, nan

EVERY_S = 15.0  # between two runs of a command; chosen
COMMAND_S = 30.0  # that one may take; chosen
ENDING_S = 5.0  # until a killed one is gone; chosen: one that waits for a dead disk cannot be killed
MOST_PRINTED = 1_000  # bytes of a number; chosen

log = logging.getLogger(__name__)


@dataclass
class CommandFeed:
    """A command for the shell that prints how many nodes are needed."""

    command: str
    every_s: float = EVERY_S
    most_s: float = COMMAND_S  # that a run may take
    _warned: str = field(default="", init=False, compare=False)  # of what, since it was last known

    async def need_at(self, now_s: float, nodes: int) -> tuple[float | None, float]:
        """What the command prints; not known where it fails, takes too long, or prints what cannot be."""
        answer = await self._answer(nodes)
        if isinstance(answer, float):
            self._warned = ""
            return answer, self.every_s
        if answer != self._warned:  # once: a command that fails does so every few seconds
            log.warning("the need of a lender is not known: %s", answer)
        self._warned = answer
        return None, self.every_s

    async def _answer(self, nodes: int) -> float | str:
        """The need, or why it is not known."""
        try:
            async with asyncio.timeout(self.most_s):
                status, printed = await _run(self.command)
        except TimeoutError:
            return f"{self.command!r:.200} took longer than {self.most_s:g} s"
        except OSError as wrong:  # too many open files or processes, or a command that is too long
            return f"{self.command!r:.200} cannot be run: {wrong.strerror}"
        if len(printed) > MOST_PRINTED:
            return f"{self.command!r:.200} printed more than {MOST_PRINTED} bytes"
        need = nan
        with suppress(ValueError):
            need = float(printed.decode(errors="replace"))
        if status != 0 or not isfinite(need) or need < 0:
            got = f"got {printed!r:.80} and status {status}"
            return f"expected a number of nodes of {self.command!r:.200}, {got}"
        if need > nodes:
            return f"{self.command!r:.200} says {need:g}, and the lender has {nodes}"
        return need


async def _run(command: str) -> tuple[int | None, bytes]:
    """(status, what it printed) of a command. Nothing that it began is left; more than most bytes end it."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(reading, False)
        try:
            # The pipe is ours. Python would wait for the end of one of its own, and whatever the command has
            # left behind may keep that open for ever.
            process = await asyncio.create_subprocess_shell(
                command, stdin=asyncio.subprocess.DEVNULL, stdout=writing, start_new_session=True
            )
        finally:
            os.close(writing)
        return await _ended(process, reading)
    finally:
        os.close(reading)


async def _ended(process: asyncio.subprocess.Process, reading: int) -> tuple[int | None, bytes]:
    printed, loop = bytearray(), asyncio.get_running_loop()

    def read_on() -> None:
        with suppress(BlockingIOError):
            piece = os.read(reading, MOST_PRINTED + 1 - len(printed))
            printed.extend(piece)
            if not piece or len(printed) > MOST_PRINTED:
                loop.remove_reader(reading)
            if len(printed) > MOST_PRINTED:
                _kill(process.pid)

    loop.add_reader(reading, read_on)
    try:
        await process.wait()
    finally:
        loop.remove_reader(reading)
        # Also where the shell has ended: what it began has its group still. The number of a group that is
        # gone is not given again so soon.
        _kill(process.pid)
        if process.returncode is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING_S):
                    await process.wait()
    if len(printed) <= MOST_PRINTED:
        read_on()  # what it printed last
    return process.returncode, bytes(printed)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or of another user, as after sudo
        os.killpg(group, signal.SIGKILL)
