"""Programs and terminals beside workers: whose they are, what is kept of them, and when they end.

All of it is in the memory of this service: where that ends, so does every program here.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from stretto.agent.exec_session import ERRORS, EXIT, FRAME, LONGEST_FRAME, OUTPUT, START, frame
from stretto.backends.protocol import Line
from stretto.service.http.audit import did
from stretto.service.http.auth import Caller
from stretto.service.http.problems import Problem
from stretto.service.http.rate_limits import Limits
from stretto.service.service import Service

# To the client, beside the frames of `agent.exec_session`:
SAY = b"n"  # a line of text for its user; empty: still here
ABOUT = b"i"  # first of all, as JSON: which program this is, and what is kept of its output
KEPT_BYTES = 1 << 16  # of a terminal's output, for who comes back; chosen
LOOK_S = 1.0  # between looks at who idles; chosen
STILL_HERE_S = 25.0  # a word at least so often: proxies give up after a minute; chosen
ENDED_BY_US = 137
GONE = (WebSocketDisconnect, RuntimeError, OSError)  # RuntimeError: of Starlette, once it is closed


class LineLost(Exception):
    """Nothing more comes of a line; says why, for a person."""


async def passed_on(line: Line, message: bytes) -> bool:
    """Send a frame on; whether its line could take it."""
    try:
        line.write(frame(message[:1], message[1:]))
        await line.drain()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def one_more(counts: Counter[str], user: str, has: int, most: int, kind: str) -> Iterator[None]:
    """Count one more of a user meanwhile. Raises Problem where it has as many as it may."""
    if has >= most:
        raise Problem(HTTPStatus.TOO_MANY_REQUESTS, f"at most {most} {kind} of one user at once")
    counts[user] += 1
    try:
        yield
    finally:
        counts[user] -= 1


async def frame_of(line: Line) -> tuple[bytes, bytes]:
    """The next frame of a line; raises LineLost."""
    try:
        letter, length = FRAME.unpack(await line.readexactly(FRAME.size))
        if length > LONGEST_FRAME:
            raise LineLost(f"its node sent a frame of {length} bytes, expected at most {LONGEST_FRAME}")
        return letter, await line.readexactly(length)
    except EOFError:
        raise LineLost("the line to its node is lost") from None
    except OSError as failure:
        raise LineLost(f"the line to its node is lost: {failure}") from failure


def ending_in(content: bytes) -> dict[str, Any]:
    """How a program has ended, as its last frame says; raises LineLost."""
    try:
        ending = json.loads(content)
        return {"status": int(ending["status"]), "why": str(ending["why"])}
    except (ValueError, KeyError, TypeError):
        raise LineLost(f"its node sent {content[:40]!r}, expected how the program has ended") from None


class Visitor:
    """The WebSocket of a client."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self.turn = asyncio.Lock()
        self.left = asyncio.Event()
        self.said_s = time.monotonic()

    async def say(self, letter: bytes, content: bytes = b"") -> None:
        """Send a message, in turn; a client that has left is sent nothing."""
        sending = asyncio.ensure_future(self._send(letter + content))
        leaving = asyncio.ensure_future(self.left.wait())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for each in (sending, leaving):
                each.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, message: bytes) -> None:
        async with self.turn:
            await self.socket.send_bytes(message)
            self.said_s = time.monotonic()


@dataclass
class Program:
    """One program beside a worker."""

    id: str
    job: str
    rank: int
    caller: Caller
    argv: tuple[str, ...]
    is_terminal: bool
    line: Line
    visitor: Visitor | None = None
    kept: bytearray = field(default_factory=bytearray)
    written: int = 0  # bytes in all
    ended: dict[str, Any] | None = None
    why: str = ""  # why we have ended it
    touched_s: float = field(default_factory=time.monotonic)
    parked_s: float = 0.0  # monotonic: since when nobody is there
    is_warned: bool = False
    pump: "asyncio.Task[None] | None" = None

    @property
    def about(self) -> str:
        """How the audit calls it."""
        return f"job {self.job} rank {self.rank}: {' '.join(self.argv)}"

    def keep(self, output: bytes) -> None:
        """Keep the end of what was written."""
        self.written += len(output)
        self.kept += output
        del self.kept[:-KEPT_BYTES]


class ExecSessions:
    """Every program that this service has begun and that a client may come back to."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service, self.limits = service, limits
        self.programs: dict[str, Program] = {}
        self.beginning: Counter[str] = Counter()  # programs, by user, that are not among these yet
        self.forwarding: Counter[str] = Counter()  # connections to ports, by user
        self.watching: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Future[Any]] = set()

    @contextlib.contextmanager
    def beginning_one(self, user: str) -> Iterator[None]:
        """Room for a program of a user, before anything is done for it. Raises Problem."""
        has = sum(each.caller.user == user for each in self.programs.values()) + self.beginning[user]
        with one_more(self.beginning, user, has, self.limits.programs, "programs"):
            yield

    @contextlib.contextmanager
    def forwarding_one(self, user: str) -> Iterator[None]:
        """Room for a connection of a user to a port, while it lasts. Raises Problem."""
        has = self.forwarding[user]
        with one_more(self.forwarding, user, has, self.limits.forwards, "connections"):
            yield

    async def begin(
        self, line: Line, job: str, rank: int, caller: Caller, asked: Mapping[str, Any], visitor: Visitor
    ) -> Program:
        """Start a program at the end of a line, once the audit has it."""
        program = Program(
            secrets.token_hex(4), job, rank, caller, tuple(asked["argv"]), bool(asked["tty"]), line, visitor
        )
        self.programs[program.id] = program
        try:
            await self.service.record(did(caller, "exec", program.about))
            line.write(frame(START, json.dumps(dict(asked)).encode()))
            await visitor.say(ABOUT, json.dumps({"program": program.id, "job": job, "rank": rank}).encode())
        except BaseException:
            self.forget(program)
            raise
        program.pump = asyncio.create_task(self._pump(program))
        if self.watching is None or self.watching.done():
            self.watching = asyncio.create_task(self._watch())
        return program

    def parked(self, job: str, rank: int | None, caller: Caller) -> Program | None:
        """The newest terminal of the caller beside a worker of a job."""
        for program in reversed(self.programs.values()):
            is_theirs = program.caller.user == caller.user and program.is_terminal
            if is_theirs and program.job == job and rank in (None, program.rank):
                return program
        return None

    async def come_back(self, program: Program, visitor: Visitor) -> None:
        """Take a terminal over, with what is kept of its output."""
        await visitor.turn.acquire()  # what the program writes from now on comes after what is kept
        before, program.visitor, program.parked_s = program.visitor, visitor, 0.0
        program.touched_s, program.is_warned = time.monotonic(), False
        kept, lost = bytes(program.kept), program.written - len(program.kept)
        about = {"program": program.id, "job": program.job, "rank": program.rank}
        about |= {"argv": list(program.argv), "kept": len(kept), "lost": lost}
        try:
            if before is not None:
                before.left.set()
            await visitor.socket.send_bytes(ABOUT + json.dumps(about).encode())
            await visitor.socket.send_bytes(OUTPUT + kept)
        finally:
            visitor.turn.release()
        await self.service.record(did(program.caller, "attach", program.about))
        if program.ended is not None:
            await visitor.say(EXIT, json.dumps(program.ended).encode())
            self.forget(program)

    async def serve(self, program: Program, visitor: Visitor) -> None:
        """Pass on what the visitor says, until the program has ended or the visitor goes."""
        hearing = asyncio.create_task(self._hear(program, visitor))
        leaving = asyncio.create_task(visitor.left.wait())
        pump = program.pump
        assert pump is not None
        try:
            await asyncio.wait({hearing, leaving, pump}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hearing.cancel()
            leaving.cancel()
            await asyncio.gather(hearing, leaving, return_exceptions=True)
            if program.visitor is visitor:
                program.visitor, program.parked_s = None, time.monotonic()
                visitor.left.set()
                if not program.is_terminal and program.ended is None:
                    program.why = "its caller has gone"
                    program.line.close()

    async def _hear(self, program: Program, visitor: Visitor) -> None:
        """Until the visitor goes, or the program takes no more: then why is the pump's to tell."""
        while True:
            try:
                message = await visitor.socket.receive_bytes()
            except GONE:
                return
            if len(message) > LONGEST_FRAME or message[:1] == START:
                return
            if message[:1] != SAY:
                program.touched_s, program.is_warned = time.monotonic(), False
                if not await passed_on(program.line, message):
                    if program.pump is not None:
                        await asyncio.wait({program.pump})
                    return

    async def _pump(self, program: Program) -> None:
        """Pass on what the program writes, until it has ended."""
        ended: dict[str, Any] | None = None
        lost = ""
        try:
            while ended is None:
                letter, content = await frame_of(program.line)
                program.touched_s, program.is_warned = time.monotonic(), False
                if letter == EXIT:
                    ended = ending_in(content)
                elif letter in (OUTPUT, ERRORS):
                    program.keep(content)
                    await self._tell(program, letter, content)
        except LineLost as failure:
            lost = str(failure)
        program.line.close()
        program.ended = ended or {"status": ENDED_BY_US, "why": program.why or lost}
        why = program.ended["why"]
        how = f"status {program.ended['status']}" + (f", {why}" if why else "")
        about = f"job {program.job} rank {program.rank}: {how}: {' '.join(program.argv)}"
        self.service.log_writer.record(did(program.caller, "exec ended", about))
        if program.visitor is not None:
            await self._tell(program, EXIT, json.dumps(program.ended).encode())
            self.forget(program)
        elif not program.is_terminal:
            self.forget(program)

    async def _tell(self, program: Program, letter: bytes, content: bytes = b"") -> None:
        if program.visitor is not None:
            with contextlib.suppress(*GONE):
                await program.visitor.say(letter, content)

    async def _watch(self) -> None:
        """End and park what idles, and what its caller may not have any more."""
        while self.programs:
            await asyncio.sleep(min(LOOK_S, self.limits.warned_s / 2))
            for program in list(self.programs.values()):
                self._look_at(program, time.monotonic())

    def _look_at(self, program: Program, now_s: float) -> None:
        visitor = program.visitor
        if not program.caller.holds_still(self.service):
            self.end(program, "the token that opened it holds no more")
        elif visitor is None:
            if program.parked_s and now_s > program.parked_s + self.limits.parked_s:
                self.end(program, f"nobody came back within {self.limits.parked_s:.0f} s")
        elif program.is_terminal and now_s > program.touched_s + self.limits.idle_s:
            line = f"parked: idle for {self.limits.idle_s:.0f} s; it goes on for {self.limits.parked_s:.0f} s"
            self._later(self._park(program, visitor, f"{line}; stretto attach {program.job} comes back"))
        elif (
            program.is_terminal
            and not program.is_warned
            and now_s > program.touched_s + self.limits.idle_s - self.limits.warned_s
        ):
            program.is_warned = True
            left_s = self.limits.warned_s
            self._later(self._tell(program, SAY, f"idle: will be parked in {left_s:.0f} s".encode()))
        elif now_s > visitor.said_s + STILL_HERE_S and not visitor.turn.locked():
            self._later(self._tell(program, SAY))

    async def _park(self, program: Program, visitor: Visitor, line: str) -> None:
        program.visitor, program.parked_s = None, time.monotonic()
        with contextlib.suppress(*GONE):
            await visitor.say(SAY, line.encode())
        visitor.left.set()

    def end(self, program: Program, why: str) -> None:
        """End a program, or forget one that has ended."""
        program.why = why
        program.line.close()
        if program.ended is not None:
            self.forget(program)

    def forget(self, program: Program) -> None:
        """Close the line to a program: no client can come back to it."""
        self.programs.pop(program.id, None)
        program.line.close()

    def _later(self, doing: Any) -> None:
        task = asyncio.ensure_future(doing)
        self.tasks = {each for each in self.tasks if not each.done()} | {task}

    async def close(self) -> None:
        """End all, since the service ends."""
        if self.watching is not None:
            self.watching.cancel()
        pumps = [program.pump for program in self.programs.values() if program.pump is not None]
        for program in list(self.programs.values()):
            self.end(program, "the service ends")
        if pumps:
            await asyncio.wait(pumps, timeout=2.0)
