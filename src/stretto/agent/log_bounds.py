"""What the workers of a job have written is bounded on each machine: what is oldest goes first.

The front of a log is given back to the disk as a hole. Nothing moves, so each reader goes on at the same
offsets, and workers go on writing to the same file. A line in the log says where it was cut.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

KEEP_SIZE, PUNCH_HOLE = 1, 2  # <linux/falloc.h>
BLOCK_BYTES = 4096  # a hole begins and ends at one
LEAST_KEPT_BYTES = 1 << 16  # of every log: its end says how a worker ended; chosen
KEPT_SHARE = 0.75  # of the bound is left by a cut, so that not every further line makes one; chosen
NOTICE = b"\n[stretto: what was written before has been dropped, see --max-log-size]\n"


@dataclass
class LogBound:
    """The most that the logs of a job take on this machine. most_bytes: 0 for any amount."""

    most_bytes: int
    impossible: set[int] = field(default_factory=set)  # file systems that cannot give back a part of a file

    def keep(self, logs: Sequence[Path]) -> None:
        """Cut the logs of one job, the oldest first, where they take too much."""
        if self.most_bytes <= 0:
            return
        bytes_by_log = {path: taken_by(path) for path in logs}
        too_much = sum(bytes_by_log.values()) - self.most_bytes
        if too_much <= 0:
            return
        too_much += int(self.most_bytes * (1 - KEPT_SHARE))
        for path in sorted(logs, key=written_s):
            if too_much <= 0:
                return
            with suppress(FileNotFoundError):
                too_much -= self.cut(path, too_much)

    def cut(self, path: Path, drop_bytes: int) -> int:
        """Drop so much from the front of what is left of a log; how much that was."""
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size, begin = os.fstat(file).st_size, first_byte(file)
            end = min(begin + drop_bytes, size - LEAST_KEPT_BYTES) // BLOCK_BYTES * BLOCK_BYTES
            if end <= begin or os.fstat(file).st_dev in self.impossible:
                return 0
            try:
                punch(file, end)
            except OSError as failure:
                if failure.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                self.impossible.add(os.fstat(file).st_dev)
                print(f"{path.parent.parent} cannot drop a part of a log", file=sys.stderr, flush=True)
                return 0
            os.pwrite(file, NOTICE, end)
            return end - begin
        finally:
            os.close(file)


def taken_by(path: Path) -> int:
    """Bytes that a file takes on its disk."""
    with suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0


def written_s(path: Path) -> float:
    """When a file was last written to; 0 for none."""
    with suppress(OSError):
        return path.lstat().st_mtime
    return 0.0


def first_byte(file: int) -> int:
    """Where a file begins whose front was dropped; 0 where nothing was."""
    try:
        return os.lseek(file, 0, os.SEEK_DATA)
    except OSError as failure:
        if failure.errno == errno.ENXIO:  # there is nothing but a hole
            return os.fstat(file).st_size
        return 0  # this file system tells nothing


def punch(file: int, end: int) -> None:
    """Give back all of a file before an offset; raises OSError."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while fallocate(file, PUNCH_HOLE | KEEP_SIZE, 0, end):
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def attempts_of(folder: Path, job: str) -> Iterable[Path]:
    """Logs of a job's runs in a folder."""
    with os.scandir(folder) as entries:
        return [Path(entry.path) / "log" for entry in entries if entry.name.startswith(f"{job}.")]
