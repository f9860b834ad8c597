"""What an upload holds: its files, folders and links, each checked, under one digest.

A file is a list of parts of 1 MiB, each named by its SHA-256. So a tree that has changed a little sends only
parts that are new, and what was sent can be told from what was not.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from stretto.errors import InputError

PART_BYTES = 1 << 20  # of every part of a file but its last; chosen
MOST_ENTRIES = 10_000  # chosen: a manifest of so many fits into one request
LONGEST_PATH, LONGEST_NAME = 1_024, 255  # bytes; as most file systems have it
MOST_LINKS = 40  # that are followed one after another, as Linux does
DIGEST = re.compile(r"[0-9a-f]{64}")
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
KEYS = frozenset({"path", "bytes", "parts", "executable", "target", "folder"})


@dataclass(frozen=True)
class UploadEntry:
    """A file with its parts, a symbolic link with its target, or an empty folder."""

    path: str  # from the root of the tree, with '/'
    bytes: int = 0
    parts: tuple[str, ...] = ()  # SHA-256 of each MiB
    executable: bool = False
    target: str = ""  # of a link
    folder: bool = False

    def to_json(self) -> dict[str, Any]:
        """The same as JSON, without what does not hold."""
        if self.target:
            return {"path": self.path, "target": self.target}
        if self.folder:
            return {"path": self.path, "folder": True}
        more = {"executable": True} if self.executable else {}
        return {"path": self.path, "bytes": self.bytes, "parts": list(self.parts), **more}

    @property
    def is_file(self) -> bool:
        """Whether it has content."""
        return not (self.target or self.folder)

    def size_of(self, part: int) -> int:
        """Bytes of one of its parts."""
        return min(PART_BYTES, self.bytes - part * PART_BYTES)


@dataclass(frozen=True)
class UploadManifest:
    """All entries by path. Raises InputError for a tree that cannot be."""

    entries: tuple[UploadEntry, ...]
    sizes: Mapping[str, int] = field(init=False, compare=False)  # bytes by part

    def __post_init__(self) -> None:
        """Check every entry, and how they go together."""
        object.__setattr__(self, "entries", tuple(sorted(self.entries, key=lambda entry: entry.path)))
        if not 0 < len(self.entries) <= MOST_ENTRIES:
            raise InputError(
                f"upload: expected 1 to {MOST_ENTRIES} files, got {len(self.entries)}: name in .strettoignore"
                " what the job does not need"
            )
        by_path = {entry.path: entry for entry in self.entries}
        if len(by_path) < len(self.entries):
            raise InputError("upload: expected every path once")
        sizes: dict[str, int] = {}
        for entry in self.entries:
            _check_path(entry.path)
            for parent in _parents(entry.path):
                if parent in by_path and not by_path[parent].folder:
                    raise InputError(f"upload: {entry.path}: expected a folder around it, got {parent}")
            if entry.target:
                _check_link(entry, by_path)
            _check_parts(entry, sizes)
        object.__setattr__(self, "sizes", sizes)

    @cached_property
    def content(self) -> bytes:
        """The manifest as it is kept and sent; always the same bytes for the same tree."""
        entries = [entry.to_json() for entry in self.entries]
        return json.dumps({"entries": entries}, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `content`, by which the upload is known."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def files(self) -> tuple[UploadEntry, ...]:
        """What has content."""
        return tuple(entry for entry in self.entries if entry.is_file)

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(entry.bytes for entry in self.entries)

    def has_folder(self, path: str) -> bool:
        """Whether there is a folder of this path."""
        inside = f"{path}/"
        return any(
            entry.path.startswith(inside) or (entry.folder and entry.path == path) for entry in self.entries
        )


def manifest_in(value: Any) -> UploadManifest:
    """A manifest from its JSON. Raises InputError."""
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise InputError("upload: expected a list of entries")
    return UploadManifest(tuple(_entry(one) for one in entries))


def check_sizes(files: Sequence[tuple[str, int]], most_bytes: int, most_file_bytes: int) -> None:
    """Raise InputError, with the biggest files, where an upload is larger than it may be.

    files: paths and bytes.
    """
    biggest = sorted(files, key=lambda file: (-file[1], file[0]))[:3]
    named = ", ".join(f"{path} ({in_words(size)})" for path, size in biggest)
    hint = "name in .strettoignore what the job does not need"
    if biggest and biggest[0][1] > most_file_bytes:
        raise InputError(
            f"upload: expected files of at most {in_words(most_file_bytes)}; the biggest are {named}: {hint}"
        )
    if (total := sum(size for _, size in files)) > most_bytes:
        raise InputError(
            f"upload: expected at most {in_words(most_bytes)}, got {in_words(total)} in {len(files)} files; "
            f"the biggest are {named}: {hint}"
        )


def in_words(count: float) -> str:
    """Bytes as people write them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def _entry(value: Any) -> UploadEntry:
    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        raise InputError("upload: expected entries with a path")
    path = value["path"]
    shown = repr(path[:LONGEST_NAME])
    if unknown := sorted(set(value) - KEYS):
        raise InputError(f"upload: {shown}: unknown key {str(unknown[0])[:64]!r}, expected {sorted(KEYS)}")
    size, parts = value.get("bytes", 0), value.get("parts", [])
    target, folder = value.get("target", ""), value.get("folder", False)
    executable = value.get("executable", False)
    if type(size) is not int or size < 0 or not isinstance(parts, list):
        raise InputError(f"upload: {shown}: expected a number of bytes and a list of parts")
    if not isinstance(target, str) or type(folder) is not bool or type(executable) is not bool:
        raise InputError(f"upload: {shown}: expected a target that is a text, and a folder or not")
    has_content = bool(size or parts or executable)
    if bool(target) + folder + has_content > 1:
        raise InputError(f"upload: {shown}: expected a file, a link or a folder")
    return UploadEntry(path, size, tuple(parts), executable, target, folder)


def _check_path(path: str) -> None:
    names = path.split("/")
    size = len(path.encode(errors="replace"))
    if CONTROL.search(path) or any(name in ("", ".", "..") for name in names) or size > LONGEST_PATH:
        raise InputError(f"upload: expected a path within the tree, in UTF-8, got {path[:LONGEST_NAME]!r}")
    if any(len(name.encode()) > LONGEST_NAME for name in names):
        raise InputError(f"upload: expected names of at most {LONGEST_NAME} bytes, got {path[:80]!r}...")


def _parents(path: str) -> Iterable[str]:
    names = path.split("/")[:-1]
    return ("/".join(names[:count]) for count in range(1, len(names) + 1))


def _check_link(entry: UploadEntry, by_path: Mapping[str, UploadEntry]) -> None:
    """Raise InputError for a link that leads out of the tree, also by way of other links."""
    outside = f"upload: {entry.path}: expected a link within the tree, got one to {entry.target[:80]!r}"
    if entry.target.startswith("/") or CONTROL.search(entry.target):
        raise InputError(outside)
    reached = entry.path.split("/")[:-1]
    left = entry.target.split("/")
    followed = 0
    while left:
        name = left.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            if not reached:
                raise InputError(outside)
            reached.pop()
            continue
        reached.append(name)
        other = by_path.get("/".join(reached))
        if other is not None and other.target:
            followed += 1
            if followed > MOST_LINKS or other.target.startswith("/"):
                raise InputError(outside)
            reached.pop()
            left = [*other.target.split("/"), *left]


def _check_parts(entry: UploadEntry, sizes: dict[str, int]) -> None:
    """Raise InputError where parts and bytes do not go together; note how long each part is."""
    if len(entry.parts) != -(-entry.bytes // PART_BYTES):
        raise InputError(f"upload: {entry.path}: expected a part for each MiB")
    for index, digest in enumerate(entry.parts):
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise InputError(f"upload: {entry.path}: expected parts by their SHA-256")
        size = entry.size_of(index)
        if sizes.setdefault(digest, size) != size:
            raise InputError(f"upload: {entry.path}: part {digest[:12]} has two sizes")
