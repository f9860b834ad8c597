"""What the files of a run say, each checked before anything depends on it.

A file that is not what was written there (cut off by a full disk, garbled, replaced) is *damaged*. That hurts
its own worker and nobody else: what the other files say as well is taken from there.
"""

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from stretto.live.agent.keeper import KNOWN_TWICE

LARGEST_BYTES = 32 << 20  # of a file that we write; chosen: a request has at most 1 MiB, as JSON some more
# What says nothing about the file: it may be read a moment later.
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)


class Damaged(ValueError):
    """What stands in the place of a file is not what was written there."""


def read_file(path: Path) -> bytes | None:
    """All of a file, or None if there is none; raises Damaged, and OSError where to ask again may help."""
    try:
        file = open_file(path)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as reader:
        try:
            text = reader.read(LARGEST_BYTES + 1)
        except OSError as failure:
            raise _damage(path, failure) from failure
    if len(text) > LARGEST_BYTES:
        raise Damaged(f"{path.name} must have at most {LARGEST_BYTES} bytes")
    return text


def open_file(path: Path) -> int:
    """A file, opened for reading; raises FileNotFoundError, and as `read_file` does for what is no file."""
    try:
        # Who opens a FIFO to read from it would wait for somebody to write.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise _damage(path, failure) from failure
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise Damaged(f"{path.name} is no file")


def _damage(path: Path, failure: OSError) -> Exception:
    """What it means that a file cannot be read."""
    return failure if failure.errno in PASSING else Damaged(f"{path.name} cannot be read: {failure.strerror}")


def read_json(path: Path) -> dict[str, Any] | None:
    """An object that `write_durably` wrote, or None if there is none; raises as `read_file` does."""
    text = read_file(path)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise Damaged(f"{path.name} must be JSON, got {text[:40]!r}") from failure
    if not isinstance(found, dict):
        raise Damaged(f"{path.name} must be a JSON object, got {text[:40]!r}")
    return found


def make_way(*paths: Path) -> None:
    """Put directories aside where files are to be written; raises OSError. All else can be replaced."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_name(f"{path.name}.damaged-{secrets.token_hex(4)}"))


# ── the shapes of three files: fields without which nothing can be done with them ─────────────────


def is_text(value: Any) -> bool:
    """Whether this is a string."""
    return isinstance(value, str)


def _is_mark(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def is_object(value: Any) -> bool:
    """Whether this is a JSON object."""
    return isinstance(value, dict)


def is_number(value: Any) -> bool:
    """Whether this is a finite number."""
    return type(value) in (int, float) and isfinite(value)


def is_count(value: Any) -> bool:
    """Whether this is a whole number that is not negative."""
    return type(value) is int and value >= 0


def _is_pid(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _are_gpus(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def _is_command(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(is_text, value)))


def _is_status(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 16)


def _is_exit(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and _is_status(value.get("status")))


Shape = Mapping[str, Callable[[Any], bool]]
STARTED: Shape = {
    "job": is_text,
    "gpus": _are_gpus,
    "command": _is_command,
    "cwd": is_text,
    "grace_s": is_number,
    "asked_env": is_object,
    "mark": _is_mark,
    "group": lambda value: value is None or is_text(value),
    "guards": lambda value: value is None or isinstance(value, list),
    "devices": lambda value: value is None or _are_gpus(value),
}
RUNNING: Shape = {
    "pid": _is_pid,
    "keeper_pid": _is_pid,
    "keeper_ticks": is_number,
    "boot_id": is_text,
    "started_s": is_number,
    "stopping": lambda value: isinstance(value, bool),
    "exit": _is_exit,
}
ENDED: Shape = {"status": _is_status, "ended_s": is_number}


def read_shaped(path: Path, shape: Shape) -> dict[str, Any] | None:
    """An object with these fields, or None if there is no file; raises as `read_file` does."""
    found = read_json(path)
    for name, fits in shape.items() if found is not None else ():
        if not fits((found or {}).get(name)):
            raise Damaged(f"{path.name} has no usable {name!r}")
    return found


@dataclass(frozen=True)
class Ends:
    """What two files of a run say; None of one that is not there yet, or is damaged."""

    running: dict[str, Any] | None
    ended: dict[str, Any] | None
    damage: str  # what is wrong with either; "" for nothing


def read_ends(run: Path) -> Ends:
    """How far a run has come; raises OSError where to ask again may help."""
    found: dict[str, dict[str, Any] | None] = {}
    damage = []
    for name, shape in (("ended.json", ENDED), ("running.json", RUNNING)):
        try:
            found[name] = read_shaped(run / name, shape)
        except Damaged as wrong:
            damage.append(str(wrong))
    return Ends(found.get("running.json"), found.get("ended.json"), ", ".join(damage))


def read_start(run: Path) -> tuple[dict[str, Any], str]:
    """What a worker was started with, and what is wrong with the file that says so; "" for nothing.

    Of a damaged one the most important is in running.json as well. Raises OSError as `read_ends` does.
    """
    try:
        if found := read_shaped(run / "start.json", STARTED):
            return {**found, "id": run.name}, ""
        damage = "start.json is missing"
    except Damaged as wrong:
        damage = str(wrong)
    known: dict[str, Any] = {"job": run.name.partition(".")[0], "gpus": [], "mark": ""}
    with suppress(Damaged):
        said = (read_shaped(run / "running.json", RUNNING) or {}).get("of")
        if isinstance(said, dict) and all(STARTED[name](said.get(name)) for name in KNOWN_TWICE):
            known = {name: said.get(name) for name in KNOWN_TWICE}
    return {"guards": [], **known, "id": run.name}, damage
