"""Logging in at an identity provider: there with a code challenge, and back with a code.

Between the two a cookie holds one random value for ten minutes. State, nonce and code verifier follow from it
by the service's key, so that a reader of the cookie has none of them.
"""

import base64
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import replace
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse

from stretto.service.http import problem_pages
from stretto.service.http.audit import Audit
from stretto.service.http.auth import Asked, address_of
from stretto.service.http.identity import identity_session
from stretto.service.http.problems import Json, Problem, not_found
from stretto.service.http.sessions import session_for, set_cookie

if TYPE_CHECKING:
    from stretto.service.http.oidc.provider import Provider

pages = APIRouter(tags=["login"], include_in_schema=False)

COOKIE, LASTS_S = "stretto_login", 600
NEXT = re.compile(r"/(?![/\\])[\w\-./?=&%,:+~]{0,400}", re.ASCII)
NOT_BEGUN = "the login was not begun in this browser, or more than ten minutes ago: begin it again"
CHANGED_MIND = "the identity provider let nobody in"
ANOTHER = "the answer is of another issuer"


def provider_of(request: Request) -> "Provider":
    """The provider of this service. Raises 404."""
    provider: Provider | None = request.app.state.provider
    if provider is None:
        raise not_found("page", request.url.path)
    return provider


@pages.get("/login/methods")
async def methods(request: Request) -> Response:
    """How people may log in here beside a token."""
    provider: Provider | None = request.app.state.provider
    return Json({"oidc": None if provider is None else provider.settings.name})


@pages.get("/login/oidc")
async def begin(
    request: Request, service: Asked, then: Annotated[str, Query(alias="next")] = "/"
) -> Response:
    """To the identity provider."""
    provider = provider_of(request)
    metadata, settings = await provider.metadata(), provider.settings
    drawn = secrets.token_urlsafe(32)
    text = f"{drawn}.{int(time.time()) + LASTS_S}.{_encoded(then if NEXT.fullmatch(then) else '/')}"
    key = service.context.key
    challenge = hashlib.sha256(_derived(key, "verifier", drawn).encode()).digest()
    asked = {
        "response_type": "code",
        "client_id": settings.client_id,
        "redirect_uri": _redirect_uri(request, service.context.url),
        "scope": " ".join(settings.scopes),
        "state": _derived(key, "state", drawn),
        "nonce": _derived(key, "nonce", drawn),
        "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
        "code_challenge_method": "S256",
    }
    endpoint = str(metadata["authorization_endpoint"])
    separator = "&" if "?" in endpoint else "?"
    answer = RedirectResponse(f"{endpoint}{separator}{urlencode(asked)}", HTTPStatus.SEE_OTHER)
    answer.headers["set-cookie"] = _login_cookie(
        f"{text}.{_derived(key, 'cookie', text)}", request, service.context.url
    )
    return answer


@pages.get("/login/callback")
async def back(
    request: Request, service: Asked, code: str = "", state: str = "", error: str = "", iss: str = ""
) -> Response:
    """Back from the identity provider: a session, for as long as the settings say."""
    provider, key = provider_of(request), service.context.key
    try:
        drawn, then = _begun(request, key)
        if not hmac.compare_digest(state.encode(), _derived(key, "state", drawn).encode()):
            raise Problem(HTTPStatus.UNAUTHORIZED, NOT_BEGUN)
        if iss and iss != provider.settings.issuer:  # RFC 9207
            raise Problem(HTTPStatus.UNAUTHORIZED, ANOTHER)
        if error or not code:
            raise Problem(HTTPStatus.UNAUTHORIZED, CHANGED_MIND)
        given = await provider.exchanged(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": _redirect_uri(request, service.context.url),
                "code_verifier": _derived(key, "verifier", drawn),
            }
        )
        audience = (provider.settings.client_id,)
        claims = await provider.verified(str(given["id_token"]), audience, _derived(key, "nonce", drawn))
        identity = provider.identity_of(claims)
        # The provider's token says who logged in, and is soon over; how long that counts here is a setting.
        identity = replace(identity, until_s=time.time() + provider.settings.session_s)
    except Problem as refused:
        audit: Audit = request.app.state.audit
        audit.failed(address_of(request.scope), "/login/callback", refused.detail)
        failed: Response
        if problem_pages.is_for_browser(request.scope):
            failed = problem_pages.answer(request.scope, refused.status_code, refused.detail, refused.headers)
        else:
            line = f"{refused.detail}\n"  # people see it
            failed = PlainTextResponse(line, refused.status_code, headers=dict(refused.headers or {}))
        failed.headers["set-cookie"] = _login_cookie("", request, service.context.url)
        return failed
    value = session_for(identity_session(identity), key, time.time(), identity.until_s)
    answer = RedirectResponse(then, HTTPStatus.SEE_OTHER)
    is_https = _is_https(request, service.context.url)
    answer.headers.append("set-cookie", set_cookie(value, is_https))
    answer.headers.append("set-cookie", _login_cookie("", request, service.context.url))
    return answer


def _begun(request: Request, key: bytes) -> tuple[str, str]:
    """What was drawn for the login of this browser, and where it leads. Raises 401."""
    try:
        morsel = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        morsel = None
    text, _, seal = (morsel.value if morsel is not None else "").rpartition(".")
    if not text or not hmac.compare_digest(seal.encode(), _derived(key, "cookie", text).encode()):
        raise Problem(HTTPStatus.UNAUTHORIZED, NOT_BEGUN)
    drawn, until_s, then = text.split(".")
    if time.time() >= int(until_s):
        raise Problem(HTTPStatus.UNAUTHORIZED, NOT_BEGUN)
    return drawn, base64.urlsafe_b64decode(then + "=" * (-len(then) % 4)).decode()


def _derived(key: bytes, what: str, drawn: str) -> str:
    digest = hmac.new(key, f"oidc {what}:{drawn}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _redirect_uri(request: Request, url: str) -> str:
    return f"{provider_of(request).settings.redirect_url or url}/login/callback"


def _is_https(request: Request, url: str) -> bool:
    return _redirect_uri(request, url).startswith("https:")


def _login_cookie(value: str, request: Request, url: str) -> str:
    # Lax, not Strict: the way back begins on a page of the provider.
    secure = "; Secure" if _is_https(request, url) else ""
    age_s = LASTS_S if value else 0
    return f"{COOKIE}={value}; Path=/login; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}"
