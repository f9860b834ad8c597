"""Secrets of users: sealed in the store, opened only for the workers of a job that names them.

AES-256-GCM seals each value together with its owner and its name. So a row that is moved to another
owner does not open. The key is a file of its own, which neither the store nor a backup has.
"""

import hashlib
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stretto.backends.protocol import NotNow, StartRefused
from stretto.errors import InputError
from stretto.jobfile.parts import LONGEST_SECRET_BYTES
from stretto.service.eventlog.secret_table import SecretRow, SecretTable

SECRET_KEY = "secret-key"  # in the state directory, unless the service is told another file
KEY_BYTES = 32  # of the file at least
NONCE_BYTES = 12  # as the mode wants it; drawn for each value
MOST_BYTES_OF_JOB = 512 << 10  # of all that a job names: a Secret of Kubernetes holds 1 MiB; chosen
MOST_OF_USER = 100  # chosen
UNFIT = re.compile(r"[\x00\ud800-\udfff]")  # what no environment variable can hold


class WrongKey(InputError):
    """The key of this service is not the one that a secret was sealed with, or there is none."""


@dataclass(frozen=True)
class SecretKey:
    """The file that secrets are sealed with.

    path: of the file. is_named: whether the service was told of it; else the first secret makes it.
    """

    path: Path
    is_named: bool = False

    def check(self) -> None:
        """Raise InputError for a file that the service was told of and that is no key."""
        if self.is_named:
            self.cipher()

    def make(self) -> None:
        """Draw a key where there is none yet, for its owner only. Raises InputError."""
        if self.is_named or self.path.exists():
            return
        try:
            part = self.path.with_suffix(".new")
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(os.urandom(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except OSError as wrong:
            raise InputError(f"{self.path}: cannot be written: {wrong.strerror}") from None

    def cipher(self) -> AESGCM:
        """What seals and opens. Raises WrongKey."""
        try:
            content = self.path.read_bytes()
        except OSError as wrong:
            raise WrongKey(
                f"{self.path}: the key of secrets cannot be read: {wrong.strerror}: put its copy there"
            ) from None
        if len(content) < KEY_BYTES:
            raise WrongKey(
                f"{self.path}: the key of secrets: expected at least {KEY_BYTES} bytes, got {len(content)}"
            )
        return AESGCM(hashlib.sha256(b"secrets:" + content).digest())


@dataclass(frozen=True)
class SealedSecrets:
    """The secrets of all users. Threads may share it; every call may raise StoreError."""

    table: SecretTable
    key: SecretKey

    def put(self, owner: str, name: str, value: str) -> SecretRow:
        """Keep a value, instead of the one before. Raises InputError for one that cannot be kept."""
        content = _checked(value)
        rows = self.table.rows(owner)
        if len(rows) >= MOST_OF_USER and all(row.name != name for row in rows):
            raise InputError(f"secrets: expected at most {MOST_OF_USER} of one user: delete one first")
        if not self.table.count():
            self.key.make()
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self.key.cipher().encrypt(nonce, content, _bound_to(owner, name))
        row = SecretRow(owner, name, round(time.time(), 3), sealed)
        self.table.put(row)
        return row

    def check(self, owner: str, asked: Mapping[str, str]) -> None:
        """Raise InputError where a job names a secret that its owner has not. asked: by variable."""
        names = set(asked.values())
        if missing := sorted(names - {row.name for row in self.table.rows(owner, names)}):
            raise InputError(f"secrets: expected one of yours, got {missing[0]!r}: `stretto secret set` it")

    def opened(self, owner: str, asked: Mapping[str, str]) -> dict[str, str]:
        """Values by variable, for the workers of one job.

        Raises StartRefused for a secret that is gone, and NotNow where the key of this service is wrong.
        """
        rows = {row.name: row for row in self.table.rows(owner, set(asked.values()))}
        if missing := sorted(set(asked.values()) - set(rows)):
            raise StartRefused(f"secret {missing[0]} has been deleted")
        try:
            values = {variable: self._open(rows[name]) for variable, name in asked.items()}
        except WrongKey as wrong:
            raise NotNow(str(wrong)) from None
        if sum(len(value.encode()) for value in values.values()) > MOST_BYTES_OF_JOB:
            raise StartRefused(f"secrets: expected at most {MOST_BYTES_OF_JOB} bytes of one job, got more")
        return values

    def unreadable(self) -> str:
        """A line for the operator where secrets do not open with the key of this service; "" for none."""
        closed, why = 0, ""
        rows = self.table.rows()
        for row in rows:
            try:
                self._open(row)
            except WrongKey as wrong:
                closed, why = closed + 1, str(wrong)
        return f"{closed} of {len(rows)} secrets cannot be opened: {why}" if closed else ""

    def _open(self, row: SecretRow) -> str:
        nonce, sealed = row.sealed[:NONCE_BYTES], row.sealed[NONCE_BYTES:]
        cipher = self.key.cipher()
        with suppress(InvalidTag, ValueError):
            return cipher.decrypt(nonce, sealed, _bound_to(row.owner, row.name)).decode()
        raise WrongKey(
            f"{self.key.path}: not the key that secret {row.name} was sealed with: put its copy there"
        )


def _checked(value: str) -> bytes:
    """A value as bytes. No message repeats it."""
    if not value:
        raise InputError("the value of a secret: expected a text, got nothing")
    if UNFIT.search(value):
        raise InputError("the value of a secret: expected UTF-8 text without NUL, as a variable can hold it")
    content = value.encode()
    if len(content) > LONGEST_SECRET_BYTES:
        raise InputError(
            f"the value of a secret: expected at most {LONGEST_SECRET_BYTES} bytes, got {len(content)}"
        )
    return content


def _bound_to(owner: str, name: str) -> bytes:
    return f"{owner}\0{name}".encode()
