"""What an interactive job runs: a shell on a terminal of its own, to which its owner can attach.

Standard library only. It listens on this machine and says where in its log, with a key that whoever attaches
has to know: so that only those who may read the log may type. The shell outlives its visitors; when it ends,
the job ends with its status.

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
from dataclasses import dataclass, field

KEPT = 1 << 16  # bytes that a new visitor is shown of what was before; chosen
ANNOUNCED = "terminal at "  # followed by ADDRESS:PORT and the key
FRAME = struct.Struct("!cH")
SIZE = struct.Struct("!HH")
KEY_BYTES = 32  # as hexadecimal digits


@dataclass
class Terminal:
    """A shell, the terminal that it runs on, and whoever is attached."""

    shell: int  # its process
    screen: int  # our end of its terminal
    door: socket.socket
    key: bytes
    shown: bytearray = field(default_factory=bytearray)
    visitor: socket.socket | None = None
    typed: bytearray = field(default_factory=bytearray)
    welcome: bool = False  # the visitor has shown the key

    def serve(self) -> int:
        """Until the shell has ended; its status, as shells report it."""
        while True:
            watched: list[socket.socket | int] = [self.screen, self.door]
            watched += [self.visitor] if self.visitor is not None else []
            readable, _, _ = select.select(watched, [], [], 1.0)
            if self.door in readable:
                self._admit()
            if self.visitor is not None and self.visitor in readable:
                self._listen()
            if self.screen in readable and not self._show():
                break
            ended, status = os.waitpid(self.shell, os.WNOHANG)
            if ended:
                while select.select([self.screen], [], [], 0)[0] and self._show():
                    pass
                self._part()
                return _status(status)
        _, status = os.waitpid(self.shell, 0)
        self._part()
        return _status(status)

    def _admit(self) -> None:
        """The newest visitor takes the place of the one before."""
        visitor, _ = self.door.accept()
        self._part()
        visitor.settimeout(2.0)
        self.visitor, self.typed, self.welcome = visitor, bytearray(), False

    def _part(self) -> None:
        if self.visitor is not None:
            self.visitor.close()
        self.visitor = None

    def _listen(self) -> None:
        assert self.visitor is not None
        try:
            said = self.visitor.recv(1 << 14)
        except OSError:
            said = b""
        if not said:
            self._part()
            return
        self.typed += said
        if not self.welcome:
            if len(self.typed) < len(self.key):
                return
            if not hmac.compare_digest(bytes(self.typed[: len(self.key)]), self.key):
                self._part()
                return
            del self.typed[: len(self.key)]
            self.welcome = True
            self._send(bytes(self.shown))
        self._take_frames()

    def _take_frames(self) -> None:
        while len(self.typed) >= FRAME.size:
            letter, length = FRAME.unpack_from(self.typed)
            if len(self.typed) < FRAME.size + length:
                return
            content = bytes(self.typed[FRAME.size : FRAME.size + length])
            del self.typed[: FRAME.size + length]
            if letter == b"d":
                os.write(self.screen, content)
            elif letter == b"w" and length == SIZE.size:
                rows, columns = SIZE.unpack(content)
                fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _show(self) -> bool:
        """Pass on what the shell writes; False once it has let go of its terminal."""
        try:
            said = os.read(self.screen, 1 << 14)
        except OSError:
            return False
        self.shown += said
        del self.shown[:-KEPT]
        if self.welcome:
            self._send(said)
        return bool(said)

    def _send(self, said: bytes) -> None:
        try:
            if self.visitor is not None and said:
                self.visitor.sendall(said)
        except OSError:
            self._part()


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
            os.kill(shell, signal.SIGHUP)  # what shells expect when their terminal goes

        signal.signal(signal.SIGTERM, leave)
        port = door.getsockname()[1]
        print(f"{ANNOUNCED}127.0.0.1:{port} {key}", flush=True)
        return Terminal(shell, screen, door, key.encode()).serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
