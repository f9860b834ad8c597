"""Checkpoints: when they are written, what is in them, and that each is complete or not there.

A checkpoint is written beside its final name, synced, renamed and synced again. The one before stays until
then, and one more is kept, so that a file that cannot be read any more is not the end.
"""

import contextlib
import logging
import os
import pickle
import re
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stretto.sdk import process_group, state
from stretto.sdk.training import Training

log = logging.getLogger("stretto.sdk")

NAME = re.compile(r"step-(\d{12})\.pt")
KEPT = 2  # chosen: the newest, and one more


class CheckpointManager:
    """Of one training, in one folder; None: there are none. Only rank 0 reads and writes."""

    def __init__(
        self, folder: Path | None, every_s: float, training: Training, tell: Callable[[int, Path], None]
    ) -> None:
        self.folder = folder
        self._every_s = every_s
        self._training = training
        self._tell = tell
        self._saved_step = 0
        self._saved_s = time.monotonic()
        self._writer: threading.Thread | None = None
        self._random: list[dict[str, Any]] | None = None  # by rank, of the checkpoint that this began from
        self._writing = threading.Lock()

    @property
    def is_due(self) -> bool:
        """Whether the last one is old enough."""
        return (
            self.folder is not None
            and time.monotonic() - self._saved_s >= self._every_s
            and self._training.progress.step > self._saved_step
        )

    def restore(self, rank: int) -> None:
        """As the rank that all others will take the state from: go on from the newest, if there is one."""
        newest = read_newest(self.folder) if self.folder else None
        if newest is None:
            return
        self._saved_step = newest["other"]["progress"]["step"]  # first: nothing half adopted is ever saved
        self._training.adopt_model(newest["model"])
        self._training.adopt_other(newest["other"])
        self._random = newest["random"]
        self._set_random(rank)

    def share_random(self, rank: int, source: int) -> None:
        """Give each rank of a first generation the generators it had, or new ones where it had none."""
        self._random = process_group.broadcast_object(self._random, source)
        self._set_random(rank)

    def _set_random(self, rank: int) -> None:
        if self._random is not None and rank < len(self._random):
            state.set_random_state(self._random[rank], self._training.device)
        elif rank:
            state.seed_afresh(self._training.progress.seed, self._training.progress.step, rank)

    def save_together(self, rank: int, wait: bool) -> None:
        """All ranks at the same step: rank 0 writes, in the background unless it shall `wait`."""
        self._saved_s = time.monotonic()
        if self.folder is None:
            return
        random = process_group.all_gather_objects(self._training.random_tree())
        if rank:
            return
        self.wait()
        content, step = self._content(random), self._training.progress.step
        self._writer = threading.Thread(
            target=self._write, args=(step, content), name="stretto-writer", daemon=True
        )
        self._writer.start()
        if wait:
            self.wait()

    def save_alone(self) -> None:
        """As rank 0, when no agreement is to be had: the last step that ended.

        Parameters change only in the optimiser's step, so they are those of that step even in the middle of
        the next. Running averages of normalisation layers and the generators may be a micro-batch ahead.
        """
        if self.folder is None:
            return
        writer = self._writer
        if writer is not None:  # perhaps of this very step
            writer.join()
        with self._training.changing:
            step = self._training.progress.step
            if step == self._saved_step:
                return
            with self._training.aside():
                content = self._content([self._training.random_tree()])
            self._write(step, content)

    def wait(self) -> None:
        """Until what is being written is complete."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _content(self, random: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "model": state.on_cpu(self._training.model_tree()),
            "other": state.on_cpu(self._training.other_tree()),
            "random": random,
        }

    def _write(self, step: int, content: dict[str, Any]) -> None:
        assert self.folder is not None
        with self._writing:
            try:
                path = write_checkpoint(self.folder, step, content)
            except OSError as failed:  # training goes on: the next one may find room
                log.error("no checkpoint of step %d: %s", step, failed)
                return
        self._saved_step = step
        self._tell(step, path)


def write_checkpoint(folder: Path, step: int, state: Any) -> Path:
    """Its path, once it is durable. Raises OSError; then all checkpoints are as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    # The process is in the name: after a crash the next attempt may write while a lost one still does.
    path = folder / f"step-{step:012d}.pt"
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            try:
                torch.save(state, file)
            except RuntimeError as failed:  # torch's own writer says so of a full disk
                raise OSError(f"{unfinished}: {failed}") from failed
            # First the content, then the name, then the folder that holds the name: in any other order a
            # machine that loses power could show the final name of a file that is not all there.
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    clear_away(folder, path)
    return path


def clear_away(folder: Path, newest: Path) -> None:
    """Remove what is older than the checkpoints that are kept, and what earlier writers left unfinished."""
    old = [path for path in checkpoints(folder) if path != newest][KEPT - 1 :]
    for path in [*old, *folder.glob("step-*.unfinished")]:
        with contextlib.suppress(OSError):
            path.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), reverse=True)


def read_newest(folder: Path) -> Any | None:
    """The newest checkpoint that can be read; None where there is none.

    Raises OSError where there are some and none can be read: to begin again from nothing would hide it.
    """
    paths = checkpoints(folder)
    for path in paths:
        try:
            return load(path)
        except Exception as broken:  # a damaged file raises whatever the unpickler met
            log.warning("checkpoint %s cannot be read: %s", path, broken)
    if paths:
        raise OSError(f"none of the {len(paths)} checkpoints in {folder} can be read")
    return None


def load(path: Path) -> Any:
    """What a checkpoint holds; raises whatever the unpickler meets.

    Tensors and plain values can do no harm. Other objects, which the state of a scheduler or of `extra_state`
    may hold, could run code as they are unpickled. They are taken only from a file that no other user can
    have written.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as unusual:
        if not (is_ours(path) and is_ours(path.parent)):
            raise PermissionError(
                f"it holds more than tensors and plain values, and others may have written it: {path.name} "
                "and its directory must belong to this user, and not everybody may write to them"
            ) from unusual
        return torch.load(path, map_location="cpu", weights_only=False)


def is_ours(path: Path) -> bool:
    """Whether a file is of this user or root, and not for all users to write to."""
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & stat.S_IWOTH


def sync_folder(folder: Path) -> None:
    """Make renames in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
