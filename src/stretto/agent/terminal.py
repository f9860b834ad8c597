"""What an interactive job runs: a shell on a terminal of its own, to which its owner can attach.

Standard library only. It listens on this machine and says where in its log, with a key that a visitor has to
know. So only users who may read the log may type. The shell outlives its visitors; when it ends, the job ends
with its status.

From the visitor come frames: a letter, a length of two bytes, the content. `d`: what was typed; `w`: rows and
columns as four bytes. To the visitor go the bytes of the terminal as they are.
"""

import fcntl
import hmac
import os
import pty
import secrets
import select
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from dataclasses import dataclass, field

KEPT = 1 << 16  # bytes that a new visitor is shown of what was before, and that wait on either way; chosen
ANNOUNCED = "terminal at "  # followed by ADDRESS:PORT and the key
FRAME = struct.Struct("!cH")
SIZE = struct.Struct("!HH")
KEY_BYTES = 32  # as hexadecimal digits
PATIENCE_S = 2.0  # with a visitor who takes nothing of what is there for him; chosen
KEY_WAIT_S = 10.0  # for the key of a new connection, which a visitor sends at once; chosen
MOST_STRANGERS = 64  # connections that have not shown the key; beyond that the oldest is closed; chosen
REPLACED = b"\r\n[attached elsewhere]\r\n"


@dataclass
class Visitor:
    """A connection: of the attached visitor, of a stranger who has not shown the key, or one that closes."""

    line: socket.socket
    typed: bytearray = field(default_factory=bytearray)  # the key, then frames, as far as they are here
    unsent: bytearray = field(default_factory=bytearray)
    came_s: float = field(default_factory=time.monotonic)
    heard_s: float = field(default_factory=time.monotonic)  # when something was last taken, or nothing waited

    def __post_init__(self) -> None:
        self.line.setblocking(False)

    @property
    def is_lost(self) -> bool:
        """Whether nothing has gone to the visitor for too long."""
        return time.monotonic() > self.heard_s + PATIENCE_S

    def tell(self, said: bytes) -> None:
        """Leave something to be sent."""
        if not self.unsent:
            self.heard_s = time.monotonic()
        self.unsent += said

    def send(self) -> bool:
        """As much as the line takes now; False if no visitor is there."""
        try:
            sent = self.line.send(self.unsent)
        except BlockingIOError:
            return True
        except OSError:
            return False
        del self.unsent[:sent]
        self.heard_s = time.monotonic()
        return True

    def receive(self) -> bytes:
        """What has come; nothing if no visitor is there."""
        try:
            return self.line.recv(1 << 14)
        except OSError:
            return b""

    def finish(self) -> None:
        """Say that nothing more comes.

        A connection on which unread data has arrived must not be closed at once. The visitor would get an
        error, and lose what is on its way.
        """
        self.typed.clear()
        self.heard_s = time.monotonic()
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)


@dataclass
class Terminal:
    """A shell, the terminal that it runs on, and the visitor that is attached."""

    shell: int  # its process
    screen: int  # our end of its terminal
    door: socket.socket
    key: bytes
    shown: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)  # typed, and not yet taken by the terminal
    visitor: Visitor | None = None  # has shown the key
    strangers: list[Visitor] = field(default_factory=list)  # have not, oldest first
    leaving: list[Visitor] = field(default_factory=list)

    def __post_init__(self) -> None:
        os.set_blocking(self.screen, False)

    def serve(self) -> int:
        """Until the shell has ended; its status, as shells report it."""
        while self._turn(1.0):
            ended, status = os.waitpid(self.shell, os.WNOHANG)
            if ended:
                self._show_the_rest()
                break
        else:
            _, status = os.waitpid(self.shell, 0)
        self._see_off()
        return _status(status)

    def _turn(self, within_s: float) -> bool:
        """Wait for something, and pass it on; False once the shell has let go of its terminal."""
        visitor = self.visitor
        behind = visitor is not None and len(visitor.unsent) >= KEPT
        waiting = [*self.strangers, *self.leaving]
        reading: list[int] = [self.door.fileno()] + [stranger.line.fileno() for stranger in waiting]
        writing: list[int] = []
        if not behind:
            reading.append(self.screen)
        if self.unread:
            writing.append(self.screen)
        if visitor is not None:
            if len(self.unread) < KEPT:
                reading.append(visitor.line.fileno())
            if visitor.unsent:
                writing.append(visitor.line.fileno())
        readable, writable, _ = select.select(reading, writing, [], within_s)
        if visitor is not None and (
            (visitor.line.fileno() in writable and not visitor.send())
            or (visitor.unsent and visitor.is_lost)
            or (visitor.line.fileno() in readable and not self._listen(visitor))
        ):
            self._part()
        self._watch_leaving(readable)
        self._check_strangers(readable)
        if self.screen in writable:
            self._type()
        if self.door.fileno() in readable:
            self._accept()
        return self.screen not in readable or self._show()

    def _accept(self) -> None:
        """Let a stranger wait for the check of its key; the attached visitor notices nothing."""
        line, _ = self.door.accept()
        self.strangers.append(Visitor(line))
        if len(self.strangers) > MOST_STRANGERS:
            self._turn_away(self.strangers[0])

    def _check_strangers(self, readable: list[int]) -> None:
        """Admit a stranger who shows the key; turn away one that shows another, leaves, or is slow."""
        for stranger in list(self.strangers):
            if stranger.line.fileno() in readable:
                received = stranger.receive()
                stranger.typed += received
                if len(stranger.typed) < len(self.key):
                    if not received:
                        self._turn_away(stranger)
                elif hmac.compare_digest(bytes(stranger.typed[: len(self.key)]), self.key):
                    self._admit(stranger)
                else:
                    self._turn_away(stranger)
            elif time.monotonic() > stranger.came_s + KEY_WAIT_S:
                self._turn_away(stranger)

    def _turn_away(self, stranger: Visitor) -> None:
        self.strangers.remove(stranger)
        stranger.line.close()

    def _admit(self, stranger: Visitor) -> None:
        """A stranger who has shown the key takes the place of the visitor before."""
        if self.visitor is not None:
            self.visitor.tell(REPLACED)
            self.visitor.send()
        self._part()
        self.strangers.remove(stranger)
        self.visitor = stranger
        del stranger.typed[: len(self.key)]
        stranger.tell(bytes(self.shown))
        self._take_frames(stranger.typed)

    def _part(self) -> None:
        if self.visitor is not None:
            self.visitor.finish()
            self.leaving.append(self.visitor)
        self.visitor = None

    def _watch_leaving(self, readable: list[int]) -> None:
        """Close the lines whose other end is closed, or does not close in time."""
        for one in list(self.leaving):
            if one.is_lost or (one.line.fileno() in readable and not one.receive()):
                one.line.close()
                self.leaving.remove(one)

    def _listen(self, visitor: Visitor) -> bool:
        """Take what a visitor says; False if the visitor has gone."""
        said = visitor.receive()
        visitor.typed += said
        self._take_frames(visitor.typed)
        return bool(said)

    def _take_frames(self, typed: bytearray) -> None:
        while len(typed) >= FRAME.size:
            letter, length = FRAME.unpack_from(typed)
            if len(typed) < FRAME.size + length:
                return
            content = bytes(typed[FRAME.size : FRAME.size + length])
            del typed[: FRAME.size + length]
            if letter == b"d":
                self.unread += content
            elif letter == b"w" and length == SIZE.size:
                rows, columns = SIZE.unpack(content)
                fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _type(self) -> None:
        try:
            del self.unread[: os.write(self.screen, self.unread)]
        except BlockingIOError:
            pass
        except OSError:  # no process has the terminal any more
            self.unread.clear()

    def _show(self) -> bool:
        """Pass on what the shell writes; False once it has let go of its terminal."""
        try:
            output = os.read(self.screen, 1 << 14)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.shown += output
        del self.shown[:-KEPT]
        if self.visitor is not None:
            self.visitor.tell(output)
        return bool(output)

    def _show_the_rest(self) -> None:
        """What the shell wrote last; what children of it write that go on is not waited for."""
        by_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < by_s and select.select([self.screen], [], [], 0)[0] and self._show():
            pass

    def _see_off(self) -> None:
        """All that is to be said reaches the visitor, unless the visitor does not take it."""
        for stranger in list(self.strangers):
            self._turn_away(stranger)
        visitor = self.visitor
        while visitor is not None and visitor.unsent and not visitor.is_lost:
            if select.select([], [visitor.line], [], 0.1)[1] and not visitor.send():
                break
        self._part()
        while self.leaving:
            readable, _, _ = select.select([leaver.line.fileno() for leaver in self.leaving], [], [], 0.1)
            self._watch_leaving(readable)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    """Run a command, else the user's shell, on a terminal; the status that it ends with."""
    command = arguments or [os.environ.get("SHELL") or "/bin/sh"]
    key = secrets.token_hex(KEY_BYTES)
    shell, screen = pty.fork()
    if shell == 0:
        os.environ.setdefault("TERM", "xterm-256color")
        try:
            os.execvp(command[0], command)
        except OSError as wrong:
            print(f"{command[0]}: {wrong.strerror}")
        os._exit(127)
    with socket.create_server(("127.0.0.1", 0)) as door:

        def leave(number: int, frame: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(shell, signal.SIGHUP)  # what shells expect when their terminal goes

        signal.signal(signal.SIGTERM, leave)
        port = door.getsockname()[1]
        print(f"{ANNOUNCED}127.0.0.1:{port} {key}", flush=True)
        return Terminal(shell, screen, door, key.encode()).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
