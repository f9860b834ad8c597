"""A client of the service's interface."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from stretto.model.errors import InputError, StrettoError

USUAL_URL = "http://127.0.0.1:8700"
ANSWER_S = 70.0  # longer than any wait that we ask for


class ServiceError(StrettoError):
    """The service did not answer, or did not do what was asked."""


class Client:
    """A connection to a service; a context manager.

    url: else from STRETTO_URL, else of this machine. token: else from STRETTO_TOKEN. What the service says is
    wrong with a request raises InputError, anything else ServiceError.
    """

    def __init__(self, url: str = "", token: str = "") -> None:
        self.url = url or os.environ.get("STRETTO_URL") or USUAL_URL
        token = token or os.environ.get("STRETTO_TOKEN", "")
        headers = {"authorization": f"Bearer {token}"} if token else {"x-stretto-user": _user()}
        try:
            self.http = httpx.Client(base_url=self.url, headers=headers, timeout=ANSWER_S, trust_env=False)
        except (httpx.InvalidURL, ValueError) as wrong:
            raise InputError(f"--url {self.url}: expected the address of a service: {wrong}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def submit(self, job: Path | str, key: str = "") -> dict[str, Any]:
        """Submit a job file (a Path) or the text of one; the job as the service shows it.

        key: of idempotency; the same key gives the same job again.
        """
        where = str(job) if isinstance(job, Path) else "job file"
        text = _text(job) if isinstance(job, Path) else job
        headers = {"idempotency-key": key} if key else {}
        return self.ask("POST", "/api/v1/jobs", json={"text": text, "name": where}, headers=headers)

    def jobs(self, everybody: bool = False, ended: bool = False) -> Iterator[dict[str, Any]]:
        """Jobs by submission, page after page."""
        after: str | None = ""
        while after is not None:
            page = self.ask(
                "GET", "/api/v1/jobs", params={"everybody": everybody, "ended": ended, "after": after}
            )
            yield from page["jobs"]
            after = page["next"]

    def describe(self, job: str) -> dict[str, Any]:
        """One job."""
        return self.ask("GET", f"/api/v1/jobs/{_name(job)}")

    def wait(self, job: str) -> dict[str, Any]:
        """One job, once it has ended."""
        while True:
            found = self.ask("GET", f"/api/v1/jobs/{_name(job)}/wait", params={"wait_s": 30})
            if found["ended_s"] is not None:
                return found

    def change(self, job: str, verb: str, **values: Any) -> dict[str, Any]:
        """cancel, hold, release, requeue, or scale with min_gpus and max_gpus."""
        return self.ask("POST", f"/api/v1/jobs/{_name(job)}/{verb}", json=values or None)

    def log(self, job: str, rank: int = 0, attempt: int = 0, follow: bool = False) -> Iterator[str]:
        """What a worker has written, piece by piece; with `follow`, until it has ended."""
        offset = 0
        while True:
            piece = self.ask(
                "GET",
                f"/api/v1/jobs/{_name(job)}/log",
                params={
                    "rank": rank,
                    "attempt": attempt,
                    "offset": offset,
                    "wait_s": 20.0 if follow else 0.0,
                },
            )
            if piece["text"]:
                yield piece["text"]
            at_end = piece["next_offset"] == offset
            offset = piece["next_offset"]
            if at_end and (piece["complete"] or not follow):
                return

    def nodes(self) -> list[dict[str, Any]]:
        """Every node with what is held there."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/v1/nodes")["nodes"]
        return found

    def close_node(self, node: str, closed: bool, drain: bool = False, why: str = "") -> dict[str, Any]:
        """Cordon a node, drain it, or open it again."""
        return self.ask(
            "POST", f"/api/v1/nodes/{_name(node)}/close", json={"closed": closed, "drain": drain, "why": why}
        )

    def usage(self, by: str = "user") -> list[dict[str, Any]]:
        """GPU-hours and jobs."""
        found: list[dict[str, Any]] = self.ask("GET", "/api/v1/usage", params={"by": by})["usage"]
        return found

    def is_ready(self) -> bool:
        """Whether the service can take jobs now."""
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """The JSON that the service answers with."""
        try:
            answer = self.http.request(method, path, **request)
        except httpx.HTTPError as wrong:
            raise ServiceError(f"no service answers at {self.url}: {wrong}") from None
        if answer.is_success:
            found: dict[str, Any] = answer.json()
            return found
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = answer.text[:200]
        if answer.status_code in (400, 404, 409, 413, 422):
            raise InputError(detail)
        raise ServiceError(f"{answer.status_code} {detail}")


def _name(given: str) -> str:
    """A name that is to be a part of a path."""
    if not given or "/" in given or "?" in given or "#" in given:
        raise InputError(f"expected the id of a job or the name of a node, got {given!r}")
    return given


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise InputError(f"{path}: cannot be read: {wrong}") from None


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or "me"
