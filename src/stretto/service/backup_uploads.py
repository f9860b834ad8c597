"""Uploads in the archive of a backup: each file under the name that says what it holds.

A file of an upload is named by its SHA-256. So its name is what it is checked by, on its way in and out.
"""

import hashlib
import logging
import os
import re
import tarfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from stretto.model import InputError
from stretto.service.uploads import UPLOADS

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
NAME = re.compile(
    rf"{UPLOADS}/[0-9a-f]{{32}}/(?:manifests/([0-9a-f]{{64}})\.json|parts/([0-9a-f]{{2}})/(\2[0-9a-f]{{62}}))"
)


def pack_uploads(tar: tarfile.TarFile, root: Path) -> int:
    """Put all uploads below a directory into an archive; how many files. Those that are damaged stay out.

    The service may run meanwhile: what it deletes now is left out, since no open job names it.
    """
    count = 0
    for file in sorted(root.glob("*/manifests/*.json")) + sorted(root.glob("*/parts/*/*")):
        name = f"{UPLOADS}/{file.relative_to(root)}"
        if (digest := digest_in(name)) and _pack(tar, file, name, digest):
            count += 1
    return count


def _pack(tar: tarfile.TarFile, file: Path, name: str, digest: str) -> bool:
    """Put one file in, through a copy that nothing changes; whether it was what its name says."""
    with TemporaryFile() as copy:
        hashed = hashlib.sha256()
        with suppress(FileNotFoundError), file.open("rb") as content:
            while piece := content.read(PIECE_BYTES):
                hashed.update(piece)
                copy.write(piece)
            if hashed.hexdigest() != digest:
                log.warning("%s is damaged, and is not in the backup", file)
                return False
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = copy.tell(), 0o600
            copy.seek(0)
            tar.addfile(entry, copy)
            return True
    return False


def unpack_uploads(tar: tarfile.TarFile, folder: Path) -> int:
    """Put the uploads of an archive into a folder; how many files. Raises InputError, OSError."""
    count = 0
    for entry in tar:
        if not entry.name.startswith(f"{UPLOADS}/"):
            continue
        digest, content = digest_in(entry.name), tar.extractfile(entry) if entry.isreg() else None
        if not digest or content is None:
            raise InputError(f"{tar.name!s}: expected no {entry.name!r} in a backup")
        place = folder / entry.name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hashed = hashlib.sha256()
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            while piece := content.read(PIECE_BYTES):
                hashed.update(piece)
                file.write(piece)
        if hashed.hexdigest() != digest:
            raise InputError(f"{tar.name!s}: {entry.name} is not what was written")
        count += 1
    return count


def digest_in(name: str) -> str:
    """The SHA-256 that the name of a file of an upload says; "" for any other name."""
    match = NAME.fullmatch(name)
    return (match[1] or match[3]) if match else ""
