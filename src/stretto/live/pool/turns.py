"""Fair turns: users come one after the other, each with few turns at a time, however much each asks for."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


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
        """Give free turns to the users who come next; who has been served goes to the end of the line."""
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
