"""How a service finds the agent of a state directory: by its lock, its token and its address."""

import fcntl
import json
import os
import re
import secrets
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.agent import run_directory, supervisor

LOCK, TOKEN, ADDRESS = "agent.lock", "token", "address.json"
WHOLE_TOKEN = re.compile(rb"[A-Za-z0-9_-]{32,100}")


def take(state: Path) -> int | None:
    """Make the state directory ours until this process ends; None if another agent has it."""
    lock = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)  # who only looks whether somebody has it, has it for a moment
        else:
            return lock
    os.close(lock)
    return None


def token_in(state: Path) -> str:
    """The token that opens this agent, made at its first start and drawn anew where the file is damaged.

    Readable for its user alone. Raises OSError.
    """
    path = state / TOKEN
    try:
        text = run_directory.read_file(path)
        if text is not None and WHOLE_TOKEN.fullmatch(text.strip()):
            return text.decode("ascii").strip()
        damage = None if text is None else f"{TOKEN} holds no token"
    except run_directory.Damaged as wrong:
        damage = str(wrong)
    if damage:
        print(f"{state}: {damage}: drawn anew", file=sys.stderr, flush=True)
    token = secrets.token_urlsafe(32)
    write_token(path, token)
    return token


def write_token(path: Path, token: str) -> None:
    """Put a token where only this user can read it; raises OSError."""
    part = path.with_name(f"{path.name}.part")
    run_directory.make_way(path, part)
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    part.write_text(token, encoding="ascii")
    part.replace(path)


@dataclass(frozen=True)
class Presence:
    """What one living agent has written down to be found by."""

    state: Path
    lock: int  # the open lock file
    token: str
    address: dict[str, Any]  # url, pid, instance, node

    def is_ours(self) -> bool:
        """Whether the lock file is still there, and no other in its place."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(self.lock), (self.state / LOCK).stat())
        return False

    def show(self) -> None:
        """Write down what is not there as it should be; raises OSError."""
        token, address = self.state / TOKEN, self.state / ADDRESS
        if _text_of(token) != self.token.encode():
            write_token(token, self.token)
        if _text_of(address) != json.dumps(self.address).encode():
            run_directory.make_way(address, address.with_name(f"{ADDRESS}.part"))
            supervisor.write_durably(address, self.address)


def _text_of(path: Path) -> bytes | None:
    with suppress(run_directory.Damaged):
        return run_directory.read_file(path)
    return None
