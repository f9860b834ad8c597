"""`stretto exec` and `stretto forward`: programs and ports beside a worker, from anywhere."""

import json
import os
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.agent.exec_session import END, ERRORS, EXIT, INPUT, OUTPUT, SIGNAL, SIZE, START, WINDOW
from stretto.cli.attaching import LEAVE, raw_keys
from stretto.cli.printing import say
from stretto.cli.service import JobName, Token, Url, service
from stretto.errors import InputError

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

    from stretto.client import Client

PIECE = 1 << 14
SAY, ABOUT = b"n", b"i"  # a line for the user; what is known of the program
NO_SERVICE = 69
PORTS = re.compile(r"(?:(\d{0,5}):)?(\d{1,5})")  # as kubectl and ssh -L have them: this machine's comes first

Rank = Annotated[
    int | None, typer.Option(min=0, max=1 << 20, help="Which worker, by its index; else the first.")
]


def execute(
    job: JobName,
    command: Annotated[list[str], typer.Argument(help="A command, after --.", metavar="-- COMMAND")],
    rank: Rank = None,
    no_tty: Annotated[
        bool, typer.Option("--no-tty", help="Pipes and no terminal, even where there is one.")
    ] = False,
    usual: Annotated[
        bool,
        typer.Option("-i", "-t", hidden=True, help="As kubectl has them: a terminal has both unsaid."),
    ] = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Run a command beside a worker of a job; on a terminal, ctrl-] leaves it running."""
    on_terminal = not no_tty and sys.stdin.isatty() and sys.stdout.isatty()
    with service(url, token) as client:
        from stretto.client.worker_websocket import line_to

        with line_to(client, job, "exec", rank=rank) as line:
            columns, rows = os.get_terminal_size(sys.stdin.fileno()) if on_terminal else (80, 24)
            asked: dict[str, Any] = {"argv": command, "tty": on_terminal, "rows": rows, "columns": columns}
            asked["term"] = os.environ.get("TERM", "")
            line.send(START + json.dumps(asked).encode())
            status = Conversation(line, job, on_terminal).hold()
    raise typer.Exit(status)


def come_back(client: "Client", job: str, rank: int | None) -> int:
    """Come back to the newest terminal beside a worker; the status to leave with. Raises InputError."""
    from stretto.client.worker_websocket import line_to

    with line_to(client, job, "attach", rank=rank) as line:
        return Conversation(line, job, sys.stdin.isatty() and sys.stdout.isatty()).hold()


class Conversation:
    """What goes between this terminal, or these pipes, and the program."""

    def __init__(self, line: "Connection", job: str, on_terminal: bool) -> None:
        self.line, self.job, self.on_terminal = line, job, on_terminal
        self.wake, self.woken = os.pipe()
        os.set_blocking(self.woken, False)
        self.has_left = False
        self.interrupts = 0

    def hold(self) -> int:
        """Until the program has ended, or the user leaves; the status to leave with."""
        from websockets.exceptions import ConnectionClosed

        ended: dict[str, Any] | None = None
        with self._keys_and_signals():
            threading.Thread(target=self._pass_on, daemon=True).start()
            try:
                while ended is None:
                    ended = self._take(self.line.recv())
            except ConnectionClosed:
                pass
        if self.has_left:
            say(f"left; stretto attach {self.job} comes back")
            return 0
        if ended is None:
            say(f"stretto: the line to job {self.job} is lost" + self._hint())
            return NO_SERVICE
        if ended["why"]:
            say(f"stretto: {ended['why']}")
        return int(ended["status"])

    def _hint(self) -> str:
        return f"; stretto attach {self.job} may come back" if self.on_terminal else ""

    def _take(self, message: str | bytes) -> dict[str, Any] | None:
        """Show what has come; how the program ended, once it has."""
        assert isinstance(message, bytes)
        letter, content = message[:1], message[1:]
        if letter in (OUTPUT, ERRORS):
            _write(1 if letter == OUTPUT else 2, content)
        elif letter == SAY and content:
            self._note(content.decode(errors="replace"))
        elif letter == ABOUT and "kept" in (about := json.loads(content)):
            lost = f", {about['lost']} before them are lost" if about["lost"] else ""
            self._note(f"attached: the last {about['kept']} bytes of its output are kept{lost}")
        elif letter == EXIT:
            ended: dict[str, Any] = json.loads(content)
            return ended
        return None

    def _note(self, text: str) -> None:
        if self.on_terminal:
            _write(2, f"\r\n[{text}]\r\n".encode())
        else:
            say(text)

    def _pass_on(self) -> None:
        """Send what is typed, the size of the window, and interrupts."""
        from websockets.exceptions import ConnectionClosed

        keys = sys.stdin.fileno() if sys.stdin is not None else -1
        hearing = [self.wake, *([keys] if keys >= 0 else [])]
        with suppress(ConnectionClosed, OSError):
            if keys < 0:
                self.line.send(END)
            while True:
                readable = select.select(hearing, [], [], 25.0)[0]
                if not readable:
                    self.line.send(SAY)  # proxies close what is silent
                if self.wake in readable:
                    for sign in os.read(self.wake, 64):
                        self._signalled(sign)
                if keys in readable:
                    typed = os.read(keys, PIECE)
                    if self.on_terminal and (LEAVE in typed or not typed):
                        self.has_left = True
                        self.line.close()
                        return
                    self.line.send(INPUT + typed if typed else END)
                    if not typed:
                        hearing.remove(keys)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGWINCH:
            columns, rows = os.get_terminal_size(sys.stdin.fileno()) if self.on_terminal else (0, 0)
            self.line.send(WINDOW + SIZE.pack(rows, columns))
        elif number == signal.SIGINT:
            self.line.send(SIGNAL + str(int(signal.SIGINT)).encode())

    def _interrupt(self, *_: object) -> None:
        """Ctrl-C goes to the program; the second one ends the line, in case the first one cannot be sent."""
        self.interrupts += 1
        if self.interrupts > 1:
            raise KeyboardInterrupt

    @contextmanager
    def _keys_and_signals(self) -> Iterator[None]:
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, self._interrupt),
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
        }
        waking = signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)  # whichever thread is told
        try:
            with raw_keys() if self.on_terminal else nullcontext():
                yield
        finally:
            signal.set_wakeup_fd(waking)
            for number, handler in before.items():
                signal.signal(number, handler)


def _write(file: int, content: bytes) -> None:
    if file == 1:
        sys.stdout.flush()
    while content:
        content = content[os.write(file, content) :]


# ── ports ─────────────────────────────────────────────────────────────────────────────────────────


def forward(
    job: JobName,
    port: Annotated[
        str,
        typer.Argument(
            help="A port of this machine and that of the worker; one alone is both.", metavar="[LOCAL:]PORT"
        ),
    ],
    rank: Rank = None,
    url: Url = "",
    token: Token = "",
) -> None:
    """Listen on this machine, and carry each connection to a port of a worker, until ctrl-C."""
    local, remote = ports_in(port)
    with service(url, token) as client:
        described = client.describe(job)
        if described["ended_s"] is not None or not described["gpus"]:
            raise InputError(f"job {described['id']} does not run: {described['state']}")
        try:
            door = socket.create_server(("127.0.0.1", local))
        except OSError as wrong:
            raise InputError(f"port {local} of this machine cannot be had: {wrong.strerror}") from None
        with door:
            say(f"http://127.0.0.1:{door.getsockname()[1]} leads to port {remote} of job {described['id']}")
            while True:
                visitor, _ = door.accept()
                carrying = (client, described["id"], rank, remote, visitor)
                threading.Thread(target=_carry, args=carrying, daemon=True).start()


def ports_in(text: str) -> tuple[int, int]:
    """[LOCAL:]PORT: this machine's, where 0 or nothing is a free one, and the worker's. Raises InputError."""
    found = PORTS.fullmatch(text)
    remote = int(found[2]) if found else 0
    local = remote if found is None or found[1] is None else int(found[1] or 0)
    if not 0 < remote < 1 << 16 or not local < 1 << 16:
        raise InputError(f"port {text}: expected PORT or LOCAL:PORT, of 1 to 65535")
    return local, remote


def _carry(client: "Client", job: str, rank: int | None, port: int, visitor: socket.socket) -> None:
    """One connection, both ways, until either end closes it."""
    from websockets.exceptions import ConnectionClosed

    from stretto.client.worker_websocket import line_to
    from stretto.errors import StrettoError

    with visitor:
        try:
            line = line_to(client, job, "forward", rank=rank, port=port)
        except StrettoError as refused:
            say(f"stretto: {refused}")
            return

        def sent() -> None:
            with suppress(ConnectionClosed, OSError):
                while piece := visitor.recv(PIECE):
                    line.send(INPUT + piece)
                line.send(END)

        with line, suppress(ConnectionClosed, OSError):
            threading.Thread(target=sent, daemon=True).start()
            while True:
                message = line.recv()
                assert isinstance(message, bytes)
                if message[:1] == EXIT:
                    if why := json.loads(message[1:])["why"]:
                        say(f"stretto: {why}")
                    visitor.shutdown(socket.SHUT_RDWR)
                    return
                visitor.sendall(message[1:])
