"""A directory as an upload: which files go along, by an ignore file, and what they hold."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.client.upload_manifest import (
    MOST_ENTRIES,
    PART_BYTES,
    UploadEntry,
    UploadManifest,
    check_sizes,
)
from stretto.errors import InputError

IGNORE, GIT_IGNORE = ".strettoignore", ".gitignore"
NEVER = frozenset({".git"})  # the history of a tree is no part of it
MOST_BYTES_OF_PACK = (1 << 20) + (1 << 19)  # of one request, which may have 2 MiB; chosen
MOST_PARTS_OF_PACK = 64  # each is made durable; chosen
LENGTH_BYTES = 4  # before each part of a pack
LARGEST_MANIFEST_BYTES = 2_000_000  # of one request


@dataclass(frozen=True)
class UploadTree:
    """A directory with what of it is uploaded."""

    root: Path
    manifest: UploadManifest
    places: Mapping[str, tuple[str, int]] = field(repr=False)  # by part: a file that has it, and which MiB

    def packs(self, missing: Sequence[str]) -> Iterator[bytes]:
        """Bodies of requests that send these parts: each part behind its length.

        Raises InputError where a file has changed since it was looked at.
        """
        pack, count = b"", 0
        for digest in dict.fromkeys(missing):
            content = self._part(digest)
            if pack and (len(pack) + len(content) > MOST_BYTES_OF_PACK or count == MOST_PARTS_OF_PACK):
                yield pack
                pack, count = b"", 0
            pack += len(content).to_bytes(LENGTH_BYTES, "big") + content
            count += 1
        if pack:
            yield pack

    def _part(self, digest: str) -> bytes:
        if digest not in self.places:
            raise InputError(f"upload: the service asks for a part that {self.root} has not")
        path, index = self.places[digest]
        with _opened(self.root, path) as file:
            file.seek(index * PART_BYTES)
            content: bytes = file.read(PART_BYTES)
        if hashlib.sha256(content).hexdigest() != digest:
            raise _changed(path)
        return content


def upload_tree(root: Path, limits: Mapping[str, Any]) -> UploadTree:
    """What of a directory is uploaded, within the limits that the service told. Raises InputError.

    limits: most_bytes and most_file_bytes.
    """
    if not root.is_dir():
        raise InputError(f"--upload {root}: expected a directory")
    listed = sorted(_found(root))
    if not listed:
        raise InputError(f"--upload {root}: expected a directory with a file in it")
    if len(listed) > MOST_ENTRIES:  # said before anything is read
        raise InputError(
            f"--upload {root}: expected at most {MOST_ENTRIES} files, got more; most are in "
            f"{_fullest(listed)}: name in {IGNORE} what the job does not need"
        )
    sizes = [(path, status.st_size) for path, status in listed if stat.S_ISREG(status.st_mode)]
    check_sizes(sizes, int(limits["most_bytes"]), int(limits["most_file_bytes"]))
    places: dict[str, tuple[str, int]] = {}
    manifest = UploadManifest(tuple(_entry(root, path, status, places) for path, status in listed))
    if len(manifest.content) > LARGEST_MANIFEST_BYTES:
        raise InputError(
            f"--upload {root}: expected fewer files, or shorter paths: their list has "
            f"{len(manifest.content)} bytes of at most {LARGEST_MANIFEST_BYTES}"
        )
    return UploadTree(root, manifest, places)


def _found(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Files, links and empty folders that no ignore file names, by path."""
    from pathspec import GitIgnoreSpec  # only those who upload need it

    name = IGNORE if (root / IGNORE).is_file() else GIT_IGNORE
    waiting: list[tuple[str, list[tuple[str, GitIgnoreSpec]]]] = [("", [])]
    count = 0
    while waiting:
        folder, rules = waiting.pop()
        if (lines := _lines(root / folder / name)) is not None:
            try:
                rules = [*rules, (folder, GitIgnoreSpec.from_lines(lines))]
            except ValueError as wrong:
                raise InputError(f"{root / folder / name}: {wrong}") from None
        is_empty = True
        for each in _scanned(root, folder):
            path = f"{folder}/{each.name}" if folder else each.name
            status = each.stat(follow_symlinks=False)
            is_folder = stat.S_ISDIR(status.st_mode)
            if each.name in NEVER or _is_ignored(f"{path}/" if is_folder else path, rules):
                continue
            is_empty = False
            _check_name(path)
            if is_folder:
                waiting.append((path, rules))
                continue
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise InputError(
                    f"upload: {path}: expected a file, a folder or a link: name it in {IGNORE} otherwise"
                )
            yield path, status
            count += 1
            if count > 2 * MOST_ENTRIES:  # enough to say where most of them are
                return
        if is_empty and folder:
            yield folder, (root / folder).lstat()


def _scanned(root: Path, folder: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(root / folder) as entries:
            return list(entries)
    except OSError as wrong:
        raise InputError(f"upload: {folder or root}: cannot be read: {wrong.strerror}") from None


def _lines(file: Path) -> list[str] | None:
    """The lines of an ignore file; None where there is none. Raises InputError."""
    try:
        return file.read_text(encoding="utf-8").splitlines() if file.is_file() else None
    except OSError as wrong:
        raise InputError(f"{file}: cannot be read: {wrong.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: expected UTF-8 text") from None


def _is_ignored(path: str, rules: Sequence[tuple[str, Any]]) -> bool:
    """As git has it: the last rule that fits counts, and rules of a deeper folder come later."""
    for folder, spec in reversed(rules):
        found = spec.check_file(path.removeprefix(f"{folder}/") if folder else path).include
        if found is not None:
            return bool(found)
    return False


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(f"upload: {path!r}: expected a name in UTF-8: name it in {IGNORE}") from None


def _entry(root: Path, path: str, status: os.stat_result, places: dict[str, tuple[str, int]]) -> UploadEntry:
    """One entry, with what its file holds now; notes where each part lies."""
    if stat.S_ISDIR(status.st_mode):
        return UploadEntry(path, folder=True)
    if stat.S_ISLNK(status.st_mode):
        return UploadEntry(path, target=str((root / path).readlink()))
    parts: list[str] = []
    size = 0
    with _opened(root, path) as file:
        while content := file.read(PART_BYTES):
            digest = hashlib.sha256(content).hexdigest()
            places.setdefault(digest, (path, len(parts)))
            parts.append(digest)
            size += len(content)
            if size > status.st_size:
                raise _changed(path)
    if size != status.st_size:
        raise _changed(path)
    return UploadEntry(path, size, tuple(parts), bool(status.st_mode & stat.S_IXUSR))


def _opened(root: Path, path: str) -> Any:
    """A file, never what another one has put in its place as a link or a pipe. Raises InputError."""
    try:
        descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.fdopen(descriptor, "rb")
    except OSError as wrong:
        raise InputError(f"upload: {path}: cannot be read: {wrong.strerror}") from None


def _changed(path: str) -> InputError:
    return InputError(f"upload: {path}: has changed while it was read: try again once nothing writes there")


def _fullest(found: Sequence[tuple[str, os.stat_result]]) -> str:
    """The folder at the top with the most files."""
    counted: dict[str, int] = {}
    for path, _ in found:
        top = path.partition("/")[0]
        counted[top] = counted.get(top, 0) + 1
    return max(counted, key=lambda top: counted[top])
