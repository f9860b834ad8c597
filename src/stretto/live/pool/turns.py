"""Fair turns: users come one after the other, each with one turn at a time, however much each asks for."""

import asyncio
from collections import deque
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
    _has_turn: set[str] = field(default_factory=set)  # users
    _waiting: dict[str, deque["asyncio.Future[None]"]] = field(default_factory=dict)  # the next user first

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """A turn, once it has come. Raises TooManyWaiting at once where the queue of the user is full."""
        await self._take(user)
        try:
            yield
        finally:
            self._has_turn.discard(user)
            self._give()

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
                self._has_turn.discard(user)
                self._give()
            elif turn in self._waiting.get(user, ()):
                self._waiting[user].remove(turn)
                if not self._waiting[user]:
                    del self._waiting[user]
            raise

    def _give(self) -> None:
        """Give free turns to the users who come next; who has been served goes to the end of the line."""
        for user in list(self._waiting):
            if len(self._has_turn) >= self.at_once:
                return
            if user in self._has_turn:
                continue
            queue = self._waiting.pop(user)
            turn = queue.popleft()
            if queue:
                self._waiting[user] = queue
            self._has_turn.add(user)
            turn.set_result(None)
