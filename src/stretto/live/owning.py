"""What belongs to whom where root runs workers as other users: their directories are theirs alone.

Users may enter the directories above their own, and neither list nor read them. All that root makes here
lies in directories that only root may change, so that no user can put a link in its way.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ENTER_ONLY = 0o711
PRIVATE = 0o700


class NotOwned(Exception):
    """A directory that a worker is to have to itself is somebody else's."""


def check_root(is_meant: bool) -> None:
    """Raise PermissionError where workers are to run as other users and we may not become them."""
    if is_meant and os.geteuid() != 0:
        raise PermissionError("--run-as: only root can run jobs as other users")


def open_for_users(*folders: Path) -> None:
    """Directories that users may enter and no more."""
    for folder in folders:
        folder.mkdir(exist_ok=True)
        folder.chmod(ENTER_ONLY)


def open_state(state: Path, checkpoints: str, workdirs: str, agent: str) -> None:
    """Let users enter a state directory on the way to what is theirs there; all else in it becomes private.

    So do checkpoints of jobs that ran as root before. What is in `workdirs` is as the admin has left it.
    """
    others = [each for each in state.iterdir() if each.name not in (checkpoints, workdirs, agent)]
    for entry in [*others, *entries(state / checkpoints)]:
        if not entry.is_symlink() and entry.lstat().st_uid == os.geteuid():
            entry.chmod(entry.stat().st_mode & PRIVATE)
    open_for_users(state, state / checkpoints, state / workdirs)


def closed_above(folder: Path) -> Path | None:
    """The first directory above this one that not everybody may enter; None for none."""
    return next(
        (each for each in reversed(folder.absolute().parents) if not each.stat().st_mode & 0o001), None
    )


def entries(folder: Path) -> list[Path]:
    """What is in a directory; nothing where there is none."""
    with suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []


def give(path: Path, account: Mapping[str, Any]) -> None:
    """Make a directory that is this user's alone; raises NotOwned, OSError.

    One that is there must be the user's, or an empty one of ours, as a start that was cut off leaves it.
    """
    above = path.parent.stat()
    if above.st_uid != os.geteuid() or above.st_mode & 0o022:
        raise NotOwned(f"{path.parent} must be root's alone to write to")
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise NotOwned(f"{path} is no directory") from None
    try:
        owner = os.fstat(handle).st_uid
        if owner == account["uid"]:
            return
        if owner != os.geteuid() or os.listdir(handle):  # noqa: PTH208  (by its handle: the path may change)
            raise NotOwned(f"{path} belongs to user {owner}, expected {account['uid']}")
        os.fchown(handle, account["uid"], account["gid"])
    finally:
        os.close(handle)


def give_file(path: Path, account: Mapping[str, Any]) -> None:
    """Make an empty file that this user and root may read and write; raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchown(handle, account["uid"], account["gid"])
    finally:
        os.close(handle)
