"""Fetch what a job has brought along, before its command begins: a private copy on this node.

Run by a worker's shell as `python -I -S -c THIS FOLDER`, as the user of the job, on any node that reaches the
service. So it imports the standard library only and stands alone in this file. Workers of one attempt on one
node share the copy: the first one fetches it, the others wait for that.

What answers is not believed. The manifest must have the digest that the worker was started with, and each
part the digest that the manifest names. Nothing is written but below FOLDER.new, which gets its own name once
all is there. Where that fails, one line says why: on standard error, and in WORKER.why beside the folder.

Environment: STRETTO_URL, STRETTO_TOKEN, STRETTO_WORKER_ID, STRETTO_UPLOAD (SHA-256 of the manifest), and
perhaps STRETTO_CA_CERTIFICATES.
"""

from __future__ import annotations  # nodes of a cluster may have an older Python than we

import fcntl
import hashlib
import json
import os
import shutil
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

PART_BYTES = 1 << 20  # as the manifest counts parts
PIECE_BYTES = 1 << 18
LARGEST_MANIFEST_BYTES = 8_000_000  # chosen: above what any service takes, which is 2 MB
PATIENCE_S = 600.0  # of a service that is away, or that gives no whole part; chosen, as long as clients have
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0  # chosen
ANSWER_S = 60.0
FAILED = 125  # how a worker ends that has no copy; chosen: shells use those from 126 on
WHY = ".why"  # after the worker's id: the file that says why
LONGEST_WHY_BYTES = 400  # so much of it is read; chosen
KINDS: tuple[
    tuple[set[str], set[str]], ...
] = (  # of entries: the keys that each has, and those that it may have
    ({"path", "bytes", "parts"}, {"executable"}),
    ({"path", "target"}, set()),
    ({"path", "folder"}, set()),
)


class Refused(Exception):
    """What was sent is not what the job has brought along, or the service does not give it."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """No other server is asked, and no other one is shown the token."""

    def redirect_request(self, *_: Any) -> None:
        """None: the answer stays what it is."""


class Source:
    """The service, asked again while it is away."""

    def __init__(self) -> None:
        self.url = os.environ["STRETTO_URL"]
        self.worker = os.environ["STRETTO_WORKER_ID"]
        self.headers = {"Authorization": f"Bearer {os.environ['STRETTO_TOKEN']}"}
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), NoRedirect()]
        if self.url.startswith("https://"):
            context = ssl.create_default_context(cadata=os.environ.get("STRETTO_CA_CERTIFICATES") or None)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self.opener = urllib.request.build_opener(*handlers)
        self.pause_s = FIRST_PAUSE_S
        self.failure = ""  # of the last time that it was asked
        self.went_on()

    def open(self, what: str, more: str = "") -> Any:
        """An answer to be read. Raises Refused, and OSError where to ask again may help."""
        url = f"{self.url}/api/v1/worker/{what}?worker={quote(self.worker)}{more}"
        try:
            answer = self.opener.open(urllib.request.Request(url, headers=self.headers), timeout=ANSWER_S)
        except urllib.error.HTTPError as refusal:
            if refusal.code in (408, 425, 429) or refusal.code >= 500:
                raise OSError(f"the service answers {refusal.code}") from None
            reason = refusal.read(1000).decode(errors="replace")
            raise Refused(f"the service answers {refusal.code} {reason}") from None
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Refused("the service sent something compressed")
        return answer

    def wait(self, failure: Exception) -> None:
        """Before it is asked again. Raises Refused once that has lasted too long."""
        self.failure = str(failure) or repr(failure)
        time.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)

    def went_on(self) -> None:
        """Something came that is right: the patience begins anew."""
        self.pause_s = FIRST_PAUSE_S
        # An alarm ends whatever takes too long: a name that is looked up, a byte now and then.
        signal.signal(signal.SIGALRM, self.give_up)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)

    def give_up(self, *_: Any) -> None:
        """The patience is over."""
        raise Refused(self.failure or f"nothing whole came from the service for {PATIENCE_S:g} s")

    def manifest(self, digest: str) -> bytes:
        """What the job has brought along. Raises Refused."""
        while True:
            try:
                with self.open("upload") as answer:
                    text = bytes(answer.read(LARGEST_MANIFEST_BYTES + 1))
                break
            except Refused:
                raise
            except Exception as failure:  # http.client's errors of a cut connection are no OSErrors
                self.wait(failure)
        if hashlib.sha256(text).hexdigest() != digest:
            raise Refused("the service sent another manifest")
        self.went_on()
        return text


class Content:
    """The bytes of all files, one behind another, taken up where a connection breaks off."""

    def __init__(self, source: Source) -> None:
        self.source, self.offset = source, 0
        self.answer: Any = None

    def part(self, size: int, digest: str, path: str) -> bytes:
        """So many bytes of a file, with this digest. Raises Refused."""
        part = self.read(size)
        if hashlib.sha256(part).hexdigest() != digest:
            raise Refused(f"{path!r} is not what was uploaded")
        self.source.went_on()
        return part

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
        return content

    def end(self) -> None:
        """Nothing may follow. Raises Refused."""
        try:
            more = self.answer.read(1) if self.answer is not None else b""
        except Refused:
            raise
        except Exception:  # a connection that breaks now breaks too late to matter
            more = b""
        if more:
            raise Refused("the service sent more than the upload has")


def entries_in(text: bytes) -> list[dict[str, Any]]:
    """The entries of a manifest, each of which can be made below a new folder. Raises Refused."""
    try:
        entries = json.loads(text)["entries"]
        by_path = {entry["path"]: entry for entry in entries}
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Refused("the manifest is none") from None
    if len(by_path) < len(entries):
        raise Refused("the manifest names a path twice")
    for entry in entries:
        path = safe(entry["path"])
        check_shape(entry)
        parents = path.split("/")[:-1]
        for depth in range(len(parents)):
            around = by_path.get("/".join(parents[: depth + 1]))
            if around is not None and not around.get("folder"):
                raise Refused(f"a path leads through what is no folder: {path!r}")
    return list(entries)


def safe(path: Any) -> str:
    """A path that stays below where it begins. Raises Refused."""
    names = path.split("/") if isinstance(path, str) else [""]
    if "\0" in str(path) or any(name in ("", ".", "..") for name in names):
        raise Refused(f"a path leads out of the upload: {path!r}")
    return str(path)


def check_shape(entry: dict[str, Any]) -> None:
    """Raise Refused for what is neither a file nor a link nor a folder, such as a device."""
    keys = set(entry)
    if not any(needs <= keys <= needs | may for needs, may in KINDS):
        raise Refused(f"{entry['path']!r} is neither a file nor a link nor a folder")
    if "bytes" in entry:
        size, parts = entry["bytes"], entry["parts"]
        if (
            type(size) is not int
            or size < 0
            or not isinstance(parts, list)
            or len(parts) != -(-size // PART_BYTES)
        ):
            raise Refused(f"{entry['path']!r} has not as many parts as its size asks for")
    elif not isinstance(entry.get("target", ""), str):
        raise Refused(f"{entry['path']!r} is a link to nothing")


def fetch(folder: Path, source: Source, digest: str) -> None:
    """Make a folder that holds the upload. Raises Refused, OSError."""
    entries = entries_in(source.manifest(digest))
    folder.mkdir(mode=0o755)
    size, room = sum(entry.get("bytes", 0) for entry in entries), shutil.disk_usage(folder).free
    if size > room:
        raise Refused(f"{folder.parent} has room for {room} bytes, and the upload has {size}")
    content = Content(source)
    for entry in entries:
        place = folder / entry["path"]
        place.parent.mkdir(parents=True, exist_ok=True)
        if "folder" in entry:
            place.mkdir(exist_ok=True)
        elif "bytes" in entry:
            write(place, entry, content)
    content.end()
    links = [entry for entry in entries if "target" in entry]
    for entry in links:  # last: nothing is written through a link
        (folder / entry["path"]).symlink_to(entry["target"])
    whole = os.path.realpath(folder)
    for entry in links:
        leads_to = os.path.realpath(folder / entry["path"])
        if entry["target"].startswith("/") or os.path.commonpath([whole, leads_to]) != whole:
            raise Refused(f"a link leads out of the upload: {entry['path']!r}")


def write(place: Path, entry: dict[str, Any], content: Content) -> None:
    """One file, each part held against its digest."""
    mode = 0o755 if entry.get("executable") else 0o644
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        left = entry["bytes"]
        for digest in entry["parts"]:
            part = content.part(min(left, PART_BYTES), digest, entry["path"])
            file.write(part)
            left -= len(part)


def have(folder: Path) -> None:
    """Have the copy there, whichever worker fetches it. Raises Refused, OSError."""
    unfinished = folder.with_name(f"{folder.name}.new")
    with folder.with_name(f"{folder.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            fetch(unfinished, Source(), os.environ["STRETTO_UPLOAD"])
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            unfinished.rename(folder)
        except BaseException:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def main() -> int:
    """Have the copy there; the exit status."""
    folder = Path(sys.argv[1])
    try:
        have(folder)
    except (Refused, OSError, ValueError, KeyError) as wrong:
        line = " ".join("".join(each if each.isprintable() else " " for each in str(wrong)).split())
        whole = f"the upload cannot be fetched: {line}".encode()
        why = whole[:LONGEST_WHY_BYTES].decode(errors="ignore")  # the last letter may be cut
        print(f"stretto: {why}", file=sys.stderr)
        with suppress(OSError, KeyError):
            folder.with_name(os.environ["STRETTO_WORKER_ID"] + WHY).write_text(why, encoding="utf-8")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
