"""Answers as JSON, and errors as problems of RFC 9457.

Answers as JSON: ASCII, so that any name can be sent, and never NaN.
"""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import HTTPException as FastapiHttpException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stretto.errors import InputError, KeyTaken
from stretto.service.eventlog import StoreError
from stretto.service.http import problem_pages
from stretto.service.state.admission import NotPermitted


def as_json(content: Any) -> bytes:
    """The bytes of a body."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Json(JSONResponse):
    """A JSON body; what a route returns as this is sent as it is."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return as_json(content)


# ── errors as `application/problem+json` (RFC 9457): one line that names the value, and never a trace ───────


LONGEST_DETAIL = 1_000  # characters; chosen
MEDIA_TYPE = "application/problem+json"


class Problem(FastapiHttpException):
    """What a request cannot have, with the status that says so.

    refusal: what a known caller asked for and may not have; it goes to the audit.
    """

    def __init__(
        self, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None, refusal: str = ""
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.refusal = refusal


def not_found(what: str, name: str, refusal: str = "") -> Problem:
    """There is no such thing, or it belongs to another user: the answer does not tell which."""
    is_id = what != "job" or name.replace("_", "").isdecimal()
    hint = "" if is_id else ", expected an id, or the name of a job of yours"
    return Problem(HTTPStatus.NOT_FOUND, f"no {what} {name[:80]!r}{hint}", refusal=refusal)


def answer(
    status: int,
    detail: str,
    headers: Mapping[str, str] | None = None,
    request_id: str = "",
    job: str = "",
) -> Json:
    """The response that says so. job: the id of one that stands in the way."""
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail if len(detail) <= LONGEST_DETAIL else f"{detail[:LONGEST_DETAIL]}...",
    }
    if request_id:
        problem["request_id"] = request_id
    if job:
        problem["job"] = job
    return Json(problem, status_code=status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def answer_to(
    request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The response that says so to a request, which it names; a page where a browser asks."""
    if problem_pages.is_for_browser(request.scope):
        return problem_pages.answer(request.scope, status, detail, headers)
    return answer(status, detail, headers, getattr(request.state, "request_id", ""))


def _methods_of(app: FastAPI, path: str) -> list[str]:
    """All methods that a path has, by the document: a router only knows those of its first route for it."""
    return sorted(
        method.upper()
        for template, operations in app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path)
        for method in operations
    )


def install(app: FastAPI) -> None:
    """Turn errors of requests into problems."""

    @app.exception_handler(InputError)
    async def wrong_input(request: Request, error: InputError) -> Response:
        return answer_to(request, HTTPStatus.UNPROCESSABLE_ENTITY, str(error))

    @app.exception_handler(KeyTaken)
    async def key_taken(request: Request, error: KeyTaken) -> Response:
        request_id = getattr(request.state, "request_id", "")
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), None, request_id, error.job)

    @app.exception_handler(NotPermitted)
    async def not_permitted(request: Request, error: NotPermitted) -> Response:
        request.app.state.audit.refused(request.state.caller, error.what, request.url.path)
        return answer_to(request, HTTPStatus.FORBIDDEN, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        detail = f"{where}: {first['msg']}" if where else str(first["msg"])
        return answer_to(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail)

    @app.exception_handler(StoreError)
    async def store_failed(request: Request, error: StoreError) -> Response:
        # The words of a database may hold its address: they are for the log.
        return answer_to(request, HTTPStatus.SERVICE_UNAVAILABLE, "the store does not answer", RETRY_SOON)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if isinstance(error, Problem) and error.refusal:
            request.app.state.audit.refused(request.state.caller, error.refusal, request.url.path)
        headers = error.headers
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"allow": ", ".join(_methods_of(request.app, request.url.path))}
        return answer_to(request, error.status_code, str(error.detail), headers)


RETRY_SOON: Mapping[str, str] = {"retry-after": "2"}
