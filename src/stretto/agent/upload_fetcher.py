"""Fetch what a job has brought along, before its command begins: a private copy on this node.

Run by a worker's shell as `python -I -S -c THIS FOLDER`, as the user of the job, on any node that reaches the
service. So it imports the standard library only and stands alone in this file. Workers of one attempt on one
node share the copy: the first one fetches it, the others wait for that.

Environment: STRETTO_URL, STRETTO_TOKEN, STRETTO_WORKER_ID, STRETTO_UPLOAD (SHA-256 of the manifest), and
perhaps STRETTO_CA_CERTIFICATES.
"""

from __future__ import annotations  # nodes of a cluster may have an older Python than we

import fcntl
import hashlib
import json
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

PART_BYTES = 1 << 20  # as the manifest counts parts
PIECE_BYTES = 1 << 18
PATIENCE_S = 600.0  # of a service that is away; chosen, as long as clients have
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0  # chosen
ANSWER_S = 60.0
FAILED = 125  # how a worker ends that has no copy; chosen: shells use those from 126 on


class Refused(Exception):
    """What was sent is not what the job has brought along, or the service does not give it."""


class Source:
    """The service, asked again while it is away."""

    def __init__(self) -> None:
        self.url = os.environ["STRETTO_URL"]
        self.worker = os.environ["STRETTO_WORKER_ID"]
        self.headers = {"Authorization": f"Bearer {os.environ['STRETTO_TOKEN']}"}
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.url.startswith("https://"):
            context = ssl.create_default_context(cadata=os.environ.get("STRETTO_CA_CERTIFICATES") or None)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self.opener = urllib.request.build_opener(*handlers)
        self.until_s = time.monotonic() + PATIENCE_S
        self.pause_s = FIRST_PAUSE_S

    def open(self, what: str, more: str = "") -> Any:
        """An answer to be read. Raises Refused, and OSError where to ask again may help."""
        url = f"{self.url}/api/v1/worker/{what}?worker={quote(self.worker)}{more}"
        try:
            return self.opener.open(urllib.request.Request(url, headers=self.headers), timeout=ANSWER_S)
        except urllib.error.HTTPError as answer:
            if answer.code in (408, 425, 429) or answer.code >= 500:
                raise OSError(f"the service answers {answer.code}") from None
            reason = answer.read(1000).decode(errors="replace")
            raise Refused(f"the service answers {answer.code} {reason}") from None

    def wait(self, failure: Exception) -> None:
        """Before it is asked again. Raises Refused once that has lasted too long."""
        if time.monotonic() > self.until_s:
            raise Refused(str(failure) or repr(failure))
        time.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)

    def went_on(self) -> None:
        """Something came: the patience begins anew."""
        self.until_s, self.pause_s = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S

    def manifest(self) -> bytes:
        """What the job has brought along."""
        while True:
            try:
                with self.open("upload") as answer:
                    return bytes(answer.read())
            except Refused:
                raise
            except Exception as failure:  # http.client's errors of a cut connection are no OSErrors
                self.wait(failure)


class Content:
    """The bytes of all files, one behind another, taken up where a connection breaks off."""

    def __init__(self, source: Source) -> None:
        self.source, self.offset = source, 0
        self.answer: Any = None

    def read(self, size: int) -> bytes:
        """Exactly so many bytes. Raises Refused."""
        content = b""
        while len(content) < size:
            try:
                if self.answer is None:
                    self.answer = self.source.open("upload/content", f"&offset={self.offset}")
                piece = self.answer.read(min(size - len(content), PIECE_BYTES))
                if not piece:
                    raise OSError("the service ended too early")
            except Refused:
                raise
            except Exception as failure:
                self.answer = None
                self.source.wait(failure)
                continue
            content += piece
            self.offset += len(piece)
            self.source.went_on()
        return content


def safe(path: str) -> str:
    """A path that stays below where it begins. Raises Refused."""
    if path.startswith("/") or "\0" in path or any(name in ("", ".", "..") for name in path.split("/")):
        raise Refused(f"a path leads out of the upload: {path!r}")
    return path


def fetch(folder: Path, source: Source, digest: str) -> None:
    """Make a folder that holds the upload. Raises Refused, OSError."""
    text = source.manifest()
    if hashlib.sha256(text).hexdigest() != digest:
        raise Refused("the service sent another manifest")
    entries = json.loads(text)["entries"]
    folder.mkdir(mode=0o755)
    content = Content(source)
    for entry in entries:
        place = folder / safe(entry["path"])
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry.get("folder"):
            place.mkdir(exist_ok=True)
        elif "bytes" in entry:
            write(place, entry, content)
    for entry in entries:  # last: nothing is written through a link
        if "target" in entry:
            (folder / safe(entry["path"])).symlink_to(entry["target"])


def write(place: Path, entry: dict[str, Any], content: Content) -> None:
    """One file, each part held against its digest."""
    mode = 0o755 if entry.get("executable") else 0o644
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        left = entry["bytes"]
        for digest in entry["parts"]:
            part = content.read(min(left, PART_BYTES))
            if hashlib.sha256(part).hexdigest() != digest:
                raise Refused(f"{entry['path']} is not what was uploaded")
            file.write(part)
            left -= len(part)


def main() -> int:
    """Have the copy there; the exit status."""
    folder = Path(sys.argv[1])
    unfinished = folder.with_name(f"{folder.name}.new")
    try:
        with folder.with_name(f"{folder.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)
                fetch(unfinished, Source(), os.environ["STRETTO_UPLOAD"])
                unfinished.rename(folder)
    except (Refused, OSError, ValueError, KeyError) as wrong:
        print(f"stretto: the upload cannot be fetched: {wrong}", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
