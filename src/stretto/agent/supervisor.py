"""The small process that starts one worker, waits for all that comes of it, and writes down how it ended.

Run as `python -I -S supervisor.py RUN_DIR` with the run's FIFO as standard input: it must start fast, be
small and outlive its agent. So it imports the standard library only and stands alone in this file. The agent
imports from here what both need. It ends with the status of the command.

Where no FIFO reaches, as from another machine, orders are appended to the file `orders` of the run, and
SIGUSR1 has the supervisor read on. SIGTERM does so too, and stops the worker in any case.

A process that loses its parent becomes a child of the nearest subreaper, which is the supervisor. So
everything that the worker started is gone exactly when the supervisor has no child left, whatever sessions
and groups it went to. If the supervisor itself is killed, the kernel kills the worker with it; the agent
looks for the rest.

A run may name guards in its start.json, processes as [pid, ticks]. Once any of them is gone, nothing keeps
the GPUs for this worker any more, and all of it is killed at once. With --apart the supervisor makes itself
the child of no process, for an agent whose end takes its children with it.
"""

from __future__ import annotations  # nodes of a cluster may have an older Python than we

import ctypes
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

RESERVED_BYTES = 4096  # for the ending, set aside before the start, so that a full disk cannot lose it
RETRY_S = 1.0  # between attempts to write the ending
MOST_TRIES = 10  # of these where the run directory is gone; its agent then counts the worker as lost; chosen
FIRST_KILL_PAUSE_S, LONGEST_KILL_PAUSE_S = 0.02, 1.0  # what is killed may fork meanwhile, or hang in a driver

CONTROL = 0  # standard input: the FIFO through which the agent gives orders
ORDERS = "orders"  # or the file of the run where whoever is on another machine writes them
SECRETS = "secrets.json"  # of the run, until the supervisor has read it
WORK = "work"  # in the run: where the command of another user begins
CONTAINER = "container"  # of start.json: in which the command runs
POD_RUN = "run-"  # how the name of a run begins in a pod, beside copies of uploads
APART = "--apart"
UNGUARDED = "killed, since what kept its GPUs for it has ended"
KILLED = {"status": 137, "signal": 9}
KNOWN_TWICE = ("job", "gpus", "mark", "guards", "group", "devices")  # in running.json as in start.json
# Before the name of each variable that is for the worker alone: to the supervisor, which may run as another
# user, none of them means anything.
SECRET = "STRETTO_SECRET_"
RUN_MARK = "STRETTO_RUN"  # in the environment of every process of a run, by which its leftovers are found

# How a command ends that could not fetch what its job has brought along; it has written why into a file of
# STRETTO_SETUP_DIR that is named by its worker.
NO_UPLOAD, WHY = 125, ".why"
LONGEST_WHY_BYTES = 400  # chosen


class Process(NamedTuple):
    """One process as /proc shows it; until the machine restarts, no two have the same `pid` and `ticks`."""

    pid: int
    parent: int
    group: int
    session: int
    ticks: int  # when it started, in clock ticks since the machine started


def process_at(pid: int) -> Process | None:
    """The process with this id, or None if there is none, or only what is left of one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold spaces and parentheses of its own.
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1):  # its other threads may still run
        return None
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def processes() -> Iterator[Process]:
    """Every process of this machine that has not ended."""
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() and (found := process_at(int(entry.name))):
                yield found


def descendants(roots: set[int], table: list[Process]) -> list[Process]:
    """Those of `table` that come from `roots`, without these."""
    family = set(roots)
    while more := {each.pid for each in table if each.parent in family} - family:
        family |= more
    return [each for each in table if each.pid in family - roots]


def send_to(process: Process, number: int) -> None:
    """A signal to exactly this process, never to another that got its id since."""
    with suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process.pid)
        try:
            now = process_at(process.pid)
            if now and now.ticks == process.ticks:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def send_inside(group: int, first: int, number: int) -> None:
    """A signal to a process group; to those of it that are `first` or come from it, where that is its own.

    A tool that runs a container passes signals on: what is inside would get each of them twice.
    """
    told: set[tuple[int, int]] = set()
    if not first or first not in {each.pid for each in descendants({group}, list(processes()))}:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
        return
    while True:
        table = list(processes())
        inside = {first, *(each.pid for each in descendants({first}, table))}
        missed = [each for each in table if each.group == group and each.pid in inside]
        missed = [each for each in missed if (each.pid, each.ticks) not in told]
        if not missed:  # nor was any forked meanwhile by one that had not got it yet
            return
        for each in missed:
            told.add((each.pid, each.ticks))
            send_to(each, number)


def container() -> Any:
    """The module of containers, beside this one: loaded only where a run has one."""
    if not __package__:
        sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module(f"{__package__}.container" if __package__ else "container")


def boot_id() -> str:
    """A name of this run of the machine: no process of another one is left."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def orders_in(text: bytes) -> Iterator[dict[str, Any]]:
    """Orders, one JSON object a line; a line that a full disk has cut is none."""
    for line in text.splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def write_durably(path: Path, value: dict[str, Any]) -> None:
    """Replace a file by a JSON object, whole or not at all, even if the power fails.

    Overwrites `path` + ".part" in place where that was set aside before. Raises OSError.
    """
    part = path.with_name(path.name + ".part")
    text = json.dumps(value).encode()
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(text):
            written += os.pwrite(file, text[written:], written)
        os.ftruncate(file, len(text))
        os.fsync(file)
    finally:
        os.close(file)
    part.replace(path)
    sync_directory(path.parent)


def delete_tree(folder: Path) -> None:
    """Remove a directory as far as possible, also where a job has made directories in it read-only."""
    import shutil  # which most supervisors never need

    folders = [folder] if os.getuid() else []  # root may anyway, and is to follow nobody's links
    for each in folders:  # which grows meanwhile: a directory has to be open before what is in it is seen
        with suppress(OSError):
            each.chmod(0o700)
            folders += [Path(entry) for entry in os.scandir(each) if entry.is_dir(follow_symlinks=False)]
    shutil.rmtree(folder, ignore_errors=True)


def reserve(path: Path) -> None:
    """Set disk space aside for a later `write_durably`; raises OSError where there is none."""
    file = os.open(path.with_name(path.name + ".part"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, b" " * RESERVED_BYTES)
        os.fsync(file)
    finally:
        os.close(file)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def status_of(wait_status: int) -> dict[str, Any]:
    """Exit status and signal as a shell would show them."""
    code = os.waitstatus_to_exitcode(wait_status)
    return {"status": code, "signal": None} if code >= 0 else {"status": 128 - code, "signal": -code}


class Supervisor:
    """One worker, from its start until nothing of it is left."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.start: dict[str, Any] = json.loads((run / "start.json").read_bytes())
        self.secrets = secrets_of(run)
        self.pid = 0
        self.notes: dict[str, Any] = {}  # what running.json says
        self.exit: dict[str, Any] | None = None  # how the command ended, while others of it may go on
        self.began = 0.0  # monotonic
        self.kill_at: float | None = None  # monotonic; set by the first stop
        self.pause_s = FIRST_KILL_PAUSE_S
        self.told: set[tuple[int, int]] = set()  # processes outside the group that were sent SIGTERM
        self.unguarded = ""  # why it is killed without having been asked to stop
        self.asked = False  # a stop was asked for
        self.guards: list[int] = []  # pidfds, which become readable when their process ends
        self.failure = -1  # read end of the pipe on which the child says why it could not start
        self.was_told = False  # SIGTERM came to the supervisor itself
        self.was_called = True  # SIGUSR1 did; at first whoever gave an order before there was anybody to call
        self.orders_read = 0  # bytes of the file of orders

    def keep(self) -> int:
        """Start, wait, write; the status of the command."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot become a subreaper")
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "was_told", True))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "was_called", True))
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        if CONTAINER in self.start:
            container().enter(self.run, self.start)
        self.launch(libc)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(CONTROL, select.POLLIN)
        self.guards = [guard_at(*each) for each in self.start.get("guards", ())]
        for guard in self.guards:
            poll.register(guard, select.POLLIN)
        while self.reap():
            if self.was_told or self.was_called:
                was_told, self.was_told, self.was_called = self.was_told, False, False
                if not self.obey(self.new_orders()) and was_told and not self.asked:
                    self.ask_to_stop(float(self.start["grace_s"]))
            for file, _ in poll.poll(self.pursue()):
                if file in self.guards:
                    poll.unregister(file)
                    self.kill_all()
                    continue
                text = os.read(file, 65536)
                if file == CONTROL:
                    self.obey(text)
                    if not text:  # no FIFO but /dev/null, which can always be read
                        poll.unregister(CONTROL)
        self.write_ending()
        return int((self.exit or KILLED)["status"])

    def launch(self, libc: ctypes.CDLL) -> None:
        """Start the command, held back until it is known on disk which process it is."""
        go_ahead, go = os.pipe2(os.O_CLOEXEC)
        self.failure, failed = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        own_pid = os.getpid()
        # Until it is the command, the child has our handler, which would swallow a SIGTERM: that waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go)
            become_worker(self.run, self.start, self.secrets, libc, own_pid, go_ahead, failed)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(go_ahead)
        os.close(failed)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(self.pid, self.pid)  # the child does so too; whoever is first
        if group := self.start.get("group"):
            with suppress(OSError):  # then it is in ours, and found by other means
                (Path(group) / "cgroup.procs").write_text(str(self.pid), encoding="ascii")
        worker, own = process_at(self.pid), process_at(own_pid)
        self.began = time.monotonic()
        self.notes = {
            "pid": self.pid,
            "ticks": worker.ticks if worker else 0,
            "keeper_pid": own_pid,
            "keeper_ticks": own.ticks if own else 0,
            "boot_id": boot_id(),
            "started_s": time.time(),
            "stopping": False,
            "exit": None,
            # Should start.json be damaged, this says which GPUs it has, and how to find what is left of it.
            "of": {name: self.start.get(name) for name in KNOWN_TWICE},
            **({CONTAINER: self.start[CONTAINER]} if CONTAINER in self.start else {}),
        }
        write_durably(self.run / "running.json", self.notes)
        with suppress(BrokenPipeError):
            os.write(go, b"g")
        os.close(go)

    def new_orders(self) -> bytes:
        """Whole lines of the file of orders that were not read before."""
        try:
            with open(self.run / ORDERS, "rb", opener=without_waiting) as file:
                file.seek(self.orders_read)
                text = file.read()
        except OSError:  # there is none, or what lies there is no file
            return b""
        text = text[: text.rfind(b"\n") + 1]
        self.orders_read += len(text)
        return text

    def obey(self, text: bytes) -> bool:
        """Do what is asked for, one JSON object a line; whether a stop was."""
        stops = False
        for order in orders_in(text):
            if "stop" in order:
                stops = True
                self.ask_to_stop(float(order["stop"]))
            elif "signal" in order and self.exit is None:
                self.send(int(order["signal"]))
        return stops

    def ask_to_stop(self, grace_s: float) -> None:
        """SIGTERM, once; the time until SIGKILL can only become shorter."""
        kill_at = time.monotonic() + grace_s
        first, self.asked = self.kill_at is None, True
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        if first and self.exit is None and self.pid:
            self.note(stopping=True)
            self.send(signal.SIGTERM)
            self.send(signal.SIGCONT)  # what is suspended could not obey

    def send(self, number: int) -> None:
        """A signal to the command's process group; where it has a container, to those of the group inside."""
        first = container().first_process(self.run) if CONTAINER in self.start else 0
        if first and (group := container().group_of_step(first, self.start)):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        else:
            send_inside(self.pid, first, number)

    def kill_all(self) -> None:
        """SIGKILL now: a guard is gone."""
        self.kill_at = time.monotonic()
        self.unguarded = "" if self.asked else UNGUARDED

    def reap(self) -> bool:
        """Wait for all that have ended; whether any process is left."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.exit = {**status_of(wait_status), "stopped": self.asked, "why": self.unguarded}
                with suppress(BlockingIOError):
                    message = os.read(self.failure, 1000).decode(errors="replace")
                    self.exit["why"] = message or self.unguarded or self.why_no_upload()
                if CONTAINER in self.start and self.exit["status"] and not self.asked:
                    self.explain_container(self.exit)
                if self.rest():
                    self.note(exit=self.exit)

    def explain_container(self, ending: dict[str, Any]) -> None:
        """Say why a container did not begin, where that is how its command has ended."""
        wanted = self.start[CONTAINER]
        if not ending["why"] and (why := container().why_not_begun(self.run, wanted)):
            ending["why"] = why
            ending["status"] = ending["status"] if "why" in wanted else container().NOT_BEGUN

    def why_no_upload(self) -> str:
        """Why the command could not fetch its job's upload, in one line; "" where it has done so."""
        env = {**os.environ, **self.start["env"]}
        if (self.exit or {}).get("status") != NO_UPLOAD or "STRETTO_UPLOAD" not in env:
            return ""
        return first_line(Path(env.get("STRETTO_SETUP_DIR", "")) / f"{env.get('STRETTO_WORKER_ID')}{WHY}")

    def pursue(self) -> int | None:
        """What is due of a stop; milliseconds until more is, or None."""
        if self.kill_at is None:
            return None
        left_s = self.kill_at - time.monotonic()
        if left_s > 0 and self.exit is None:
            return milliseconds(left_s)
        if left_s > 0:
            self.tell(self.rest())
            return milliseconds(left_s)
        for each in self.rest():
            send_to(each, signal.SIGKILL)
        self.pause_s = min(self.pause_s * 2, LONGEST_KILL_PAUSE_S)
        return milliseconds(self.pause_s)

    def rest(self) -> list[Process]:
        """What is left of the run, without the supervisor."""
        return descendants({os.getpid()}, list(processes()))

    def tell(self, rest: list[Process]) -> None:
        """SIGTERM to what outlives the command, except to what got it with the command's group.

        Nor to what these have started, such as processes of a data loader. Where the command was a shell, a
        training that it ran may still be on its way to where it can end.
        """
        in_group = {each.pid for each in rest if each.group == self.pid} if self.notes["stopping"] else set()
        spared = in_group | {each.pid for each in descendants(in_group, rest)}
        for each in rest:
            if each.pid not in spared and (each.pid, each.ticks) not in self.told:
                self.told.add((each.pid, each.ticks))
                send_to(each, signal.SIGTERM)
                send_to(each, signal.SIGCONT)

    def note(self, **more: Any) -> None:
        """Keep running.json up to date as far as the disk allows: only what helps if we are killed."""
        self.notes |= more
        with suppress(OSError):
            write_durably(self.run / "running.json", self.notes)

    def write_ending(self) -> None:
        """Write down how it ended; tried until it succeeds, since no other knows, or the run is gone."""
        ending = {
            **(self.exit or {}),
            "started_s": self.notes["started_s"],
            "ended_s": time.time(),
            "lasted_s": time.monotonic() - self.began,
        }
        last_failure, times_gone = "", 0
        while times_gone < MOST_TRIES:
            try:
                write_durably(self.run / "ended.json", ending)
            except OSError as failure:
                if last_failure != str(failure):
                    last_failure = str(failure)
                    print(f"cannot write ended.json: {last_failure}", file=sys.stderr, flush=True)
                times_gone = 0 if self.run.is_dir() else times_gone + 1
                time.sleep(RETRY_S)
            else:
                return


def without_waiting(path: str, flags: int) -> int:
    """Open a file: opened as usual, a FIFO to read from would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def first_line(file: Path) -> str:
    """How a file begins that a user may have written; "" where there is none to be read."""
    with suppress(OSError):
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.read(handle, LONGEST_WHY_BYTES).decode(errors="ignore")  # the last letter may be cut
        finally:
            os.close(handle)
        return "".join(each for each in text.partition("\n")[0] if each.isprintable())
    return ""


def milliseconds(wait_s: float) -> int:
    """A timeout for poll(2), which takes an int: long ones are cut, and asked for again."""
    return int(min(wait_s, 3600.0) * 1000) + 1


def secrets_of(run: Path) -> dict[str, str]:
    """Variables for the worker alone: of our environment, from which they go, or of a file, which goes.

    The file is for a supervisor that a cluster starts on another machine.
    """
    names = [name for name in os.environ if name.startswith(SECRET)]
    secrets = {name[len(SECRET) :]: os.environ.pop(name) for name in names}
    file = run / SECRETS
    with suppress(FileNotFoundError):
        secrets.update(json.loads(file.read_bytes()))
        file.unlink()
    return secrets


def become_worker(
    run: Path,
    start: dict[str, Any],
    secrets: dict[str, str],
    libc: ctypes.CDLL,
    parent: int,
    go_ahead: int,
    failed: int,
) -> NoReturn:
    """In the child: turn into the command as soon as the supervisor allows it."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # first: only the supervisor may read orders
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        log = -1  # a container's output is its log
        if start.get("log") != "inherit":
            log = os.open(run / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        account = start.get("account")
        if account:
            become_user(account, libc)
        # Not before: the kernel forgets it as the user changes.
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent or os.read(go_ahead, 1) != b"g":
            os._exit(137)  # the supervisor was killed before that could reach us
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if log >= 0:
            os.dup2(log, 1)
            os.dup2(log, 2)
        os.chdir(start["cwd"] or (run / WORK if account else run))
    except BaseException as surprise:
        os.write(failed, f"cannot start: {surprise}".encode()[:1000])
        os._exit(126)
    inherited = dict(os.environ)
    if account:
        inherited.pop("TMPDIR", None)  # of whoever keeps it, where other users may not write
    command = start["command"]
    if isinstance(command, str):
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        command = [shell, "-c", command]
    try:
        os.execvpe(command[0], command, {**inherited, **surroundings_of(account), **secrets, **start["env"]})
    except BaseException as surprise:
        why = getattr(surprise, "strerror", None) or repr(surprise)
        os.write(failed, f"cannot run {command[0]!r}: {why}".encode()[:1000])
        os._exit(127 if isinstance(surprise, FileNotFoundError) else 126)


def become_user(account: dict[str, Any], libc: ctypes.CDLL) -> None:
    """Be this user and no other any more, whatever is run; what is written is private unless it says so."""
    os.setgroups(account["groups"])
    os.setresgid(account["gid"], account["gid"], account["gid"])
    os.setresuid(account["uid"], account["uid"], account["uid"])
    os.umask(0o077)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot give up the way to other users")


def surroundings_of(account: dict[str, Any] | None) -> dict[str, str]:
    """What a user's programs find of their user in the environment."""
    if not account:
        return {}
    name = account["name"] or str(account["uid"])
    return {"USER": name, "LOGNAME": name, "HOME": account["home"] or "/"}


def handle_of(pid: int, ticks: int) -> int | None:
    """A file that becomes readable when a process ends; None if it has, or if that cannot be told."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        process = process_at(pid)
        if process and process.ticks == ticks:
            return handle
        os.close(handle)
    return None


def guard_at(pid: int, ticks: int) -> int:
    """A file that becomes readable when a process has ended; at once if it has."""
    if (handle := handle_of(pid, ticks)) is not None:
        return handle
    ended, other = os.pipe2(os.O_CLOEXEC)
    os.close(other)
    return ended


def main() -> None:
    """Keep the run whose directory the argument names."""
    if APART in sys.argv[2:]:
        if os.fork():
            os._exit(0)
        os.setsid()
    sys.exit(Supervisor(Path(sys.argv[1])).keep())


if __name__ == "__main__":
    main()
