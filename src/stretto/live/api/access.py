"""Who may do what: bearer tokens with roles, and the open door on loopback where that was asked for."""

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from ipaddress import ip_address

from fastapi import Request

from stretto.live.api.problems import Problem
from stretto.live.records import JobRecord
from stretto.live.service import Service


class Role(IntEnum):
    """Each may do what the one before may."""

    USER = 1  # submits, and changes what is theirs
    OPERATOR = 2  # changes everybody's jobs and the nodes
    ADMIN = 3  # makes tokens and queues


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    user: str
    role: Role

    def owns(self, record: JobRecord) -> bool:
        """Whether a job is theirs to change."""
        return self.role >= Role.OPERATOR or record.user == self.user


def service_of(request: Request) -> Service:
    """The service that the application serves."""
    service: Service = request.app.state.service
    return service


async def caller_of(request: Request) -> Caller:
    """Who asks, by the token; raises 401 without a good one."""
    service = service_of(request)
    header = request.headers.get("authorization", "")
    if header.startswith("Bearer "):
        token = service.state.tokens.get(hashlib.sha256(header[7:].encode()).hexdigest())
        if token is None:
            raise Problem(HTTPStatus.UNAUTHORIZED, "unknown or revoked token")
        return Caller(token.user, Role[token.role.upper()])
    if service.open_on_loopback and _from_loopback(request):
        return Caller(request.headers.get("x-stretto-user", "")[:64], Role.ADMIN)
    raise Problem(HTTPStatus.UNAUTHORIZED, "a bearer token is needed")


def _from_loopback(request: Request) -> bool:
    """Whether the request came from this machine, and means this machine, not a page in its browser."""
    host = request.headers.get("host", "").rsplit(":", 1)[0].strip("[]")
    if request.headers.get("origin") or host not in ("127.0.0.1", "::1", "localhost"):
        return False
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def require(caller: Caller, role: Role) -> None:
    """Raise 403 for a caller of a lesser role."""
    if caller.role < role:
        raise Problem(HTTPStatus.FORBIDDEN, f"this needs the role {role.name.lower()}")
