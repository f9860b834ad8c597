"""Uploads of users: what their jobs bring along, by content, for their owner alone.

Below a directory that is the service's alone each owner has a folder: `manifests/DIGEST.json` says what an
upload holds, `parts/XX/DIGEST` has the content of files. Names of files are in manifests only, so no path of
a user is ever a path here. Parts are shared between the uploads of one owner, and with no other user's: to
know a digest is not to have what it names.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile

from stretto.backends.protocol import NotNow, StartRefused
from stretto.client.upload_manifest import UploadManifest, check_sizes, in_words, manifest_in
from stretto.client.upload_tree import LENGTH_BYTES
from stretto.errors import InputError
from stretto.jobfile.parts import Upload

UPLOADS = "uploads"  # in the state directory, unless the service is told another place
LEAST_KEPT_S = 3_600.0  # of what no job names: it may be on its way; chosen
PIECE_BYTES = 1 << 18  # of what is sent at once
PARTIAL = ".part-"


@dataclass(frozen=True)
class UploadLimits:
    """How much may be uploaded, and how long it stays after the last job that names it; all chosen."""

    most_bytes: int = 500_000_000  # of one upload
    most_file_bytes: int = 200_000_000
    most_user_bytes: int = 5_000_000_000  # of all uploads of one user
    keep_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        """Check the time."""
        if not self.keep_s >= LEAST_KEPT_S:
            raise InputError(f"--keep-uploads: expected at least {LEAST_KEPT_S:g} s, got {self.keep_s:g}")


@dataclass(frozen=True)
class Collected:
    """What a look for garbage came to."""

    gone: int  # uploads
    failures: tuple[OSError, ...] = ()  # one for each folder that could not be gone through


@dataclass
class UploadStore:
    """The uploads of all users. Threads may share it; calls may raise OSError."""

    root: Path
    limits: UploadLimits = field(default_factory=UploadLimits)
    _lock: threading.RLock = field(default_factory=threading.RLock)  # nothing is collected meanwhile

    def offer(self, owner: str, manifest: UploadManifest) -> list[str]:
        """Take a manifest; the parts that are missing. Raises InputError where it is too large."""
        files = [(entry.path, entry.bytes) for entry in manifest.files]
        check_sizes(files, self.limits.most_bytes, self.limits.most_file_bytes)
        with self._lock:
            self._make_room(owner, manifest)
            file = self._manifest_file(owner, manifest.digest)
            if not file.exists():
                _write_all({file: manifest.content})
            os.utime(file)
            return self._missing(owner, manifest)

    def put(self, owner: str, digest: str, pack: bytes) -> None:
        """Keep parts, each behind its length. Raises InputError for any that the upload does not name."""
        manifest = self.manifest(owner, digest)
        parts: dict[Path, bytes] = {}
        offset = 0
        while offset < len(pack):
            size = int.from_bytes(pack[offset : offset + LENGTH_BYTES], "big")
            offset += LENGTH_BYTES
            content = pack[offset : offset + size]
            offset += size
            name = hashlib.sha256(content).hexdigest()
            if manifest.sizes.get(name) != size:
                raise InputError("upload: expected parts that its manifest names, got another or a cut one")
            parts[self._part_file(owner, name)] = content
        with self._lock:
            _write_all({file: content for file, content in parts.items() if not _has(file, len(content))})

    def manifest(self, owner: str, digest: str) -> UploadManifest:
        """What an upload of this owner holds. Raises InputError where there is none."""
        try:
            content = self._manifest_file(owner, digest).read_bytes()
        except FileNotFoundError:
            raise InputError(f"upload: expected one of yours, got {digest[:12]}: upload it again") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise InputError(f"upload: {digest[:12]} is damaged in {self.root}: upload it again")
        return manifest_in(json.loads(content))

    def complete(self, owner: str, digest: str) -> tuple[Upload, UploadManifest]:
        """An upload that is there whole, and now in use. Raises InputError."""
        with self._lock:
            manifest = self.manifest(owner, digest)
            if missing := self._missing(owner, manifest):
                raise InputError(
                    f"upload: {digest[:12]} lacks {len(missing)} of its parts: upload it to its end first"
                )
            os.utime(self._manifest_file(owner, digest))
        return Upload(digest, len(manifest.files), manifest.bytes), manifest

    def check_start(self, owner: str, upload: Upload) -> None:
        """Raise StartRefused where a job's upload is not there any more, NotNow where that cannot be seen."""
        try:
            self.complete(owner, upload.digest)
        except InputError:
            raise StartRefused(
                f"upload {upload.digest[:12]} is not in {self.root} any more: submit the job again with it"
            ) from None
        except OSError as wrong:
            raise NotNow(f"{self.root}: cannot be read: {wrong.strerror}") from None

    def content(self, owner: str, manifest: UploadManifest, offset: int) -> Iterator[bytes]:
        """All files one behind another, in the order of the manifest, from a byte on."""
        for entry in manifest.files:
            if offset >= entry.bytes:
                offset -= entry.bytes
                continue
            for index, name in enumerate(entry.parts):
                size = entry.size_of(index)
                if offset >= size:
                    offset -= size
                    continue
                with self._part_file(owner, name).open("rb") as file:
                    file.seek(offset)
                    offset = 0
                    while piece := file.read(PIECE_BYTES):
                        yield piece

    # ── garbage ───────────────────────────────────────────────────────────────────────────────────

    def collect(self, in_use: Collection[tuple[str, str]]) -> Collected:
        """Delete uploads that no job has named for long enough. in_use: (owner, digest).

        A folder that cannot be gone through keeps none of the others waiting.
        """
        used = {self._manifest_file(owner, digest) for owner, digest in in_use}
        gone = 0
        failures: list[OSError] = []
        for folder in _entries(self.root):
            try:
                with self._lock:
                    gone += self._collect_in(folder, used)
            except OSError as wrong:
                failures.append(wrong)
        return Collected(gone, tuple(failures))

    def _collect_in(self, folder: Path, used: Collection[Path]) -> int:
        """The same of one owner; how many uploads are gone."""
        gone = 0
        for file in _entries(folder / "manifests"):
            if file in used:
                with suppress(FileNotFoundError):
                    os.utime(file)
            elif _age_s(file) > self.limits.keep_s:
                file.unlink(missing_ok=True)
                gone += file.suffix == ".json"
        self._drop_parts(folder)
        return gone

    def _drop_parts(self, folder: Path) -> None:
        """Delete what no manifest of a folder names."""
        named = {name for manifest in self._manifests(folder) for name in manifest.sizes}
        for shelf in _entries(folder / "parts"):
            for part in _entries(shelf):
                is_partial = part.name.startswith(PARTIAL)
                if part.name not in named and (not is_partial or _age_s(part) > LEAST_KEPT_S):
                    part.unlink(missing_ok=True)

    def _make_room(self, owner: str, manifest: UploadManifest) -> None:
        """Raise InputError where a user has too much already."""
        folder = self._folder(owner)
        kept = {name: size for other in self._manifests(folder) for name, size in other.sizes.items()}
        most = self.limits.most_user_bytes
        if sum({**kept, **manifest.sizes}.values()) > most:
            raise InputError(
                f"upload: expected at most {in_words(most)} of one user, whose other uploads have "
                f"{in_words(sum(kept.values()))}: they go {self.limits.keep_s / 86_400:.3g} days after their "
                "last job"
            )

    def _manifests(self, folder: Path) -> Iterator[UploadManifest]:
        for file in _entries(folder / "manifests"):
            if file.suffix == ".json":
                with suppress(InputError, ValueError, FileNotFoundError):
                    yield manifest_in(json.loads(file.read_bytes()))

    def _missing(self, owner: str, manifest: UploadManifest) -> list[str]:
        return [name for name, size in manifest.sizes.items() if not _has(self._part_file(owner, name), size)]

    def _folder(self, owner: str) -> Path:
        return self.root / folder_name(owner)

    def _manifest_file(self, owner: str, digest: str) -> Path:
        return self._folder(owner) / "manifests" / f"{digest}.json"

    def _part_file(self, owner: str, name: str) -> Path:
        return self._folder(owner) / "parts" / name[:2] / name


def folder_name(owner: str) -> str:
    """Of the folder that an owner has, which a path cannot be made of."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def _has(file: Path, size: int) -> bool:
    """Whether a file is there whole, and not as a crash has cut it."""
    with suppress(FileNotFoundError):
        return file.stat().st_size == size
    return False


def _write_all(contents: dict[Path, bytes]) -> None:
    """Make files, each whole or not at all, durable once this returns."""
    made: list[tuple[Path, Path]] = []
    try:
        for file, content in contents.items():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=file.parent, prefix=PARTIAL, delete=False) as part:
                made.append((Path(part.name), file))
                part.write(content)
        for part_file, _ in made:
            _sync(part_file)
        for part_file, file in made:
            part_file.replace(file)
        for folder in {file.parent for file in contents}:
            _sync(folder)
    except BaseException:
        for part_file, _ in made:
            part_file.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _entries(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return list(folder.iterdir())
    return []


def _age_s(file: Path) -> float:
    """Seconds since it was last used; none for one that has just gone."""
    with suppress(FileNotFoundError):
        return time.time() - file.stat().st_mtime
    return 0.0
