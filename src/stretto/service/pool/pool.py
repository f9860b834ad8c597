"""A pool of processes that work for users, each user in turn.

Fair turns: users come one after the other, each with few turns at a time, however much each asks for.
"""

import asyncio
import logging
import os
import pickle
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import InputError
from stretto.service.pool.calls import LENGTH, Answer, Call, frame

log = logging.getLogger(__name__)


class TooManyWaiting(Exception):
    """A user's queue is full."""


@dataclass
class Turns:
    """Round robin over users; first come, first served among the requests of one user."""

    at_once: int  # turns of all users together
    most_waiting: int  # requests of one user that may wait
    each: int = 1  # turns of one user at a time
    _taken: Counter[str] = field(default_factory=Counter)  # turns by user
    _waiting: dict[str, deque["asyncio.Future[None]"]] = field(default_factory=dict)  # the next user first

    @property
    def is_idle(self) -> bool:
        """Whether no user has a turn or waits for one."""
        return not self._waiting and not self._taken

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """A turn, once it has come. Raises TooManyWaiting at once where the queue of the user is full."""
        await self._take(user)
        try:
            yield
        finally:
            self._end(user)

    async def _take(self, user: str) -> None:
        queue = self._waiting.setdefault(user, deque())
        if len(queue) >= self.most_waiting:
            raise TooManyWaiting
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the very moment when the user gave up
                self._end(user)
            elif turn in self._waiting.get(user, ()):
                self._waiting[user].remove(turn)
                if not self._waiting[user]:
                    del self._waiting[user]
            raise

    def _end(self, user: str) -> None:
        self._taken[user] -= 1
        if not self._taken[user]:
            del self._taken[user]
        self._give()

    def _give(self) -> None:
        """Give free turns to the users that come next; one that was served goes to the end of the line."""
        served = True
        while served:  # once more around, for users who may have several
            served = False
            for user in list(self._waiting):
                if self._taken.total() >= self.at_once:
                    return
                if self._taken[user] >= self.each:
                    continue
                queue = self._waiting.pop(user)
                turn = queue.popleft()
                if queue:
                    self._waiting[user] = queue
                self._taken[user] += 1
                turn.set_result(None)
                served = True


# ── processes that work for users, with limits of time and memory; each user has one turn at a time ─────────


IDLE_S = 120.0  # after which a process that is not needed is ended; chosen
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

        Raises TooManyWaiting, OutOfTime, OutOfMemory, Closed, and InputError where the work does. Cancelling
        this stops the work.
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
            # Only the process knows where it happened: who asked is told no more than what.
            log.error(
                "a call failed in a process of the pool",
                extra={"call": function.__name__, "failed": answer.failed, "trace": answer.trace.rstrip()},
            )
            raise RuntimeError(f"{function.__name__} failed: {answer.failed}")
        return answer.value

    async def _started(self) -> Process:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "stretto.service.pool.child", str(self.nice)),
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
        """End every process, whatever it does; waiting callers get Closed."""
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
