"""What a client sends to a service, and how it reads answers and refusals; nothing here has a connection."""

import json
import os
import select
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from stretto.client.errors import Refused, ServiceError
from stretto.errors import InputError, KeyTaken, StrettoError

MOST_BYTES, LONGEST_NAME = 1 << 20, 255  # of a job file, which is written by hand; as the service has it
MOST_TOGETHER = 500  # submissions of one request, as the service has it
PIPE_S = 30.0  # of silence of whoever writes a job file through a pipe; chosen


class Answer(dict[str, Any]):
    """An object of an answer; what it lacks says where it came from."""

    url = ""

    def __missing__(self, key: str) -> Any:
        raise ServiceError(f"{self.url}: expected {key!r} in its answer; is it a service of Stretto?")


def object_of(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer. Raises ServiceError for anything else, as other servers give it."""
    kind = type("Answer", (Answer,), {"url": str(answer.url)})
    try:
        content = answer.json(object_hook=kind)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise strange(answer, "a JSON object")
    return content


def strange(answer: httpx.Response, expected: str) -> ServiceError:
    """What other servers answer."""
    got = answer.headers.get("content-type", "something else")
    return ServiceError(f"{answer.url}: expected {expected}, got {got}; is it a service of Stretto?")


def error_of(answer: httpx.Response) -> StrettoError:
    """What a service says is wrong: with a request, or with itself."""
    job = ""
    try:
        problem = answer.json()
        detail, job = str(problem["detail"]), str(problem.get("job", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        detail = answer.text[:200]
    if job and answer.status_code == 422:
        return KeyTaken(detail, job)
    if answer.status_code in (400, 404, 409, 413, 422):
        return InputError(detail)
    if answer.status_code == 401:
        return Refused(f"{detail}: give --token-file, --token or STRETTO_TOKEN")
    if answer.status_code == 403:
        return Refused(detail)
    return ServiceError(f"{answer.status_code} {detail}")


def last_lines(text: str, lines: int) -> str:
    """So many lines from the end of a text; the last one may have no end yet."""
    if not lines:
        return ""
    whole = text.removesuffix("\n")
    return "\n".join(whole.split("\n")[-lines:]) + text[len(whole) :]


def as_part(given: str) -> str:
    """A name as a part of a path. Raises InputError for what can be none, or would lead elsewhere."""
    if given in ("", ".", "..") or "/" in given or "?" in given or "#" in given:
        raise InputError(f"expected a name, or the id of a job, got {given!r}")
    try:
        return quote(given, safe="")
    except UnicodeEncodeError:
        raise InputError(f"expected a name in UTF-8, got {given!r}") from None


def submission(job: Path | str, workdir: str, name: str = "") -> dict[str, str]:
    """The text of a job file, its name, and where it runs if it does not say so itself.

    name: of the job, whatever its file says.
    """
    fields = {"workdir": workdir} if workdir else {}
    fields |= {"job_name": name} if name else {}
    if not isinstance(job, Path):
        return {"text": job, "name": "job file", **fields}
    try:
        content = _content_of(job)
        if len(content) > MOST_BYTES:
            raise InputError(f"{job}: expected a job file of at most {MOST_BYTES} bytes")
        return {"text": content.decode(), "name": str(job)[-LONGEST_NAME:], **fields}
    except OSError as wrong:
        raise InputError(f"{job}: cannot be read: {wrong.strerror}") from None
    except UnicodeDecodeError as wrong:
        raise InputError(f"{job}: expected UTF-8 text: {wrong.reason} at byte {wrong.start}") from None


def batches(submissions: Sequence[dict[str, str]]) -> Iterator[list[dict[str, str]]]:
    """The submissions in their order, as many together as one request may have."""
    together: list[dict[str, str]] = []
    size = 0
    for each in submissions:
        more = len(json.dumps(each))
        if together and (len(together) == MOST_TOGETHER or size + more > MOST_BYTES):
            yield together
            together, size = [], 0
        together.append(each)
        size += more
    if together:
        yield together


def _content_of(file: Path) -> bytes:
    """The first bytes of a file, or of a pipe. Raises OSError, and InputError."""
    # Opening a named pipe to which nobody writes would wait for ever, unless it is told not to.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as opened:
        content = b""
        while len(content) <= MOST_BYTES:
            if not select.select([opened], [], [], PIPE_S)[0]:
                raise InputError(f"{file}: expected a job file, got a pipe that is silent for {PIPE_S:g} s")
            piece = opened.read(MOST_BYTES + 1 - len(content))
            if not piece:
                break
            content += piece
    if not content and stat.S_ISFIFO(file.stat().st_mode):
        raise InputError(f"{file}: expected a job file, got a pipe to which nobody writes")
    return content
