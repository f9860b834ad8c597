"""Programs and connections beside workers, over every backend that reaches them."""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from stretto.agent.exec_session import (
    END,
    ERRORS,
    EXIT,
    FRAME,
    INPUT,
    OUTPUT,
    SIGNAL,
    SIZE,
    START,
    WINDOW,
    frame,
)
from stretto.backends.protocol import Line, NoSuchWorker, ReachesWorkers, WorkerStart
from stretto.errors import InputError
from stretto.testing.backends.stage import Stage

MUCH = 10_000_000  # bytes
PIECE = 1 << 14
REST_S = 1.0  # without a byte, after which a program counts as waiting
MOST_KEPT = 64 << 20  # bytes on the way: buffers of the kernel for some connections

# Writes without end, and a byte into a file for each piece that was taken.
WRITES = f"""
import os, sys
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        os.write(1, bytes({PIECE}))
        file.write(b".")
"""

# Answers each connection with what it is sent, in capitals.
ANSWERS = """
import socket
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
while True:
    line, _ = door.accept()
    with line:
        while piece := line.recv(1 << 16):
            line.sendall(piece.upper())
"""


@dataclass
class Reached:
    """A program or a connection beside a worker, and all that has come of it."""

    line: Line
    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    ended: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.line.close()

    async def say(self, letter: bytes, content: bytes = b"") -> None:
        """One frame."""
        self.line.write(frame(letter, content))
        await self.line.drain()

    async def hear(self) -> None:
        """The next frame."""
        letter, length = FRAME.unpack(await self.line.readexactly(FRAME.size))
        content = await self.line.readexactly(length)
        if letter == OUTPUT:
            self.output += content
        elif letter == ERRORS:
            self.errors += content
        elif letter == EXIT:
            self.ended = json.loads(content)

    async def until(self, wanted: bytes) -> None:
        """Until it has written something."""
        while wanted not in self.output:
            await self.hear()
            assert self.ended is None, (self.ended, self.output, self.errors)

    async def status(self) -> int:
        """How it ended."""
        while self.ended is None:
            await self.hear()
        return int(self.ended["status"])


class ExecSessions:
    """What `stretto exec` and `stretto forward` need of a backend."""

    async def test_a_command_beside_a_worker_has_its_environment_and_its_status_comes_back(
        self, stage: Stage
    ) -> None:
        """A command has the worker's environment; bytes are kept, and its status comes back."""
        worker = await stage.run("sleep", 600, GREETING="hello")
        line = 'cat; echo "$GREETING $STRETTO_WORKER_ID"; echo wrong >&2; exit 5'
        async with await begin(stage, worker, argv=["sh", "-c", line]) as command:
            await command.say(INPUT, b"\0typed\x03\x04\xff\r")
            await command.say(END)
            assert await command.status() == 5
        assert command.output == b"\0typed\x03\x04\xff\r" + f"hello {worker.id}\n".encode()
        assert command.errors == b"wrong\n"
        assert command.ended == {"status": 5, "why": ""}

    async def test_ten_megabytes_go_both_ways_whole(self, stage: Stage) -> None:
        """Ten megabytes of all bytes that there are come back equal."""
        worker = await stage.run("sleep", 600)
        given = bytes(range(256)) * (MUCH // 256)

        async def give() -> None:
            for begin_ in range(0, len(given), PIECE):
                await command.say(INPUT, given[begin_ : begin_ + PIECE])
            await command.say(END)

        async with await begin(stage, worker, argv=["cat"]) as command:
            giving = asyncio.create_task(give())
            assert await command.status() == 0
            await giving
        assert command.output == given

    async def test_a_program_whose_output_nobody_takes_waits(self, stage: Stage) -> None:
        """A program that writes without end waits for its reader, whatever is between."""
        worker = await stage.run("sleep", 600)
        path = stage.folder / "written"

        async def has_stopped() -> bool:
            if not path.exists() or not (before := path.stat().st_size):
                return False
            await asyncio.sleep(REST_S)
            return path.stat().st_size == before

        async with await begin(stage, worker, argv=[sys.executable, "-c", WRITES, str(path)]) as command:
            await stage.until(has_stopped, "the program waits")
            kept = path.stat().st_size * PIECE
            assert kept < MOST_KEPT, f"{kept} bytes are kept somewhere"
            while len(command.output) <= kept:
                await command.hear()

    async def test_a_terminal_beside_a_worker_follows_its_window_and_takes_interrupts(
        self, stage: Stage
    ) -> None:
        """A terminal has the size that was asked for, follows it, and ctrl-C interrupts; so does a signal."""
        worker = await stage.run("sleep", 600)
        lines = "echo first $(stty size); trap 'exit 9' INT; while read line; do echo now $(stty size); done"
        asked = {"argv": ["sh", "-c", lines], "tty": True, "rows": 31, "columns": 97}
        async with await begin(stage, worker, **asked) as shell:
            await shell.until(b"first 31 97")
            await shell.say(WINDOW, SIZE.pack(12, 34))
            await shell.say(INPUT, b"\r")
            await shell.until(b"now 12 34")
            await shell.say(INPUT, b"\x03")
            assert await shell.status() == 9
        waits = "trap 'exit 7' INT; echo ready; while :; do sleep 0.1; done"
        async with await begin(stage, worker, argv=["sh", "-c", waits]) as command:
            await command.until(b"ready")
            await command.say(SIGNAL, b"2")
            assert await command.status() == 7

    async def test_connections_to_a_port_of_a_worker_are_carried(self, stage: Stage) -> None:
        """What listens beside a worker is reached; a port at which nothing listens says so."""
        worker = await stage.run("sleep", 600)
        async with await begin(stage, worker, argv=[sys.executable, "-c", ANSWERS]) as server:
            await server.until(b"\n")
            port = int(server.output)
            async with await begin(stage, worker, port=port) as visitor:
                await visitor.say(INPUT, b"word")
                await visitor.say(END)
                assert await visitor.status() == 0
            assert visitor.output == b"WORD"
        async with await begin(stage, worker, port=port) as refused:
            assert await refused.status() == 126
        assert f"nothing answers at port {port}" in str(refused.ended)

    async def test_what_runs_beside_a_worker_ends_with_its_line_and_with_its_worker(
        self, stage: Stage
    ) -> None:
        """A closed line ends what runs; so does the end of the worker, which nothing outlives."""
        worker = await stage.run("sleep", 600)
        async with await begin(stage, worker, argv=["sh", "-c", "echo $$; exec sleep 600"]) as left:
            await left.until(b"\n")
        async with await begin(stage, worker, argv=["sh"]) as looking:
            look = f"while kill -0 {int(left.output)} 2>/dev/null; do sleep 0.1; done; echo gone\n"
            await looking.say(INPUT, look.encode())
            await looking.until(b"gone")
            await stage.insist(lambda: reaching(stage).stop(worker.id, 5.0))
            await looking.status()
        assert looking.ended is not None
        assert looking.ended["why"] == "its worker has ended"
        await stage.ended(worker)
        with pytest.raises((InputError, NoSuchWorker)):
            await begin(stage, worker, argv=["true"])


def reaching(stage: Stage) -> Any:
    """The backend; skips where it reaches no workers."""
    if not isinstance(stage.backend, ReachesWorkers):
        pytest.skip("its workers are reached by nothing: stretto exec and forward refuse")
    return stage.backend


async def begin(stage: Stage, worker: WorkerStart, **asked: Any) -> Reached:
    """Begin a program, or connect to a port, beside a worker; as often as it takes."""
    backend = reaching(stage)
    reached = Reached(await stage.insist(lambda: backend.reach(worker.id)))
    await reached.say(START, json.dumps(asked).encode())
    return reached
