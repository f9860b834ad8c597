"""Uploads in the archive of a backup: each file under the name that says what it holds.

A file of an upload is named by its SHA-256. So its name is what it is checked by, on its way in and out.
There may be many: none of these functions remembers those that it has done with.
"""

import hashlib
import logging
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile

from stretto.errors import InputError
from stretto.service.eventlog import Recorded
from stretto.service.state.events import ArraySubmitted, Ended, Submitted, event_of
from stretto.service.uploads import UPLOADS, folder_name

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
NAME = re.compile(
    rf"{UPLOADS}/[0-9a-f]{{32}}/(?:manifests/([0-9a-f]{{64}})\.json|parts/([0-9a-f]{{2}})/(\2[0-9a-f]{{62}}))"
)
SUBMITTED = (Submitted.__name__, ArraySubmitted.__name__)
OWNER = re.compile(r"[0-9a-f]{32}")  # the folder of one


@dataclass
class NamedUploads:
    """The uploads that open jobs name, as events of a log come by."""

    of_job: dict[str, str] = field(default_factory=dict)  # job → its manifest's name in an archive

    def take(self, recorded: Recorded) -> None:
        """Note an event."""
        if recorded.kind == Ended.__name__:
            self.of_job.pop(str(recorded.body.get("job")), None)
        elif recorded.kind in SUBMITTED and (upload := recorded.body["spec"].get("upload")):
            with suppress(InputError):  # what nobody understands makes no job
                event = event_of(recorded.kind, recorded.body)
                for each in event.tasks() if isinstance(event, ArraySubmitted) else (event,):
                    if isinstance(each, Submitted):
                        name = f"{UPLOADS}/{folder_name(each.user)}/manifests/{upload['digest']}.json"
                        self.of_job[each.job] = name


# ── into an archive ───────────────────────────────────────────────────────────────────────────────────


def pack_uploads(tar: tarfile.TarFile, root: Path, scratch: Path) -> Iterator[str]:
    """Put all uploads below a directory into an archive; their names in it. Those that are damaged stay out.

    The service may run meanwhile: what it deletes now is left out, since no open job names it. scratch: a
    folder with room for one of the files. Raises InputError for what cannot be read, OSError where it cannot
    write.
    """
    for owner in (each for each in _entries(root) if OWNER.fullmatch(each.name)):
        shelves = (_entries(shelf) for shelf in _entries(owner / "parts"))
        for file in chain(_entries(owner / "manifests"), chain.from_iterable(shelves)):
            name = f"{UPLOADS}/{file.relative_to(root)}"
            if (digest := digest_in(name)) and _pack(tar, file, name, digest, scratch):
                yield name


def _pack(tar: tarfile.TarFile, file: Path, name: str, digest: str, scratch: Path) -> bool:
    """Put one file in, through a copy that nothing changes; whether it was what its name says."""
    with TemporaryFile(dir=scratch) as copy, suppress(FileNotFoundError):
        hashed = hashlib.sha256()
        for piece in pieces_of(file):
            hashed.update(piece)
            copy.write(piece)
        if hashed.hexdigest() != digest:
            log.warning("%s is damaged, and is not in the backup", file)
            return False
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = copy.tell(), 0o600
        copy.seek(0)
        tar.addfile(entry, copy)
        forget(tar)
        return True
    return False


def pieces_of(file: Path) -> Iterator[bytes]:
    """What a file holds. Raises FileNotFoundError, and InputError where it cannot be read."""
    with reading(file), file.open("rb") as content:
        while piece := content.read(PIECE_BYTES):
            yield piece


def _entries(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError), reading(folder):
        return sorted(folder.iterdir())
    return []


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise InputError with the name of a file that cannot be read; but for one that is not there."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as wrong:
        raise InputError(f"{file}: cannot be read: {wrong.strerror}") from None


# ── out of an archive ─────────────────────────────────────────────────────────────────────────────────

Entry = tuple[tarfile.TarInfo, Iterator[bytes]]


def entries_in(archive: Path) -> Iterator[Entry]:
    """What an archive holds, each with its content, to be taken before the next one. Raises InputError."""
    try:
        with tarfile.open(archive, mode="r:") as tar:
            while (entry := tar.next()) is not None:
                yield entry, _content_of(tar, entry)
                forget(tar)
    except OSError as wrong:
        raise InputError(f"{archive}: cannot be read: {wrong.strerror}") from None


def _content_of(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    if (content := tar.extractfile(entry) if entry.isreg() else None) is None:
        raise InputError(f"{tar.name!s}: expected no {entry.name!r} in a backup")
    with reading(Path(str(tar.name))):
        while piece := content.read(PIECE_BYTES):
            yield piece


def unpack_upload(archive: Path, entry: tarfile.TarInfo, content: Iterable[bytes], folder: Path) -> None:
    """Put one file of an upload into a folder. Raises InputError, and OSError where it cannot write."""
    if not (digest := digest_in(entry.name)):
        raise InputError(f"{archive}: expected no {entry.name!r} in a backup")
    place = folder / entry.name
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if written(place, content) != digest:
        raise InputError(f"{archive}: {entry.name} is not what was written")


def written(place: Path, content: Iterable[bytes]) -> str:
    """Make a file for its owner alone; the SHA-256 of what it holds. Raises OSError with its name."""
    hashed = hashlib.sha256()
    try:
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            for piece in content:
                hashed.update(piece)
                file.write(piece)
    except OSError as wrong:
        raise OSError(wrong.errno, wrong.strerror, str(place)) from None
    return hashed.hexdigest()


def forget(tar: tarfile.TarFile) -> None:
    """Have an archive not remember what it has taken or given so far."""
    tar.members.clear()  # type: ignore[attr-defined]


def digest_in(name: str) -> str:
    """The SHA-256 that the name of a file of an upload says; "" for any other name."""
    match = NAME.fullmatch(name)
    return (match[1] or match[3]) if match else ""
