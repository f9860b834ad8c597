"""Checkpoints on disk: complete or not there.

A checkpoint is written beside its final name, synced, renamed and synced again. The one before stays until
then, and one more is kept, so that a file that cannot be read any more is not the end.
"""

import contextlib
import logging
import os
import pickle
import re
import stat
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger("stretto.sdk")

NAME = re.compile(r"step-(\d{12})\.pt")
KEPT = 2  # chosen: the newest, and one more


def write_checkpoint(folder: Path, step: int, state: Any) -> Path:
    """Its path, once it is durable. Raises OSError; then all checkpoints are as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:012d}.pt"
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            try:
                torch.save(state, file)
            except RuntimeError as failed:  # torch's own writer says so of a full disk
                raise OSError(f"{unfinished}: {failed}") from failed
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
    found = checkpoints(folder)
    for path in found:
        try:
            return load(path)
        except Exception as broken:  # a damaged file raises whatever the unpickler met
            log.warning("checkpoint %s cannot be read: %s", path, broken)
    if found:
        raise OSError(f"none of the {len(found)} checkpoints in {folder} can be read")
    return None


def load(path: Path) -> Any:
    """What a checkpoint holds; raises whatever the unpickler meets.

    Tensors and plain values can do no harm. Other objects, which a scheduler's or an `also`'s state may hold,
    could run code as they are unpickled: they are taken only from a file that nobody else can have written.
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
    """Whether a file is of this user or root, and not for everybody to write to."""
    found = path.stat()
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & stat.S_IWOTH


def sync_folder(folder: Path) -> None:
    """Make renames in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
