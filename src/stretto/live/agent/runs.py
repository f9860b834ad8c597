"""Run directories: how a worker comes into being on disk, and what its files say about it."""

import json
import os
import secrets
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stretto.live import owning
from stretto.live.agent import containing, keeper, reading
from stretto.live.agent.requests import WORKER_ID

KEEPER = str(Path(keeper.__file__))
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
SETUPS = "setups"  # beside the runs: a directory for each attempt, where its workers note that setup is done
SETUP_DIR = "STRETTO_SETUP_DIR"
NOT_YET = ".new-"  # begins the name of a directory that is not complete; no worker's id begins so


def prepare(
    runs: Path, worker_id: str, start: dict[str, Any], gpu_env: dict[str, str], fifo: bool = True
) -> Path:
    """Make the directory of a worker that has not started, all of it or nothing; raises OSError.

    fifo: whether orders come through a FIFO, and not through a file. Where a worker is to run as another user
    the directories that it writes to become that user's; raises NotOwned where one is somebody else's.
    """
    account: dict[str, Any] = start.get("account") or {}
    for path in start.get("own", ()):
        owning.give(Path(path), account)
    mark = secrets.token_hex(16)
    setups = setups_of(runs.parent, worker_id)
    if account:
        owning.give(setups, account)
    else:
        setups.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = {"STRETTO_WORKER_ID": worker_id, SETUP_DIR: str(setups), keeper.RUN_MARK: mark}
    env = {**start["env"], **gpu_env, **own}
    made = runs / (NOT_YET + worker_id)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    if account:
        made.chmod(owning.ENTER_ONLY)
        owning.give(made / keeper.WORK, account)
        owning.give_file(made / "log", account)
    known = {"id": worker_id, "mark": mark, "asked_env": start["env"], "asked_s": time.time()}
    keeper.write_durably(made / "start.json", {**start, **known, "env": env})
    keeper.reserve(made / "running.json")
    keeper.reserve(made / "ended.json")
    if fifo:
        os.mkfifo(made / "control", 0o600)
    else:
        (made / keeper.ORDERS).touch(mode=0o600)  # a network file system may overlook a file that is new
    keeper.sync_directory(made)
    run = runs / worker_id
    made.rename(run)
    keeper.sync_directory(runs)
    return run


def asked_for(started: dict[str, Any]) -> dict[str, Any]:
    """The request that a start.json came from, to compare another one with."""
    asked = {name: started[name] for name in ("job", "gpus", "command", "cwd", "grace_s")}
    as_whom: dict[str, Any] = {name: started[name] for name in ("account", "own") if name in started}
    return {**asked, **as_whom, "env": started["asked_env"]}


def spawn_keeper(run: Path, environ: Mapping[str, str] | None = None, apart: bool = False) -> int:
    """Start the keeper of a prepared run, in a session of its own; its process id.

    environ: what the worker begins with, else our own. apart: as a child of nobody; the id is then of a
    process that ends at once. The FIFO is open here until the keeper has it too: it has a reader from now
    until the keeper's end.
    """
    environ = os.environ if environ is None else environ
    control = os.open(run / "control", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", KEEPER, str(run), *([keeper.APART] if apart else [])],
            {name: value for name, value in environ.items() if not name.startswith("STRETTO_")},
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


def give_order(run: Path, order: dict[str, Any] | None) -> bool:
    """Hand an order, if any, to the keeper; False if there is no keeper any more."""
    try:
        control = os.open(run / "control", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as failure:
        if failure.errno in reading.PASSING:
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
    """The same where the FIFO has no reader, or is none: whether a keeper lives is known by its process."""
    found = find_keeper(run)
    if found is None:
        return False
    if order:
        file = os.open(run / keeper.ORDERS, APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as orders:
            orders.write(json.dumps(order).encode() + b"\n")
        keeper.send_to(found, signal.SIGUSR1)
    return True


def find_keeper(run: Path) -> keeper.Process | None:
    """The process that keeps a run, by its command line, which nobody else of this user has."""
    for each in keeper.processes():
        with suppress(OSError):
            line = Path(f"/proc/{each.pid}/cmdline")
            if str(run).encode() in line.read_bytes().split(b"\0") and line.stat().st_uid == os.getuid():
                return each
    return None


def keeper_lives(run: Path) -> bool:
    """Whether the FIFO has a reader, which is the keeper's doing alone and needs no process id."""
    return give_order(run, None)


def last_words(run: Path) -> str:
    """The last line that the keeper itself printed."""
    with suppress(OSError, reading.Damaged):
        lines = (reading.read_file(run / "keeper.log") or b"").decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
    return ""


def leftovers(mark: str, notes: dict[str, Any] | None, run: Path | None = None) -> list[keeper.Process]:
    """Processes of a run whose keeper is gone, found without it.

    By the mark in their environment, by the session that the keeper opened, by the log of `run` that they
    write to, and by descent from any of these. For what gave up all that see `containing`.
    """
    table = list(keeper.processes())
    roots = {each.pid for each in table if mark and has_mark(each.pid, mark)}
    if run is not None:
        roots |= {each.pid for each in containing.writers_of(run / "log", table)}
    if notes and notes["boot_id"] == keeper.boot_id():
        # A number is not given to a new process while it names a session. So if another process has it now,
        # nothing is left of ours.
        number, since = notes["keeper_pid"], notes["keeper_ticks"]
        if not any(each.pid == number and each.ticks != since for each in table):
            roots |= {each.pid for each in table if each.session == number and each.ticks >= since}
    roots -= {os.getpid()}
    return [each for each in table if each.pid in roots] + keeper.descendants(roots, table)


def has_mark(pid: int, mark: str) -> bool:
    """Whether a process was started with the mark of a run."""
    with suppress(OSError):
        return f"{keeper.RUN_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def lost_ending(run: Path, notes: dict[str, Any] | None, damage: str = "") -> dict[str, Any]:
    """How a worker ended whose keeper could not say it: as by SIGKILL unless its command had ended.

    damage: what is wrong with the files that would say more.
    """
    if damage:
        why = f"how it ended is not known: {damage}"
        ended_s = {"started_s": (notes or {}).get("started_s"), "ended_s": time.time()}
        return {**keeper.KILLED, "stopped": False, "why": why, **ended_s}
    if notes is None:
        why = f"its keeper ended before the command began. {last_words(run)}"
        return {**keeper.KILLED, "stopped": False, "why": why.strip(), "ended_s": time.time()}
    rebooted = notes["boot_id"] != keeper.boot_id()
    why = "the machine was restarted" if rebooted else f"its keeper was killed. {last_words(run)}"
    exit_ = notes["exit"] or {**keeper.KILLED, "stopped": notes["stopping"], "why": why.strip()}
    return {**exit_, "started_s": notes["started_s"], "ended_s": time.time(), "lasted_s": None}


def setups_of(state: Path, worker_id: str) -> Path:
    """Where the workers of one attempt on this node note that their setup is done."""
    attempt, dot, _ = worker_id.rpartition(".")
    return state / SETUPS / (attempt if dot else worker_id)


def delete(run: Path) -> None:
    """Remove a run's directory, and what its attempt has noted."""
    shutil.rmtree(run)
    shutil.rmtree(setups_of(run.parents[1], run.name), ignore_errors=True)


def every(folder: Path) -> Iterator[Path]:
    """Run directories in a folder; removes what a start that was cut off left behind."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(NOT_YET):
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_dir() and WORKER_ID.fullmatch(path.name):
            yield path
