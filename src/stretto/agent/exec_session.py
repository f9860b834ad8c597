"""A program or a connection beside a worker: as its user, in its directory, with its environment.

Run as `python -I -S exec_session.py RUN` with both ends of a line as standard input and output. RUN is the
run directory or, in a pod, the folder of it. Standard library only, beside supervisor.py. What comes and goes
are frames: a letter, a length of four bytes, and the content.

To here: `s`, first, says as JSON what to run (`argv`, `tty`, `rows`, `columns`, `term`) or to which `port` of
this machine to connect. Then `d`: input; `e`: its end; `w`: rows and columns of the window; `k`: a signal for
what runs. From here: `o` output, `r` what goes to standard error, and last `x`, as JSON, the `status` and
`why`. Neither way keeps more than `MOST_WAITING` bytes: a writer that is faster than its reader has to wait.

It ends with what it runs, with its line, or with the worker: nothing that was started here outlives it.
"""

from __future__ import annotations  # nodes of a cluster may have an older Python than we

import ctypes
import errno
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING or __name__ != "__main__":
    from stretto.agent import supervisor
else:  # a script, beside supervisor.py
    sys.path.insert(0, str(Path(__file__).parent))
    import supervisor

FRAME = struct.Struct("!cI")
SIZE = struct.Struct("!HH")  # rows, columns
START, INPUT, END, WINDOW, SIGNAL = b"s", b"d", b"e", b"w", b"k"
OUTPUT, ERRORS, EXIT = b"o", b"r", b"x"
MOST_WAITING = 1 << 16  # bytes that wait on either way; chosen
PIECE = 1 << 14
LONGEST_FRAME = 1 << 20
HANG_UP_S = 2.0  # from SIGHUP to SIGKILL; chosen
REST_S = 0.3  # that the output of what has ended may pause, while a child of it has it too; chosen
ENVIRONMENT_S = 5.0  # for a worker to become its command; chosen
FIRST_FRAME_S = 30.0  # chosen
END_OF_INPUT = b"\x04"  # ctrl-D, on a terminal
GONE = "its worker has ended"


class NotReached(Exception):
    """Why nothing can be started beside the worker."""


class Frames:
    """Frames as they come in pieces."""

    def __init__(self) -> None:
        self.unread = bytearray()

    def take(self) -> tuple[bytes, bytes] | None:
        """The next one that is whole."""
        if len(self.unread) < FRAME.size:
            return None
        letter, length = FRAME.unpack_from(self.unread)
        if length > LONGEST_FRAME:
            raise NotReached(f"a frame must have at most {LONGEST_FRAME} bytes, got {length}")
        if len(self.unread) < FRAME.size + length:
            return None
        content = bytes(self.unread[FRAME.size : FRAME.size + length])
        del self.unread[: FRAME.size + length]
        return letter, content


def frame(letter: bytes, content: bytes = b"") -> bytes:
    """One frame."""
    return FRAME.pack(letter, len(content)) + content


class Worker:
    """The worker that is reached: its command's process, and what that found when it began."""

    def __init__(self, run: Path) -> None:
        start = object_in(run / "start.json")
        try:
            notes = object_in(run / "running.json")
        except (OSError, ValueError):
            raise NotReached("its worker has not begun yet") from None
        handle = supervisor.handle_of(notes["pid"], notes["ticks"])
        if handle is None or notes["boot_id"] != supervisor.boot_id():
            raise NotReached(GONE)
        self.handle = handle  # readable once it has ended
        self.account: dict[str, Any] | None = start.get("account")
        self.image: str = (start.get(supervisor.CONTAINER) or {}).get("image", "")
        around = notes.get(supervisor.CONTAINER) or {}
        self.enter: list[str] = around.get("enter") or []  # its container
        first = notes["pid"]
        if self.enter and not (first := supervisor.container().first_process(run)):
            raise NotReached("its container has not begun yet")
        self.env = self._environment(first, start)
        if self.enter:
            self.env = supervisor.container().outside(self.env, os.environ, around.get("binding") or {})
        try:
            self.cwd = str(Path(f"/proc/{first}/cwd").readlink())
        except OSError:
            self.cwd = start["cwd"] or str(run)

    def _environment(self, pid: int, start: dict[str, Any]) -> dict[str, str]:
        """With secrets, which no file has; it shows the mark of the run once it is the command's."""
        until = time.monotonic() + ENVIRONMENT_S
        while True:
            try:
                text = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                raise NotReached(GONE) from None
            pairs = [os.fsdecode(each).partition("=") for each in text.split(b"\0") if b"=" in each]
            shown = {name: value for name, _, value in pairs}
            if supervisor.RUN_MARK in shown:
                return shown
            if time.monotonic() > until:  # its command has changed what it shows
                return {**shown, **start["env"]}
            time.sleep(0.01)


class ExecSession:
    """One program or connection, from its start to its end."""

    def __init__(self, worker: Worker, line_in: int, line_out: int) -> None:
        self.worker, self.line_in, self.line_out = worker, line_in, line_out
        self.frames = Frames()
        self.unsent = bytearray()  # to the line
        self.unread = bytearray()  # to the program
        self.input = -1  # where the program reads; -1: nothing is taken any more
        self.outputs: dict[int, bytes] = {}  # where it writes, with the letter of it
        self.is_terminal = False
        self.pid = 0  # of the program; 0: a connection
        self.status: int | None = None
        self.why = ""
        self.input_ends = False
        self.has_line = True
        self.kill_at: float | None = None
        self.ended_s = 0.0  # monotonic: when it was last heard of after its end

    def serve(self) -> None:
        """Until all is over."""
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in {self.line_in, self.line_out}:
            os.set_blocking(each, False)
        try:
            self.start(self.first_frame())
        except NotReached as refused:
            self.status, self.why = 126, str(refused)
            self.finish()
            return
        self.obey()  # what came right behind the start
        while not self.is_over():
            self.turn(wake)
        self.finish()

    def first_frame(self) -> dict[str, Any]:
        """What is to be started; raises NotReached."""
        until = time.monotonic() + FIRST_FRAME_S
        while (first := self.frames.take()) is None:
            if not select.select([self.line_in], [], [], max(until - time.monotonic(), 0))[0]:
                raise NotReached("nothing was asked for in time")
            if not (more := _read(self.line_in)) and more is not None:
                raise NotReached("nothing was asked for")
            self.frames.unread += more or b""
        if first[0] != START:
            raise NotReached(f"expected a start, got {first[0]!r}")
        asked: dict[str, Any] = json.loads(first[1])
        return asked

    def start(self, asked: dict[str, Any]) -> None:
        """Connect, or start the program; raises NotReached."""
        if "port" in asked:
            self.connect(int(asked["port"]))
        elif asked.get("tty"):
            self.start_on_terminal(asked)
        else:
            self.start_on_pipes(asked)

    def connect(self, port: int) -> None:
        """Connect to a port; raises NotReached."""
        line = None
        for host in ("127.0.0.1", "::1"):
            try:
                line = socket.create_connection((host, port), timeout=10.0)
                break
            except OSError as failure:
                self.why = self.why or f"nothing answers at port {port} of the worker: {failure.strerror}"
        if line is None:
            raise NotReached(self.why)
        self.why = ""
        line.setblocking(False)
        self.input = line.detach()
        self.outputs = {self.input: OUTPUT}
        self.unsent += frame(OUTPUT)  # it is there

    def start_on_terminal(self, asked: dict[str, Any]) -> None:
        """Start the program on a terminal of its own."""
        self.pid, screen = pty.fork()
        if self.pid == 0:
            self.become(asked["argv"], {"TERM": str(asked.get("term") or "xterm-256color")})
        self.is_terminal = True
        self.resize(screen, SIZE.pack(int(asked.get("rows", 24)), int(asked.get("columns", 80))))
        os.set_blocking(screen, False)
        self.input, self.outputs = screen, {screen: OUTPUT}

    def start_on_pipes(self, asked: dict[str, Any]) -> None:
        """Start the program on pipes."""
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.dup2(pipes[0][0], 0)
            os.dup2(pipes[1][1], 1)
            os.dup2(pipes[2][1], 2)
            self.become(asked["argv"], {})
        for each in (pipes[0][0], pipes[1][1], pipes[2][1]):
            os.close(each)
        self.input, output, errors = pipes[0][1], pipes[1][0], pipes[2][0]
        for each in (self.input, output, errors):
            os.set_blocking(each, False)
        self.outputs = {output: OUTPUT, errors: ERRORS}

    def become(self, argv: list[str], more: dict[str, str]) -> NoReturn:
        """In the child: turn into the program."""
        try:
            signal.set_wakeup_fd(-1)
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(supervisor.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            if self.worker.enter:
                inside = supervisor.container().inside
                argv = [*inside(self.worker.enter, self.worker.cwd, self.worker.image), *argv]
            else:
                os.chdir(self.worker.cwd)
            os.execvpe(argv[0], argv, {**self.worker.env, **more})
        except BaseException as surprise:
            why = getattr(surprise, "strerror", None) or repr(surprise)
            os.write(2, f"{argv[0]}: {why}\n".encode(errors="replace"))
            os._exit(127 if isinstance(surprise, FileNotFoundError) else 126)

    def resize(self, screen: int, size: bytes) -> None:
        """Give the terminal another size; what runs there is told by SIGWINCH."""
        if len(size) == SIZE.size:
            rows, columns = SIZE.unpack(size)
            with suppress(OSError):
                fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # ── one turn ──────────────────────────────────────────────────────────────────────────────────

    def is_over(self) -> bool:
        """Whether what runs has ended, and all that it wrote is with the line, or the line is gone."""
        if self.pid == 0:
            return not self.outputs
        if self.status is None:
            return False
        late = time.monotonic() > self.ended_s + REST_S and len(self.unsent) < MOST_WAITING
        return not self.outputs or late or not self.has_line

    def turn(self, wake: int) -> None:
        """Wait for something, and pass it on."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.worker.handle, select.POLLIN)
        wanted: dict[int, int] = {}
        if self.has_line and len(self.unread) < MOST_WAITING:
            wanted[self.line_in] = select.POLLIN
        elif self.has_line:
            wanted[self.line_in] = select.POLLRDHUP
        if self.has_line and self.unsent:
            wanted[self.line_out] = wanted.get(self.line_out, 0) | select.POLLOUT
        for each in self.outputs if len(self.unsent) < MOST_WAITING else ():
            wanted[each] = select.POLLIN
        if self.input >= 0 and self.unread:
            wanted[self.input] = wanted.get(self.input, 0) | select.POLLOUT
        for file, events in wanted.items():
            poll.register(file, events)
        happened = dict(poll.poll(self.pause_ms()))
        if wake in happened:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
        self.reap()
        if self.worker.handle in happened and self.kill_at is None:
            self.why = GONE
            self.hang_up()
        if happened.get(self.line_out, 0):
            self.send()
        heard = happened.get(self.line_in, 0)
        if heard and wanted.get(self.line_in, 0) & select.POLLIN:
            self.hear()
        elif heard:
            self.lose_line()
        for each in [file for file in self.outputs if happened.get(file, 0) & ~select.POLLOUT]:
            if len(self.unsent) < MOST_WAITING:
                self.pass_on(each)
        if self.input >= 0 and happened.get(self.input, 0) & (select.POLLOUT | select.POLLERR):
            self.feed()
        if self.kill_at is not None and time.monotonic() > self.kill_at:
            self.kill_all()

    def pause_ms(self) -> int:
        """For how long nothing is to be done."""
        if self.status is not None:
            return int(REST_S * 1000)
        if self.kill_at is not None:
            return max(int((self.kill_at - time.monotonic()) * 1000), 0) + 1
        return 60_000

    def reap(self) -> None:
        """Wait for all that have ended."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = int(supervisor.status_of(wait_status)["status"])
                self.ended_s = time.monotonic()

    def hear(self) -> None:
        """Take what the line says."""
        more = _read(self.line_in)
        if more is None:
            return
        if not more:
            self.lose_line()
            return
        self.frames.unread += more
        self.obey()

    def obey(self) -> None:
        """Do what whole frames say."""
        while (whole := self.frames.take()) is not None:
            letter, content = whole
            if letter == INPUT and self.input >= 0:
                self.unread += content
            elif letter == END:
                if self.is_terminal:
                    self.unread += END_OF_INPUT
                else:
                    self.input_ends = True
            elif letter == WINDOW and self.is_terminal:
                self.resize(self.input, content)
            elif letter == SIGNAL and self.pid and self.status is None:
                with suppress(PermissionError, ValueError):
                    supervisor.send_inside(self.pid, self.first_inside(), int(content))
        self.end_input()

    def first_inside(self) -> int:
        """The process with which a container begins that was started here; 0 for none."""
        table = supervisor.processes() if self.worker.enter else ()
        return next((each.pid for each in table if (each.parent, each.group) == (self.pid, self.pid)), 0)

    def end_input(self) -> None:
        """Close what the program reads once it has all that was sent."""
        if self.input_ends and not self.unread and self.input >= 0 and not self.is_terminal:
            if self.pid:
                os.close(self.input)
            else:
                with suppress(OSError), socket.socket(fileno=os.dup(self.input)) as line:
                    line.shutdown(socket.SHUT_WR)
            self.input = -1

    def feed(self) -> None:
        """Hand the program what it can take."""
        try:
            del self.unread[: os.write(self.input, self.unread[:PIECE])]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self.unread.clear()
            self.input_ends = True
        self.end_input()

    def pass_on(self, file: int) -> None:
        """Take what the program has written."""
        try:
            output = os.read(file, PIECE)
        except BlockingIOError:
            return
        except OSError as failure:  # EIO: nothing has the terminal any more
            output = b""
            if failure.errno not in (errno.EIO, errno.ECONNRESET):
                self.why = self.why or str(failure)
        if output:
            self.unsent += frame(self.outputs[file], output)
            self.ended_s = time.monotonic()
            return
        del self.outputs[file]
        if not self.is_terminal and self.pid:
            os.close(file)

    def send(self) -> None:
        """Give the line what it takes."""
        try:
            del self.unsent[: os.write(self.line_out, self.unsent)]
            self.ended_s = time.monotonic()  # there is room for more of the rest
        except BlockingIOError:
            return
        except OSError:
            self.lose_line()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def lose_line(self) -> None:
        """The line is gone."""
        self.has_line = False
        self.unsent.clear()
        self.hang_up()

    def hang_up(self) -> None:
        """SIGHUP, as to programs whose terminal goes, and SIGKILL a little later."""
        if self.kill_at is not None:
            return
        self.kill_at = time.monotonic() + HANG_UP_S
        if not self.pid:
            self.outputs.clear()
        elif self.status is None:
            for number in (signal.SIGHUP, signal.SIGCONT):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def kill_all(self) -> None:
        """SIGKILL to all that was started here."""
        for each in supervisor.descendants({os.getpid()}, list(supervisor.processes())):
            supervisor.send_to(each, signal.SIGKILL)
        self.kill_at = time.monotonic() + 0.1
        self.ended_s = min(self.ended_s, time.monotonic() - REST_S)

    def finish(self) -> None:
        """Let nothing be left, and say how it ended."""
        ending = {"status": self.status or 0, "why": self.why}
        self.unsent += frame(EXIT, json.dumps(ending).encode())
        while self.has_line and self.unsent:
            wait_s = 1.0 if self.kill_at is None else HANG_UP_S
            writable = select.select([], [self.line_out], [], wait_s)[1]
            if writable:
                self.send()
            elif self.kill_at is not None or not _is_open(self.line_in):
                break
        while self.pid:
            self.kill_all()
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
            except ChildProcessError:
                break


def _read(file: int) -> bytes | None:
    """What is there; empty at the end, None where nothing is there yet."""
    try:
        return os.read(file, PIECE)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _is_open(file: int) -> bool:
    """Whether the other end is there; what it still sends is dropped."""
    return not select.select([file], [], [], 0)[0] or _read(file) != b""


def object_in(file: Path) -> dict[str, Any]:
    """A JSON object that a file holds. Raises OSError, ValueError."""
    content = json.loads(file.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected a JSON object")
    return content


def run_in(folder: Path) -> Path:
    """The run directory: this one, or, in a pod, the last that was made in it."""
    if (folder / "start.json").exists():
        return folder  # whatever its worker has put below it
    within = [each.parent for each in folder.glob(f"{supervisor.POD_RUN}*/start.json")]
    return max(within, key=lambda each: each.stat().st_mtime_ns, default=folder)


def main() -> None:
    """Reach the worker whose run directory the argument names."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm's, as its worker ends: it says so, and ends then
    line_in, line_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1):
        os.dup2(null, each)
    try:
        worker = Worker(run_in(Path(sys.argv[1])))
        if worker.account:
            supervisor.become_user(worker.account, libc)
    except (NotReached, OSError, ValueError, KeyError, TypeError, AttributeError) as refused:
        why = str(refused) if isinstance(refused, NotReached) else f"the worker cannot be reached: {refused}"
        os.set_blocking(line_out, True)
        os.write(line_out, frame(EXIT, json.dumps({"status": 126, "why": why}).encode()))
        return
    ExecSession(worker, line_in, line_out).serve()


if __name__ == "__main__":
    main()
