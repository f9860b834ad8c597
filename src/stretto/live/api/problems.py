"""Errors as `application/problem+json` (RFC 9457): one line that names the value, and never a trace."""

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stretto.model import InputError


class Problem(Exception):
    """What a request cannot have, with the status that says so."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def not_found(what: str, name: str) -> Problem:
    """There is no such thing, or it is somebody else's."""
    return Problem(HTTPStatus.NOT_FOUND, f"no {what} {name[:80]!r}")


def answer(status: int, detail: str) -> JSONResponse:
    """The response that says so."""
    phrase = HTTPStatus(status).phrase
    return JSONResponse(
        {"type": "about:blank", "title": phrase, "status": status, "detail": detail},
        status_code=status,
        media_type="application/problem+json",
    )


def install(app: FastAPI) -> None:
    """Turn errors of requests into problems."""

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> JSONResponse:
        return answer(error.status, error.detail)

    @app.exception_handler(InputError)
    async def wrong_input(request: Request, error: InputError) -> JSONResponse:
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {first['msg']}" if where else first["msg"])

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return answer(error.status_code, str(error.detail))
