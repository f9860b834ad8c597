"""Processes that work for users, with limits of time and memory; each user has one turn at a time."""

import asyncio
import os
import pickle
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stretto.live.pool.calls import LENGTH, Answer, Call, frame
from stretto.live.pool.turns import Turns
from stretto.model import InputError

IDLE_S = 120.0  # after which a process that nobody needs is ended; chosen
LATE_S = 5.0  # beyond its time, until a process is killed that the kernel has not ended; chosen
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Work = tuple[Callable[..., Any], tuple[Any, ...]]  # a function that can be imported, and its arguments


class OutOfTime(Exception):
    """A call took longer than it may."""


class OutOfMemory(Exception):
    """A call needed more memory than it may have."""


class Closed(Exception):
    """The service is ending."""


@dataclass
class Pool:
    """Starts processes when they are needed, uses them again, and ends them when they are not.

    A process whose caller has gone, or whose call went beyond its limits, is killed.
    """

    turns: Turns
    most_s: float  # of wall time, for a call
    most_bytes: int  # of memory, for a call
    nice: int = 0
    closed: bool = False
    idle: list[Process] = field(default_factory=list)
    _busy: set["asyncio.Task[Any]"] = field(default_factory=set)
    _ended: list[Process] = field(default_factory=list)  # killed, perhaps not gone yet
    _retiring: asyncio.TimerHandle | None = None

    async def call(self, user: str, prepare: Callable[[], Awaitable[Work]]) -> Any:
        """What the work gives, which is prepared as soon as the user's turn has come.

        Raises TooManyWaiting, OutOfTime, OutOfMemory, Closed, and InputError where the work does. Whoever
        cancels this stops the work.
        """
        if self.closed:
            raise Closed
        task = asyncio.ensure_future(self._called(user, prepare))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self.closed:
                raise Closed from None
            raise

    async def _called(self, user: str, prepare: Callable[[], Awaitable[Work]]) -> Any:
        async with self.turns.turn(user):
            function, arguments = await prepare()
            call = Call(function, arguments, self.most_s, self.most_bytes)
            body = await asyncio.to_thread(pickle.dumps, call, pickle.HIGHEST_PROTOCOL)
            process = self.idle.pop() if self.idle else await self._started()
            try:
                answer = await self._answer_of(process, body)
                if answer.out_of_memory:
                    raise OutOfMemory
            except BaseException:
                await _killed(process)
                raise
            self.idle.append(process)
            self._retire_later()
        if answer.wrong:
            raise InputError(answer.wrong)
        if answer.failed:
            raise RuntimeError(f"{function.__name__} failed: {answer.failed}")
        return answer.value

    async def _started(self) -> Process:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "stretto.live.pool.child", str(self.nice)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                process_group=0,  # ctrl-C on the service's terminal is for the service
                env={**os.environ, **ONE_THREAD},
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # who has gone meanwhile leaves no process behind
            await _killed(await starting)
            raise

    async def _answer_of(self, process: Process, body: bytes) -> Answer:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self.most_s + LATE_S):
                process.stdin.write(frame(body))
                await process.stdin.drain()
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                answer: Answer = pickle.loads(await process.stdout.readexactly(length))
                return answer
        except TimeoutError:
            raise OutOfTime from None
        except (asyncio.IncompleteReadError, OSError):
            status = await process.wait()
            if status == -signal.SIGALRM:
                raise OutOfTime from None
            if status == -signal.SIGKILL:  # by the kernel, where memory is short
                raise OutOfMemory from None
            raise RuntimeError(f"a process of the pool ended with status {status}") from None

    def _retire_later(self) -> None:
        if self._retiring is not None:
            self._retiring.cancel()
        self._retiring = asyncio.get_running_loop().call_later(IDLE_S, self._retire)

    def _retire(self) -> None:
        for process in self.idle:
            process.kill()
        self._ended = [one for one in self._ended if one.returncode is None] + self.idle
        self.idle = []

    async def close(self) -> None:
        """End every process, whatever it does; whoever waits gets Closed."""
        self.closed = True
        if self._retiring is not None:
            self._retiring.cancel()
        busy = list(self._busy)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        for process in [*self.idle, *self._ended]:
            await _killed(process)
        self.idle, self._ended = [], []


async def _killed(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await asyncio.shield(process.wait())
