"""A terminal of ours joined to the terminal of an interactive job."""

import os
import select
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stretto.agent.terminal import ANNOUNCED, FRAME, SIZE
from stretto.cli.printing import say
from stretto.errors import InputError, StrettoError

if TYPE_CHECKING:
    from stretto.client import Client

LEAVE = b"\x1d"  # ctrl-], as in telnet
END_OF_INPUT = b"\x04"  # ctrl-D
MOST_UNSENT = 1 << 16  # bytes that are typed ahead of the line; chosen


class Unattached(StrettoError):
    """The terminal of a job cannot be reached."""


def attach(client: "Client", job: str) -> bool:
    """Join the terminals until the job's shell has ended (True), or the user goes away (False)."""
    address, key = where(client, job)
    host, _, port = address.rpartition(":")
    try:
        line = socket.create_connection((host, int(port)), timeout=5.0)
    except OSError as wrong:
        raise Unattached(
            f"job {job}: nothing answers at {address}: {wrong}; terminals can be attached to "
            "on the machine where the job runs"
        ) from None
    with line:
        if sys.stdin.isatty():
            say(f"attached to job {job}; ctrl-] leaves it running")
        with raw_keys():
            return _join(line, key.encode())


def where(client: "Client", job: str) -> tuple[str, str]:
    """The address and the key that a job has written into its log.

    Waits for the job to start, also over a restart of the service.
    """
    from stretto.client import ServiceError

    state = ""
    while True:
        described = client.describe(job, patiently=bool(state))
        if described["ended_s"] is not None:
            raise InputError(f"job {job} has ended: {described['state']}")
        if described["attempt"]:
            text = ""
            with suppress(ServiceError):  # it is looked for again
                text = "".join(client.log(job))
            for line in text.splitlines(keepends=True):
                if line.startswith(ANNOUNCED) and line.endswith("\n"):  # else its rest is yet to come
                    address, _, key = line.removeprefix(ANNOUNCED).partition(" ")
                    return address, key.strip()
            if text.strip() and described["kind"] != "interactive":
                raise InputError(f"job {job} has no terminal: it was not submitted with --interactive")
        if described["state"] != state:
            state = described["state"]
            say(f"job {job}: {state}" + (f" ({described['reason']})" if described["reason"] else ""))
        time.sleep(0.1)


def _join(line: socket.socket, key: bytes) -> bool:
    keys, screen = sys.stdin.fileno(), sys.stdout.fileno()
    at_terminal = sys.stdin.isatty()  # now: of one that is gone this is not true any more
    size: tuple[int, int] | None = None
    unsent, ended = bytearray(key), False
    line.setblocking(False)  # with both ends waiting for the other to take something, neither would
    while True:
        if sys.stdin.isatty() and size != (now := tuple(shutil.get_terminal_size())):
            size = (now[0], now[1])
            unsent += _frame(b"w", SIZE.pack(now[1], now[0]))
        hearing = [line.fileno()] if ended or len(unsent) >= MOST_UNSENT else [line.fileno(), keys]
        readable, writable, _ = select.select(hearing, [line] if unsent else [], [], 0.5)
        if line.fileno() in readable:
            output = _receive(line)
            if not output:
                return True
            _show(screen, output)
        if writable:
            _send(line, unsent)
        if keys in readable:
            typed = _typed(keys)
            if at_terminal and (LEAVE in typed or not typed):  # the user's window ends, and not the job
                return False
            ended = not typed
            unsent += _frame(b"d", typed or END_OF_INPUT)


def _frame(letter: bytes, content: bytes) -> bytes:
    return FRAME.pack(letter, len(content)) + content


def _typed(keys: int) -> bytes:
    """What was typed; nothing once the terminal is gone."""
    try:
        return os.read(keys, 1 << 12)
    except OSError:  # the terminal was closed
        return b""


def _receive(line: socket.socket) -> bytes:
    """What has come; nothing once the shell has ended, however its end of the line was closed."""
    try:
        return line.recv(1 << 14)
    except OSError:
        return b""


def _send(line: socket.socket, unsent: bytearray) -> None:
    try:
        del unsent[: line.send(unsent)]
    except BlockingIOError:
        pass
    except OSError:  # it has gone; what it said last is still to be read
        unsent.clear()


def _show(screen: int, said: bytes) -> None:
    while said:
        said = said[os.write(screen, said) :]


@contextmanager
def raw_keys() -> Iterator[None]:
    """Every key as it is typed, on a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # keeping what has been typed ahead
        yield
    finally:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
