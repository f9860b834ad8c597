"""Unix users: as which one jobs run, and which files belong to which user.

Where the service may become other Unix users (`--run-as`), each user's jobs run as one of them.
"""

import os
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import InputError

SAME_NAME = "user"  # said alone: everybody's jobs run under the Unix user of the same name
LARGEST_ID = 2**32 - 2


@dataclass(frozen=True)
class Account:
    """A Unix user, as processes take it on."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()  # supplementary ones
    name: str = ""  # "" where the machine has no name for it
    home: str = ""


@dataclass
class Accounts:
    """The accounts of users, each looked up once."""

    named: dict[str, str] = field(default_factory=dict)  # user → name or UID[:GID]
    same_name: bool = False  # those who are not named run under the Unix user of their own name
    _known: dict[str, Account] = field(default_factory=dict)

    def of(self, user: str) -> Account:
        """The account of a user; raises InputError where there is none, or where it is root's."""
        if user not in self._known:
            if user not in self.named and not self.same_name:
                raise InputError(f"user {user!r} has no Unix user here to run jobs as: see serve --run-as")
            # A user called 1000 is not the account of that number: only operators name accounts by numbers.
            account = account_of(self.named[user]) if user in self.named else account_called(user)
            if wrong := _power_of(account):
                raise InputError(f"user {user!r}: {wrong}")
            self._known[user] = account
        return self._known[user]


def read_accounts(values: Sequence[str]) -> Accounts | None:
    """From what --run-as says: `user`, or NAME=ACCOUNT; None where it says nothing. Raises InputError."""
    named: dict[str, str] = {}
    for each in values:
        user, equals, account = each.partition("=")
        if each == SAME_NAME:
            continue
        if not (equals and user and account):
            raise InputError(f"--run-as {each}: expected user, NAME=UNIX-USER or NAME=UID[:GID]")
        if user in named:
            raise InputError(f"--run-as {each}: {user} was given {named[user]} before")
        try:
            if wrong := _power_of(account_of(account)):
                raise InputError(wrong)
        except InputError as refused:
            raise InputError(f"--run-as {each}: {refused}") from None
        named[user] = account
    return Accounts(named, SAME_NAME in values) if values else None


def account_of(text: str) -> Account:
    """The account that has a name, or UID[:GID] which need not have one. Raises InputError."""
    uid, _, gid = text.partition(":")
    if uid.isdecimal():
        has_gid = gid.isdecimal() or ":" not in text
        if not has_gid or max(int(uid), int(gid or 0)) > LARGEST_ID:
            raise InputError(f"expected UID or UID:GID of at most {LARGEST_ID}, got {text!r}")
        try:
            return with_name(pwd.getpwuid(int(uid)), gid)
        except KeyError:
            return Account(int(uid), int(gid or uid))
    return account_called(text)


def account_called(name: str) -> Account:
    """The account of a name. Raises InputError."""
    try:
        return with_name(pwd.getpwnam(name))
    except (KeyError, ValueError):
        raise InputError(f"this machine has no user {name!r}") from None


def with_name(found: pwd.struct_passwd, gid: str = "") -> Account:
    """An account of the machine's own list."""
    first = int(gid) if gid else found.pw_gid
    groups = tuple(os.getgrouplist(found.pw_name, first))
    return Account(found.pw_uid, first, groups, found.pw_name, found.pw_dir)


def _power_of(account: Account) -> str:
    """Why jobs must not run as this; "" where they may."""
    if account.uid == 0:
        return "jobs never run as root"
    return "" if account.gid else "jobs never run with root's group"


# ── what belongs to whom where root runs workers as other users: their directories are theirs alone ─────────


ENTER_ONLY = 0o711
PRIVATE = 0o700


class NotOwned(Exception):
    """A directory that a worker is to have to itself is another user's."""


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
    """The first directory above this one that not every user may enter; None for none."""
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
