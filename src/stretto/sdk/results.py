"""Results of a data set that is worked off in parts, by any number of processes: one file for each part.

A process that works on a part holds a lock on its byte of one file. The system takes the lock back when the
process ends, however it ends. A result comes into being whole, under its name, or not at all. So a part is
done once, and no process has to ask another. All that is needed is a folder that all share, with POSIX locks.
"""

import errno
import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stretto.errors import InputError

MANIFEST, CLAIMS, UNFINISHED = "results.json", "claims", ".unfinished-"
PART = re.compile(r"part-(\d{9})\.pt")
NOT_FREE = (errno.EACCES, errno.EAGAIN)
PLAIN = (bool, int, float, str, bytes, type(None), torch.Tensor)


class ResultFolder:
    """The results of `items` items in parts of `size`, the last of which may be smaller."""

    def __init__(self, folder: Path, items: int, size: int) -> None:
        """Make the folder, or go on where it has results of the same items and parts.

        Raises InputError where it has others, or cannot be used.
        """
        self.folder, self.items, self.size = folder, items, size
        self.parts = -(-items // size)
        self.done = bytearray(self.parts)  # 1: known to be there
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check_manifest()
            self._claims = os.open(folder / CLAIMS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as wrong:
            raise InputError(f"output {folder}: cannot be written: {wrong.strerror}") from None
        self.look()

    def _check_manifest(self) -> None:
        wanted = {"items": self.items, "batch_size": self.size}
        self._create(MANIFEST, json.dumps(wanted).encode())
        told = read_manifest(self.folder)
        if told != wanted:
            raise InputError(
                f"output {self.folder}: has results of {told['items']} items in batches of"
                f" {told['batch_size']}, got {self.items} in batches of {self.size}: name another folder"
            )

    def look(self) -> int:
        """How many parts are done, by any process."""
        for path in self.folder.iterdir():
            if match := PART.fullmatch(path.name):
                self.done[int(match[1])] = 1
        return sum(self.done)

    def items_of(self, part: int) -> range:
        """The numbers of its items."""
        return range(part * self.size, min((part + 1) * self.size, self.items))

    @property
    def items_done(self) -> int:
        """Items of all parts that are known to be done."""
        whole = sum(self.done) * self.size
        return whole - (self.parts * self.size - self.items if self.done[-1] else 0)

    def claim(self, part: int) -> bool:
        """Whether this process may do a part now: it is not done, and no other process is at it."""
        if self.done[part]:
            return False
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, part)
        except OSError as refused:
            if refused.errno in NOT_FREE:
                return False
            raise InputError(
                f"output {self.folder}: expected a file system with locks: {refused.strerror}"
            ) from None
        if self._path(part).exists():
            self.done[part] = 1
            self.give_up(part)
            return False
        return True

    def give_up(self, part: int) -> None:
        """Let go of a part, done or not."""
        fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, part)

    def write(self, part: int, result: Any) -> None:
        """The result of a part that was claimed; it is on disk when this returns.

        Raises InputError where `read_results` could not read it.
        """
        check_plain(result)
        temporary = self._unfinished()
        with temporary.open("wb") as file:
            torch.save(on_processor(result), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path(part))
        self.done[part] = 1
        self.give_up(part)

    def tidy(self) -> None:
        """Remove what killed processes have left half-written, once all is done."""
        for path in self.folder.glob(f"{UNFINISHED}*"):
            path.unlink(missing_ok=True)

    def _unfinished(self) -> Path:
        """A name that no other process has, on whatever node."""
        return self.folder / f"{UNFINISHED}{uuid.uuid4().hex}"

    def _path(self, part: int) -> Path:
        return self.folder / f"part-{part:09}.pt"

    def _create(self, name: str, content: bytes) -> None:
        """Make a file with this content, unless it is there: of several processes the first makes it."""
        temporary = self._unfinished()
        temporary.write_bytes(content)
        try:
            os.link(temporary, self.folder / name)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, int]:
    """Items and batch size of a folder of results; raises InputError where there are none."""
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {key: int(told[key]) for key in ("items", "batch_size")}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{folder}: expected a folder with results, got none in {MANIFEST}") from None


def read_results(folder: str | Path) -> Iterator[tuple[range, Any]]:
    """(numbers of the items, their result) of each part that is done, in the order of the items.

    Raises InputError where the folder has none.
    """
    folder = Path(folder)
    told = read_manifest(folder)
    for path in sorted(folder.glob("part-*.pt")):
        if match := PART.fullmatch(path.name):
            first = int(match[1]) * told["batch_size"]
            numbers = range(first, min(first + told["batch_size"], told["items"]))
            yield numbers, torch.load(path, weights_only=True)


def check_plain(result: Any) -> None:
    """Raise InputError for a result that is more than tensors, numbers and texts, in lists and mappings."""
    if isinstance(result, (list, tuple)):
        for part in result:
            check_plain(part)
    elif isinstance(result, dict):
        for part in (*result, *result.values()):
            check_plain(part)
    elif not isinstance(result, (*PLAIN, np.ndarray)):
        raise InputError(
            "a result must be tensors, numbers and texts, in lists, tuples and dictionaries,"
            f" got {type(result).__name__}"
        )


def on_processor(result: Any) -> Any:
    """The same with tensors of its own, off the GPU: a view would keep all that it is cut from."""
    if isinstance(result, torch.Tensor):
        return result.detach().cpu().clone()
    if isinstance(result, np.ndarray):
        return torch.from_numpy(result.copy())
    if isinstance(result, (list, tuple)):
        return [on_processor(part) for part in result]
    if isinstance(result, dict):
        return {key: on_processor(part) for key, part in result.items()}
    return result
