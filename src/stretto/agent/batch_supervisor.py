"""The supervisor of a worker in a batch job of Slurm: as any other, with a directory of the node's own.

Run as `python -I -S batch_supervisor.py RUN_DIR` beside supervisor.py. The run lies where all nodes see it.
What a job has brought along is to lie on the node itself. So a worker whose start.json names a `scratch` has
a directory there, which STRETTO_SETUP_DIR names to it. The workers of one attempt share it, and it goes with
the last of them: each of their supervisors holds a lock on it. A directory without a holder was left by a
supervisor that was killed, and goes when the next one makes a directory there.
"""

from __future__ import annotations  # nodes of a cluster may have an older Python than we

import fcntl
import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __name__ != "__main__":
    from stretto.agent import supervisor
else:  # on a node, where supervisor.py is no part of a package
    sys.path.insert(0, str(Path(__file__).parent))
    import supervisor

SCRATCH = "scratch"  # of start.json: the name of the directory, and perhaps where on the node it is to lie
LOCK = "lock"  # of the directory
GONE = ".gone-"  # how its name begins once nobody holds it


class BatchSupervisor(supervisor.Supervisor):
    """One worker, alone in its batch job."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.scratch = Path()
        self.lock = -1
        self.no_scratch = ""  # why there is no directory

    def keep(self) -> int:
        """Have the directory while the worker lives; the status of its command."""
        if wanted := self.start.get(SCRATCH):
            try:
                place = place_of_user(Path(wanted["below"] or usual_place()))
                sweep(place)
                self.scratch = place / wanted["name"]
                self.lock = take_part(self.scratch)
                self.start["env"]["STRETTO_SETUP_DIR"] = str(self.scratch)
            except OSError as failure:
                where = f"{failure.filename}: " if failure.filename else ""
                self.no_scratch = f"no directory on the node for its upload: {where}{failure.strerror}"
                self.start["command"] = ["/bin/sh", "-c", f"exit {supervisor.NO_UPLOAD}"]
        return super().keep()

    def why_no_upload(self) -> str:
        """Why it could not begin in its upload."""
        return self.no_scratch or super().why_no_upload()

    def write_ending(self) -> None:
        """Nothing of the worker is left; to delete a large directory takes longer than its GPUs are held."""
        gone = leave(self.scratch, self.lock) if self.lock >= 0 else None
        super().write_ending()
        if gone is not None:
            supervisor.delete_tree(gone)


def usual_place() -> str:
    """Where a node keeps what is its own."""
    return os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir()


def place_of_user(below: Path) -> Path:
    """The directory of this user there, which no other user can have made. Raises OSError."""
    place = below / f"stretto-{os.getuid()}"
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    status = place.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(1, "expected a directory that only its own user can enter", str(place))
    return place


def take_part(folder: Path) -> int:
    """Make a directory, or share that of other workers; the lock that says so. Raises OSError."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # the last one has just taken it away
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if is_there(folder / LOCK, lock):
                return lock
            os.close(lock)


def leave(folder: Path, lock: int) -> Path | None:
    """Let go of a directory; what its last holder is to delete, which has another name by then.

    So others may begin in a new one at once, and a deletion that is cut short is gone on with by `sweep`.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_there(folder / LOCK, lock):
            return folder.rename(folder.with_name(f"{GONE}{os.getpid()}-{folder.name}"))
    except OSError:  # another one shares it
        pass
    finally:
        os.close(lock)
    return None


def sweep(place: Path) -> None:
    """Take away what supervisors have left that were killed, also while they deleted."""
    for folder in place.iterdir():
        with suppress(OSError):
            gone = folder if folder.name.startswith(GONE) else left_in(folder)
            if gone is not None:
                supervisor.delete_tree(gone)


def left_in(folder: Path) -> Path | None:
    """What is to be deleted of a directory that has its usual name; None where it is held. Raises OSError."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        folder.rmdir()  # if it is empty; one that was just being made is made again
        return None
    return leave(folder, lock)


def is_there(file: Path, handle: int) -> bool:
    """Whether a file that is open is the one of this name still."""
    with suppress(FileNotFoundError):
        return os.path.samestat(file.lstat(), os.fstat(handle))
    return False


def main() -> None:
    """Keep the run whose directory the argument names."""
    sys.exit(BatchSupervisor(Path(sys.argv[1])).keep())


if __name__ == "__main__":
    main()
