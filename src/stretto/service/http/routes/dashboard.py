"""The dashboard: its pages, their files, and the way in. Data comes by the API alone."""

import base64
import hashlib
import json
import time
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response
from fastapi.responses import StreamingResponse

from stretto import __version__
from stretto.service.http import schemas
from stretto.service.http.audit import Audit
from stretto.service.http.auth import CHALLENGE, UNKNOWN_TOKEN, Asked, Who, address_of, digest_of
from stretto.service.http.overview_streams import OverviewStreams
from stretto.service.http.problems import Json, Problem, not_found
from stretto.service.http.sessions import is_same_origin, session_for, set_cookie
from stretto.service.http.sse import STREAM, streamed

pages = APIRouter(tags=["dashboard"], include_in_schema=False)
router = APIRouter(prefix="/api/v1", tags=["dashboard"])

TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Modules by the names that they call each other by; vendored as they are published.
IMPORTS = {
    "preact": "/static/vendor/preact.js",
    "preact/hooks": "/static/vendor/preact-hooks.js",
    "htm": "/static/vendor/htm.js",
    "@preact/signals-core": "/static/vendor/signals-core.js",
}
STATIC = files("stretto.service.http") / "static"


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Every file of the pages and its digest, by the path that a browser asks for."""
    paths = {path.name: path for path in STATIC.iterdir() if path.is_file()}
    paths |= {f"vendor/{path.name}": path for path in (STATIC / "vendor").iterdir()}
    contents = {name: path.read_bytes() for name, path in paths.items() if name[name.rfind(".") :] in TYPES}
    return {name: (content, hashlib.sha256(content).hexdigest()[:20]) for name, content in contents.items()}


@cache
def _page() -> tuple[bytes, dict[str, str]]:
    """The one page, and the headers that bind what it may load: nothing leaves this service."""
    imports = json.dumps({"imports": IMPORTS})
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    html = html.replace("{imports}", imports).replace("{version}", __version__)
    digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "referrer-policy": "same-origin"}
    return html.encode(), headers


@pages.get("/")
@pages.get("/queue")
@pages.get("/timeline")
@pages.get("/whatif")
@pages.get("/people")
@pages.get("/decisions")
@pages.get("/login")
@pages.get("/jobs/{job}")
async def page() -> Response:
    """The dashboard: the path says which page, and the query what of it is shown."""
    html, headers = _page()
    return Response(html, media_type="text/html; charset=utf-8", headers=headers)


@pages.get("/static/{name:path}")
async def static(name: str, request: Request) -> Response:
    """A file of the pages; a browser that has it asks only whether it is still the same."""
    if name not in _files():
        raise not_found("file", name)
    content, digest = _files()[name]
    headers = {"etag": f'"{digest}"', "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    suffix = name[name.rfind(".") :]
    return Response(content, media_type=TYPES[suffix], headers=headers)


@pages.post("/login")
async def login(request: Request, service: Asked, token: Annotated[str, Body(embed=True)]) -> Response:
    """Turn a token into a session: a cookie that only this service reads."""
    if not is_same_origin(request.headers):
        raise Problem(HTTPStatus.FORBIDDEN, "a request of another page")
    digest = digest_of(token.strip())
    known = service.state.tokens.get(digest)
    if known is None or known.has_expired(time.time()):
        audit: Audit = request.app.state.audit
        audit.failed(address_of(request.scope), "/login", UNKNOWN_TOKEN)
        raise Problem(HTTPStatus.UNAUTHORIZED, UNKNOWN_TOKEN, CHALLENGE)
    value = session_for(digest, service.context.key, time.time())
    return Json({"user": known.user, "role": known.role}, headers=_cookie(value, request))


@pages.post("/logout")
async def logout(request: Request) -> Response:
    """End the session of this browser."""
    if not is_same_origin(request.headers):
        raise Problem(HTTPStatus.FORBIDDEN, "a request of another page")
    return Json({}, headers=_cookie("", request))


@router.get("/session", response_model=schemas.Session)
async def session(service: Asked, caller: Who) -> Response:
    """As which user the browser acts, and with which role."""
    return Json(
        {
            "user": caller.user,
            "role": caller.role.name.lower(),
            "scope": (caller.token.scope if caller.token is not None else "") or "all",
            "is_open": caller.token is None,  # everybody on this machine is an admin
            "policy": service.state.configured.policy,
            "version": __version__,
            "pace": service.clock.pace,
            "now_unix_s": service.state.calendar.unix_at(service.clock.now_s()),
        }
    )


@router.get("/overview", response_class=StreamingResponse, responses={200: {"content": {STREAM: {}}}})
async def overview(request: Request, caller: Who, follow: bool = False) -> Response:
    """Nodes, queues and jobs that have not ended; with `follow`, then what changes, as it changes."""
    streams: OverviewStreams = request.app.state.overview_streams
    return streamed(request, caller, streams.stream(caller, follow), compresses=True)


def _cookie(value: str, request: Request) -> dict[str, Any]:
    # Behind a proxy that ends TLS the browser says where it is.
    is_https = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
    return {"set-cookie": set_cookie(value, is_https)}
