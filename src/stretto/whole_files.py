"""Files that are written whole or not at all."""

import secrets
import shutil
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8. Until all of it is written, what stood there before stays; raises OSError.

    What is no file, such as a pipe or a terminal, is written to as it is.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()  # a link stays one
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(data)
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except BaseException as failed:
        with suppress(OSError):
            part.unlink()
        if isinstance(failed, OSError):
            failed.filename, failed.filename2 = str(path), None  # the name that the caller knows
        raise
