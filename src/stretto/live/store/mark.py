"""How far the log had come, in a file of its own: a log that has lost its end looks like a younger one.

The file is written after each append, without waiting for the disk. After a power loss it may lag behind,
never run ahead, since what it names was durable before.
"""

import json
import logging
import os
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stretto.live.store.errors import StoreError

WIDTH = 256  # bytes of the file: always the same, so that it is written in place, on a full disk, too

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reached:
    """What was durable when the file was last written."""

    seq: int  # of the last event
    chain: str = ""  # its digest, as hexadecimal digits; "" where it has none
    largest_id: int = 0  # of jobs and arrays whose ids are numbers


class Mark:
    """The file of one log. One process writes it, whoever leads."""

    def __init__(self, path: Path) -> None:
        """Make the file durably where there is none. Raises StoreError where that cannot be."""
        self.path, self.complained = path, False
        try:
            is_new = not path.exists()
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if is_new:
                self._write(Reached(0))
                os.fsync(self.file)
                _sync_folder(path.parent)
        except OSError as wrong:
            raise StoreError(f"{path}: cannot be written: {wrong.strerror}") from None

    def note(self, reached: Reached) -> None:
        """The log has come so far."""
        try:
            self._write(reached)
        except OSError as wrong:  # the log itself is whole: only its loss would go unnoticed
            if not self.complained:
                log.warning("%s: cannot be written: %s", self.path, wrong)
            self.complained = True

    def close(self) -> None:
        """No more is noted."""
        with suppress(OSError):
            os.close(self.file)

    def _write(self, reached: Reached) -> None:
        os.pwrite(self.file, _line(reached), 0)


def reached_in(path: Path) -> Reached | None:
    """What a mark says; None where there is none, or none that can be read: that is no evidence of a loss."""
    try:
        text = path.read_bytes()[:WIDTH]
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise StoreError(f"{path}: cannot be read: {wrong.strerror}") from None
    try:
        said, _, check = text.decode("ascii").rpartition(" ")
        if int(check, 16) != zlib.crc32(said.rstrip().encode()):
            raise ValueError("its checksum is wrong")
        return Reached(**json.loads(said))
    except (ValueError, TypeError) as wrong:
        log.warning("%s: cannot be read, and is begun anew: %s", path, wrong)
        return None


def _line(reached: Reached) -> bytes:
    said = json.dumps(asdict(reached))
    return f"{said:<{WIDTH - 10}} {zlib.crc32(said.encode()):08x}\n".encode("ascii")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
