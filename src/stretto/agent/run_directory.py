"""Run directories: the files of each worker on its node, made, read and checked.

What the files of a run say, each checked before anything depends on it.

A file that is not what was written there (cut off by a full disk, garbled, replaced) is *damaged*. That hurts
its own worker and no other: what the other files say as well is taken from there.
"""

import errno
import json
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from secrets import token_hex
from typing import Any

from stretto.agent import containment, exec_session, supervisor, unix_users
from stretto.agent.requests import WORKER_ID
from stretto.agent.supervisor import KNOWN_TWICE

LARGEST_BYTES = 32 << 20  # of a file that we write; chosen: a request has at most 1 MiB, as JSON some more
# What says nothing about the file: it may be read a moment later.
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)


class Damaged(ValueError):
    """What stands in the place of a file is not what was written there."""


def read_file(path: Path) -> bytes | None:
    """All of a file, or None if there is none; raises Damaged, and OSError where to ask again may help."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as reader:
        try:
            text = reader.read(LARGEST_BYTES + 1)
        except OSError as failure:
            raise _damage(path, failure) from failure
    if len(text) > LARGEST_BYTES:
        raise Damaged(f"{path.name} must have at most {LARGEST_BYTES} bytes")
    return text


def open_file(path: Path) -> int:
    """A file, opened for reading; raises FileNotFoundError, and as `read_file` does for what is no file."""
    try:
        # A process that opens a FIFO to read from it would wait for a writer.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise _damage(path, failure) from failure
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise Damaged(f"{path.name} is no file")


def _damage(path: Path, failure: OSError) -> Exception:
    """What it means that a file cannot be read."""
    return failure if failure.errno in PASSING else Damaged(f"{path.name} cannot be read: {failure.strerror}")


def read_json(path: Path) -> dict[str, Any] | None:
    """An object that `write_durably` wrote, or None if there is none; raises as `read_file` does."""
    text = read_file(path)
    if text is None:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise Damaged(f"{path.name} must be JSON, got {text[:40]!r}") from failure
    if not isinstance(document, dict):
        raise Damaged(f"{path.name} must be a JSON object, got {text[:40]!r}")
    return document


def make_way(*paths: Path) -> None:
    """Put directories aside where files are to be written; raises OSError. All else can be replaced."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_name(f"{path.name}.damaged-{token_hex(4)}"))


# ── the shapes of three files: fields without which nothing can be done with them ─────────────────


def is_text(value: Any) -> bool:
    """Whether this is a string."""
    return isinstance(value, str)


def _is_mark(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def is_object(value: Any) -> bool:
    """Whether this is a JSON object."""
    return isinstance(value, dict)


def is_number(value: Any) -> bool:
    """Whether this is a finite number."""
    return type(value) in (int, float) and isfinite(value)


def is_count(value: Any) -> bool:
    """Whether this is a whole number that is not negative."""
    return type(value) is int and value >= 0


def _is_pid(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _are_gpus(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def _is_command(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(is_text, value)))


def _is_status(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 16)


def _is_exit(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and _is_status(value.get("status")))


Shape = Mapping[str, Callable[[Any], bool]]
STARTED: Shape = {
    "job": is_text,
    "gpus": _are_gpus,
    "command": _is_command,
    "cwd": is_text,
    "grace_s": is_number,
    "asked_env": is_object,
    "mark": _is_mark,
    "group": lambda value: value is None or is_text(value),
    "guards": lambda value: value is None or isinstance(value, list),
    "devices": lambda value: value is None or _are_gpus(value),
}
RUNNING: Shape = {
    "pid": _is_pid,
    "keeper_pid": _is_pid,
    "keeper_ticks": is_number,
    "boot_id": is_text,
    "started_s": is_number,
    "stopping": lambda value: isinstance(value, bool),
    "exit": _is_exit,
}
ENDED: Shape = {"status": _is_status, "ended_s": is_number}


def read_shaped(path: Path, shape: Shape) -> dict[str, Any] | None:
    """An object with these fields, or None if there is no file; raises as `read_file` does."""
    found = read_json(path)
    for name, fits in shape.items() if found is not None else ():
        if not fits((found or {}).get(name)):
            raise Damaged(f"{path.name} has no usable {name!r}")
    return found


@dataclass(frozen=True)
class Ends:
    """What two files of a run say; None of one that is not there yet, or is damaged."""

    running: dict[str, Any] | None
    ended: dict[str, Any] | None
    damage: str  # what is wrong with either; "" for nothing


def read_ends(run: Path) -> Ends:
    """How far a run has come; raises OSError where to ask again may help."""
    contents: dict[str, dict[str, Any] | None] = {}
    damage = []
    for name, shape in (("ended.json", ENDED), ("running.json", RUNNING)):
        try:
            contents[name] = read_shaped(run / name, shape)
        except Damaged as wrong:
            damage.append(str(wrong))
    return Ends(contents.get("running.json"), contents.get("ended.json"), ", ".join(damage))


def read_start(run: Path) -> tuple[dict[str, Any], str]:
    """What a worker was started with, and what is wrong with the file that says so; "" for nothing.

    Of a damaged one the most important is in running.json as well. Raises OSError as `read_ends` does.
    """
    try:
        if start := read_shaped(run / "start.json", STARTED):
            return {**start, "id": run.name}, ""
        damage = "start.json is missing"
    except Damaged as wrong:
        damage = str(wrong)
    essentials: dict[str, Any] = {"job": run.name.partition(".")[0], "gpus": [], "mark": ""}
    with suppress(Damaged):
        copy = (read_shaped(run / "running.json", RUNNING) or {}).get("of")
        if isinstance(copy, dict) and all(STARTED[name](copy.get(name)) for name in KNOWN_TWICE):
            essentials = {name: copy.get(name) for name in KNOWN_TWICE}
    return {"guards": [], **essentials, "id": run.name}, damage


# ── run directories: how a worker comes into being on disk, and what its files say about it ─────────────────


SUPERVISOR_SCRIPT = str(Path(supervisor.__file__))
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
SETUPS = "setups"  # beside the runs: a directory for each attempt, where its workers note that setup is done
SETUP_DIR = "STRETTO_SETUP_DIR"
COPY = "copy-"  # begins the name of a private copy of an upload there; it goes with the last worker
NOT_YET = ".new-"  # begins the name of a directory that is not complete; no worker's id begins so


def prepare(
    runs: Path,
    worker_id: str,
    start: dict[str, Any],
    gpu_env: dict[str, str],
    fifo: bool = True,
    secrets: Mapping[str, str] | None = None,
) -> Path:
    """Make the directory of a worker that has not started, all of it or nothing; raises OSError.

    fifo: whether orders come through a FIFO, and not through a file. secrets: for a supervisor on another
    machine: a private file, until it has read them. Where a worker is to run as another user the directories
    that it writes to become that user's; raises NotOwned where one is another user's.
    """
    account: dict[str, Any] = start.get("account") or {}
    for path in start.get("own", ()):
        unix_users.give(Path(path), account)
    mark = token_hex(16)
    setups = setups_of(runs.parent, worker_id)
    if account:
        unix_users.give(setups, account)
    else:
        setups.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = {"STRETTO_WORKER_ID": worker_id, SETUP_DIR: str(setups), supervisor.RUN_MARK: mark}
    env = {**start["env"], **gpu_env, **own}
    made = runs / (NOT_YET + worker_id)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    if account:
        made.chmod(unix_users.ENTER_ONLY)
        unix_users.give(made / supervisor.WORK, account)
        unix_users.give_file(made / "log", account)
    identity = {"id": worker_id, "mark": mark, "asked_env": start["env"], "asked_s": time.time()}
    supervisor.write_durably(made / "start.json", {**start, **identity, "env": env})
    if secrets:
        supervisor.write_durably(made / supervisor.SECRETS, dict(secrets))
    supervisor.reserve(made / "running.json")
    supervisor.reserve(made / "ended.json")
    if fifo:
        os.mkfifo(made / "control", 0o600)
    else:
        (made / supervisor.ORDERS).touch(mode=0o600)  # a network file system may overlook a file that is new
    supervisor.sync_directory(made)
    run = runs / worker_id
    made.rename(run)
    supervisor.sync_directory(runs)
    return run


def asked_for(started: dict[str, Any]) -> dict[str, Any]:
    """The request that a start.json came from, to compare another one with."""
    asked = {name: started[name] for name in ("job", "gpus", "command", "cwd", "grace_s")}
    rest: dict[str, Any] = {
        name: started[name] for name in ("account", "own", "secrets", "image") if name in started
    }
    return {**asked, **rest, "env": started["asked_env"]}


def spawn_supervisor(
    run: Path,
    environ: Mapping[str, str] | None = None,
    apart: bool = False,
    secrets: Mapping[str, str] | None = None,
) -> int:
    """Start the supervisor of a prepared run, in a session of its own; its process id.

    environ: what the worker begins with, else our own. apart: as a child of no process; the id is then of a
    process that ends at once. secrets: variables for the worker alone, which no file has. The FIFO stays open
    here until the supervisor has it too, so it has a reader until the supervisor's end.
    """
    environ = os.environ if environ is None else environ
    ours = {name: value for name, value in environ.items() if not name.startswith("STRETTO_")}
    given = {supervisor.SECRET + name: value for name, value in (secrets or {}).items()}
    control = os.open(run / "control", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", SUPERVISOR_SCRIPT, str(run), *([supervisor.APART] if apart else [])],
            {**ours, **given},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, control, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(run / "keeper.log"), APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
        )
    finally:
        os.close(control)


def spawn_exec_session(run: Path, line: int) -> int:
    """Start what reaches a worker by a line that is open both ways; its process id."""
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", str(Path(exec_session.__file__)), str(run)],
        {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, line, 0),
            (os.POSIX_SPAWN_DUP2, line, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0o600),
        ],
        setsid=True,
        setsigmask=[],
    )


def give_order(run: Path, order: dict[str, Any] | None) -> bool:
    """Hand an order, if any, to the supervisor; False if there is no supervisor any more."""
    try:
        control = os.open(run / "control", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as failure:
        if failure.errno in PASSING:
            raise
        return give_by_file(run, order)
    try:
        if not stat.S_ISFIFO(os.fstat(control).st_mode):
            return give_by_file(run, order)
        if order:
            os.write(control, json.dumps(order).encode() + b"\n")
    except BrokenPipeError:
        return False
    finally:
        os.close(control)
    return True


def give_by_file(run: Path, order: dict[str, Any] | None) -> bool:
    """The same where the FIFO has no reader, or is none: a supervisor that lives is known by its process."""
    supervisor_process = find_supervisor(run)
    if supervisor_process is None:
        return False
    if order:
        file = os.open(run / supervisor.ORDERS, APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as orders:
            orders.write(json.dumps(order).encode() + b"\n")
        supervisor.send_to(supervisor_process, signal.SIGUSR1)
    return True


def find_supervisor(run: Path) -> supervisor.Process | None:
    """The process that keeps a run, by its command line, which no other process of this user has."""
    for each in supervisor.processes():
        with suppress(OSError):
            line = Path(f"/proc/{each.pid}/cmdline")
            if str(run).encode() in line.read_bytes().split(b"\0") and line.stat().st_uid == os.getuid():
                return each
    return None


def supervisor_lives(run: Path) -> bool:
    """Whether the FIFO has a reader, which is the supervisor's doing alone and needs no process id."""
    return give_order(run, None)


def last_words(run: Path) -> str:
    """The last line that the supervisor itself printed."""
    with suppress(OSError, Damaged):
        lines = (read_file(run / "keeper.log") or b"").decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
    return ""


def leftovers(mark: str, notes: dict[str, Any] | None, run: Path | None = None) -> list[supervisor.Process]:
    """Processes of a run whose supervisor is gone, found without it.

    Signs are the mark in their environment, the session that the supervisor opened, and the log of `run` that
    they write to. Their descendants count too. For what gave up all that see `containing`.
    """
    table = list(supervisor.processes())
    roots = {each.pid for each in table if mark and has_mark(each.pid, mark)}
    if run is not None:
        roots |= {each.pid for each in containment.writers_of(run / "log", table)}
    if notes and notes["boot_id"] == supervisor.boot_id():
        # A number is not given to a new process while it names a session. So if another process has it now,
        # nothing is left of ours.
        number, since = notes["keeper_pid"], notes["keeper_ticks"]
        if not any(each.pid == number and each.ticks != since for each in table):
            roots |= {each.pid for each in table if each.session == number and each.ticks >= since}
    roots -= {os.getpid()}
    return [each for each in table if each.pid in roots] + supervisor.descendants(roots, table)


def has_mark(pid: int, mark: str) -> bool:
    """Whether a process was started with the mark of a run."""
    with suppress(OSError):
        return f"{supervisor.RUN_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
            b"\0"
        )
    return False


def lost_ending(run: Path, notes: dict[str, Any] | None, damage: str = "") -> dict[str, Any]:
    """How a worker ended whose supervisor could not say it: as by SIGKILL unless its command had ended.

    damage: what is wrong with the files that would say more.
    """
    if damage:
        why = f"how it ended is not known: {damage}"
        ended_s = {"started_s": (notes or {}).get("started_s"), "ended_s": time.time()}
        return {**supervisor.KILLED, "stopped": False, "why": why, **ended_s}
    if notes is None:
        why = f"its supervisor ended before the command began. {last_words(run)}"
        return {**supervisor.KILLED, "stopped": False, "why": why.strip(), "ended_s": time.time()}
    rebooted = notes["boot_id"] != supervisor.boot_id()
    why = "the machine was restarted" if rebooted else f"its supervisor was killed. {last_words(run)}"
    exit_ = notes["exit"] or {**supervisor.KILLED, "stopped": notes["stopping"], "why": why.strip()}
    return {**exit_, "started_s": notes["started_s"], "ended_s": time.time(), "lasted_s": None}


def setups_of(state: Path, worker_id: str) -> Path:
    """Where the workers of one attempt on this node note that their setup is done."""
    attempt, dot, _ = worker_id.rpartition(".")
    return state / SETUPS / (attempt if dot else worker_id)


def delete(run: Path) -> None:
    """Remove a run's directory, and what its attempt has noted."""
    shutil.rmtree(run)
    shutil.rmtree(setups_of(run.parents[1], run.name), ignore_errors=True)


def put_copies_away(runs: Path, worker_id: str) -> list[Path]:
    """Where an attempt has no run any more, its copies of an upload under other names, to be deleted."""
    setups = setups_of(runs.parent, worker_id)
    if any(setups_of(runs.parent, run.name) == setups for run in every(runs)):
        return []
    with suppress(OSError):  # none is there, or it stays until the job's logs are deleted
        copies = [each for each in setups.iterdir() if each.name.startswith(COPY)]
        return [copy.rename(copy.with_name(f"gone-{token_hex(8)}")) for copy in copies]
    return []


def delete_copies(copies: list[Path]) -> None:
    """Remove what `put_copies_away` gave, whatever workers have made of it."""
    for copy in copies:
        if copy.is_dir():
            supervisor.delete_tree(copy)
        else:
            copy.unlink(missing_ok=True)


def every(folder: Path) -> Iterator[Path]:
    """Run directories in a folder; removes what a start that was cut off left behind."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(NOT_YET):
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_dir() and WORKER_ID.fullmatch(path.name):
            yield path
