"""What each user may do: bearer tokens with roles, and the open door on loopback where that was asked for."""

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from ipaddress import ip_address
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import Headers

from stretto.service.http.identity import COOKIE_MARK, Identity, identity_in
from stretto.service.http.problems import Problem
from stretto.service.http.sessions import SAFE, digest_in, is_same_origin
from stretto.service.service import Service
from stretto.service.state.records import JobRecord, Token

OPEN = frozenset({"/healthz", "/readyz", "/version"})  # probes have no tokens
# Of the dashboard: without any data.
PAGES = frozenset({"/", "/queue", "/timeline", "/whatif", "/people", "/decisions", "/login", "/logout"})
PAGES_BELOW = ("/static/", "/jobs/", "/login/")
CHANNEL = "/api/v1/worker/"  # opened by the tokens of jobs, and by nothing else
USER = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,62}[\x21-\x7e])?")
# A page's own name could be made to lead here
LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "x-original-host"})
ALL, READ, JOBS = "all", "read", "jobs"  # scopes of tokens: what of their role they open
ONLY = {READ: "reading", JOBS: "jobs and reading"}
OF_JOBS = ("/api/v1/jobs", "/api/v1/uploads")  # what the scope `jobs` opens
CHANGES_NOTHING = frozenset({"/api/v1/jobs/dry-run", "/api/v1/whatif"})  # although one posts to them
SECRETS = frozenset({"/api/v1/webhook-secrets"})  # for tokens of all scopes only
UNKNOWN_TOKEN, EXPIRED_TOKEN = "unknown or revoked token", "the token has expired"
NO_TOKEN = "a bearer token is needed"
PREFIX = "stretto_"  # of tokens, so that whoever finds one knows what it is
CHALLENGE = {"www-authenticate": 'Bearer realm="stretto"'}


class Role(IntEnum):
    """Each may do what the one before may."""

    USER = 1  # submits, and sees and changes what is theirs
    OPERATOR = 2  # sees and changes everybody's jobs, and the nodes
    ADMIN = 3  # makes tokens and queues


ROLES = {role.name.lower(): role for role in Role}


@dataclass(frozen=True)
class Caller:
    """The user behind a request."""

    user: str
    role: Role
    token: Token | None = None  # None: came in by the open door; one without a digest: of a provider
    address: str = ""  # where the request came from

    @property
    def name(self) -> str:
        """How the audit calls them."""
        return self.user or "somebody on this machine"

    @property
    def is_operator(self) -> bool:
        """Whether the caller may change the jobs of all users."""
        return self.role >= Role.OPERATOR

    def owns(self, record: JobRecord) -> bool:
        """Whether a job is theirs to see and change."""
        return self.sees(record.user)

    def sees(self, user: str) -> bool:
        """Whether the jobs of a user are theirs to see and change."""
        return self.is_operator or user == self.user

    def holds_still(self, service: Service) -> bool:
        """Whether their token has neither been revoked nor expired."""
        token = self.token
        if token is None:
            return True
        is_known = not token.sha256 or token.sha256 in service.state.tokens
        return is_known and not token.has_expired(time.time())


def digest_of(token: str) -> str:
    """What is kept of a token. Tokens are drawn, not thought of: one round of a hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def caller_known(identity: Identity, scope: Any) -> Caller:
    """The caller of an identity that a provider has told; raises 401 once that has ended."""
    if identity.token.has_expired(time.time()):
        raise Problem(HTTPStatus.UNAUTHORIZED, EXPIRED_TOKEN, CHALLENGE)
    return Caller(identity.user, ROLES[identity.role], identity.token, address_of(scope))


def caller_by(service: Service, scope: Any, headers: Headers, has_provider: bool = False) -> Caller:
    """The caller, before anything of the body is read; raises 401 without a good token.

    has_provider: sessions by an identity provider are taken, too.
    """
    given = bearer_in(headers)
    digest = digest_in(headers, service.context.key) if given is None else digest_of(given)
    if given is None and digest and scope["method"] not in SAFE and not is_same_origin(headers):
        raise Problem(HTTPStatus.FORBIDDEN, "a request of another page", refusal="a request of another page")
    if given is None and digest.startswith(COOKIE_MARK) and has_provider:
        return caller_known(identity_in(digest), scope)
    if digest:
        token = service.state.tokens.get(digest)
        role = ROLES.get(token.role) if token is not None else None
        if token is None or role is None or not hmac.compare_digest(token.sha256, digest):
            raise Problem(HTTPStatus.UNAUTHORIZED, UNKNOWN_TOKEN, CHALLENGE)
        if token.has_expired(time.time()):
            raise Problem(HTTPStatus.UNAUTHORIZED, EXPIRED_TOKEN, CHALLENGE)
        return Caller(token.user, role, token, address_of(scope))
    if service.open_on_loopback and _from_loopback(scope, headers):
        user = headers.get("x-stretto-user", "")
        if user and not USER.fullmatch(user):
            raise Problem(
                HTTPStatus.BAD_REQUEST, f"x-stretto-user: expected a line of 1 to 64 characters, got {user!r}"
            )
        return Caller(user, Role.ADMIN, address=address_of(scope))
    raise Problem(HTTPStatus.UNAUTHORIZED, NO_TOKEN, CHALLENGE)


def check_scope(caller: Caller, method: str, path: str) -> None:
    """Raise 403 for a request that the scope of the caller's token does not open, whatever its role."""
    scope = caller.token.scope if caller.token is not None else ALL
    if scope in ("", ALL):
        return
    reads = (method in SAFE or path in CHANGES_NOTHING) and path not in SECRETS
    is_of_jobs = any(path == prefix or path.startswith(f"{prefix}/") for prefix in OF_JOBS)
    if not reads and not (scope == JOBS and is_of_jobs):
        line = f"the token is for {ONLY.get(scope, 'nothing')} only"
        raise Problem(HTTPStatus.FORBIDDEN, line, refusal=line)


def address_of(scope: Any) -> str:
    """Where a request came from; "" where that has no address."""
    return str((scope.get("client") or ("",))[0])


def is_open(path: str) -> bool:
    """Whether a path needs no token: probes, and pages, which show nothing by themselves."""
    return path in OPEN or path in PAGES or path.startswith(PAGES_BELOW)


def job_by(service: Service, headers: Headers) -> str:
    """The job whose channel a token opens; raises 401 for any other token, also on loopback."""
    job = service.context.job_of(bearer_in(headers) or "")
    if not job:
        raise Problem(HTTPStatus.UNAUTHORIZED, "the channel needs the token of the worker's job", CHALLENGE)
    return job


def bearer_in(headers: Headers) -> str | None:
    """The token that a program shows; None where it shows none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def _from_loopback(scope: Any, headers: Headers) -> bool:
    """Whether a request came from this machine and means it: from no page of others, through no proxy.

    A proxy that says nothing of itself may be known by HTTP/1.0, which nginx speaks unless told otherwise.
    """
    host = headers.get("host", "")
    if scope.get("http_version") == "1.0":
        return False
    if not LOCAL_HOST.fullmatch(host):
        return False
    here = f"{scope.get('scheme', 'http')}://{host}"
    if headers.get("origin", here) != here:
        return False
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    if any(name in OF_PROXIES or name.startswith("x-forwarded-") for name in headers):
        return False
    try:
        return scope.get("client") is not None and ip_address(scope["client"][0]).is_loopback
    except ValueError:
        return False


async def service_of(request: Request) -> Service:
    """The service that the application serves. (What is not a coroutine, FastAPI gives to a thread.)"""
    service: Service = request.app.state.service
    return service


async def caller_of(request: Request) -> Caller:
    """The caller, as the middleware found it."""
    caller: Caller = request.state.caller
    return caller


def require(caller: Caller, role: Role, what: str) -> None:
    """Raise 403 for a caller of a lesser role."""
    if caller.role < role:
        raise Problem(HTTPStatus.FORBIDDEN, f"this needs the role {role.name.lower()}", refusal=what)


Asked = Annotated[Service, Depends(service_of)]
Who = Annotated[Caller, Depends(caller_of)]
