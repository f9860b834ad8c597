"""As which Unix user the jobs of each user run, where the service may become others (`--run-as`)."""

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.model import InputError

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


def read_accounts(said: Sequence[str]) -> Accounts | None:
    """From what --run-as says: `user`, or NAME=ACCOUNT; None where it says nothing. Raises InputError."""
    named: dict[str, str] = {}
    for each in said:
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
    return Accounts(named, SAME_NAME in said) if said else None


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
