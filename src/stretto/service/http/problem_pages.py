"""Errors as a page: what a browser shows where a program would be told a problem."""

import html
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from fastapi import Response
from starlette.datastructures import Headers
from starlette.routing import Match

OF_PROGRAMS = ("/api/", "/static/")
LONGEST_PATH = 200  # characters of an address that are repeated; chosen
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
}
TITLES = {HTTPStatus.UNAUTHORIZED: "Please log in", HTTPStatus.NOT_FOUND: "Not found"}


def is_for_browser(scope: Any) -> bool:
    """Whether a browser has opened an address that is not for programs alone."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    accepted = Headers(scope=scope).get("accept", "")
    return "text/html" in accepted and not scope["path"].startswith(OF_PROGRAMS)


def is_nowhere(scope: Any) -> bool:
    """Whether no route leads to an address. It is asked of those alone that are refused."""
    return all(route.matches(scope)[0] is Match.NONE for route in scope["app"].routes)


def answer(scope: Any, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """The page that says what is wrong."""
    if status == HTTPStatus.NOT_FOUND or is_nowhere(scope):
        status, headers = HTTPStatus.NOT_FOUND, None
        detail = f"there is no page {scope['path'][:LONGEST_PATH]} here"
    title = TITLES.get(HTTPStatus(status), HTTPStatus(status).phrase)
    words = {"title": title, "detail": f"{detail[:1].upper()}{detail[1:]}."}
    text = _template()
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", html.escape(value))
    return Response(text, status, {**(headers or {}), **HEADERS}, media_type="text/html; charset=utf-8")


@cache
def _template() -> str:
    return (files("stretto.service.http") / "static" / "problem.html").read_text(encoding="utf-8")
