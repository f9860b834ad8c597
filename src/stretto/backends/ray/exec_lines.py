"""Lines to programs beside workers: from the service through its gateway to an actor on the node."""

import asyncio
import base64
import secrets
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from stretto.backends.ray.exec_actor import ExecActor
from stretto.errors import InputError, StrettoError

LISTEN_S = 20.0  # that an actor waits for what its program says; chosen
ANSWER_S = 60.0  # beyond that: for a process of Ray's to start on a busy node; chosen
MOST_UNSENT = 1 << 16  # bytes that `drain` leaves unsent; chosen
PIECE = 1 << 18  # bytes of one order at most; chosen


# ── in the gateway ────────────────────────────────────────────────────────────────────────────────


class ExecActors:
    """The actors of one gateway, by the name of their line."""

    def __init__(self) -> None:
        self.by_line: dict[str, Any] = {}

    def begin(self, node_id: str, run: str) -> str:
        """Start an exec session beside the worker of a run directory; the name of the line to it."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        line = secrets.token_hex(8)
        kind = ray.remote(ExecActor).options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        )
        self.by_line[line] = kind.remote(run)
        return line

    def read(self, line: str, wait_s: float) -> "Future[Any]":
        """What comes of `ExecActor.read`."""
        answer: Future[Any] = self._actor(line).read.remote(wait_s).future()
        return answer

    def write(self, line: str, data: str) -> "Future[Any]":
        """What comes of `ExecActor.write`."""
        answer: Future[Any] = self._actor(line).write.remote(data).future()
        return answer

    def end(self, line: str) -> None:
        """End a line, and what was started at its other end."""
        import ray

        if (actor := self.by_line.pop(line, None)) is not None:
            ray.kill(actor)

    def _actor(self, line: str) -> Any:
        """Raises InputError for a line of another gateway, or one that has ended."""
        if (actor := self.by_line.get(line)) is None:
            raise InputError("its gateway to Ray has ended, or the line has")
        return actor


# ── in the service ────────────────────────────────────────────────────────────────────────────────


class Asks(Protocol):
    """The way to a gateway."""

    async def ask(self, do: str, within_s: float, /, **arguments: Any) -> Any:
        """Give an order; raises BackendUnreachable, and as the order does."""
        ...


@dataclass(eq=False)
class ExecLine:
    """A `Line` by orders to a gateway."""

    gateway: Asks
    name: str
    unread: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    sending: "asyncio.Task[None] | None" = None
    ending: "asyncio.Task[None] | None" = None

    async def readexactly(self, n: int, /) -> bytes:
        """So many bytes; raises EOFError at the end, OSError where the line breaks."""
        while len(self.unread) < n:
            try:
                answer = await self.gateway.ask(
                    "read_line", LISTEN_S + ANSWER_S, line=self.name, wait_s=LISTEN_S
                )
            except StrettoError as failure:
                raise OSError(str(failure)) from failure
            if answer["ends"]:
                raise EOFError
            self.unread += base64.b64decode(answer["data"])
        piece = bytes(self.unread[:n])
        del self.unread[:n]
        return piece

    def write(self, data: bytes, /) -> None:
        """Leave bytes to be sent."""
        self.unsent += data
        if self.sending is None or self.sending.done():
            self.sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        with suppress(StrettoError):  # what stays unsent says so
            while self.unsent:
                piece = bytes(self.unsent[:PIECE])
                data = base64.b64encode(piece).decode()
                await self.gateway.ask("write_line", inf, line=self.name, data=data)  # until it is taken
                del self.unsent[: len(piece)]  # more may have come behind it

    async def drain(self) -> None:
        """Wait until there is room for more; raises OSError where the line breaks."""
        while len(self.unsent) > MOST_UNSENT and self.sending is not None:
            left = len(self.unsent)
            await asyncio.wait({self.sending})
            if len(self.unsent) >= left:
                raise ConnectionResetError("the line to its node is lost")

    def close(self) -> None:
        """Let go of it: the program is ended."""
        if self.ending is None:
            self.ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        if self.sending is not None:
            self.sending.cancel()
        with suppress(StrettoError):  # a gateway that is gone has taken it along
            await self.gateway.ask("end_line", ANSWER_S, line=self.name)


async def line_to(gateway: Asks, worker_id: str) -> ExecLine:
    """A line to a new exec session beside a worker; raises NoSuchWorker, BackendUnreachable, InputError."""
    answer = await gateway.ask("begin_line", ANSWER_S, worker_id=worker_id)
    return ExecLine(gateway, answer["line"])
