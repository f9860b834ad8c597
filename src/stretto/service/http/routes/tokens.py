"""Tokens: made, shown once, listed without their secrets, revoked. For administrators."""

import os
import secrets
import time
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath

from stretto.service.http import schemas
from stretto.service.http.audit import Audit, did
from stretto.service.http.auth import ALL, PREFIX, Asked, Role, Who, digest_of, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, Problem, not_found
from stretto.service.state.events import TokenMade, TokenRevoked
from stretto.service.state.records import Token

router = APIRouter(prefix="/api/v1/tokens", tags=["tokens"])

SECRET_BYTES = 32
ADMIN = "admin"  # the user of the first token


def new_token() -> str:
    """A secret that cannot be guessed."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def is_admin(token: Token, unix_s: float) -> bool:
    """Whether a token opens all that an admin may do."""
    has_role = token.role == Role.ADMIN.name.lower() and token.scope in ("", ALL)
    return has_role and not token.has_expired(unix_s)


def first_admin(file: Path) -> TokenMade:
    """A token in a file of the state directory, which only its owner may read.

    The file is written first, so that no token is ever made that is then lost.
    """
    token = new_token()
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(f"{token}\n")
    temporary.replace(file)
    return TokenMade(f"first-{secrets.token_hex(4)}", ADMIN, Role.ADMIN.name.lower(), digest_of(token))


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    response_model=schemas.TokenMade,
    responses={409: {"description": "There is a token of this name"}},
)
async def make(asked: schemas.TokenAsked, request: Request, service: Asked, caller: Who) -> Response:
    """A new token. Its secret is in this answer and nowhere else."""
    require(caller, Role.ADMIN, "make a token")
    token = new_token()
    async with request.app.state.one_token:  # of two who make the same name, one comes first
        if any(existing.name == asked.name for existing in service.state.tokens.values()):
            raise Problem(HTTPStatus.CONFLICT, f"there is a token {asked.name!r}: revoke it first")
        expires = time.time() + asked.expires_in_s if asked.expires_in_s is not None else 0.0
        made = TokenMade(asked.name, asked.user, asked.role, digest_of(token), expires, asked.scope)
        noted = did(
            caller, "make", f"token {asked.name} of {asked.user} as {asked.role}, scope {asked.scope}"
        )
        await durably(request, service.record(made, noted))
    return Json(
        {
            "name": asked.name,
            "user": asked.user,
            "role": asked.role,
            "scope": asked.scope,
            "expires": expires or None,
            "last_used": None,
            "token": token,
        },
        status_code=HTTPStatus.CREATED,
    )


@router.get("", response_model=schemas.Tokens)
async def listed(request: Request, service: Asked, caller: Who) -> Response:
    """Every token that was not revoked, by name; one that has expired opens nothing."""
    require(caller, Role.ADMIN, "list tokens")
    tokens = sorted(service.state.tokens.values(), key=lambda entry: entry.name)
    audit: Audit = request.app.state.audit
    rows = [
        {
            "name": entry.name,
            "user": entry.user,
            "role": entry.role,
            "scope": entry.scope or ALL,
            "expires": entry.expires_unix_s or None,
            "last_used": audit.last_use(entry),
        }
        for entry in tokens
    ]
    return Json({"tokens": rows})


@router.delete(
    "/{name}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={409: {"description": "It is the last one that opens to an admin"}},
)
async def revoke(
    name: Annotated[str, InPath(max_length=64)], request: Request, service: Asked, caller: Who
) -> Response:
    """A token opens nothing from now on; streams that it opened end with the next event."""
    require(caller, Role.ADMIN, "revoke a token")
    async with request.app.state.one_token:  # of two admins who revoke each other, one stays
        tokens = service.state.tokens.values()
        if all(entry.name != name for entry in tokens):
            raise not_found("token", name)
        admins = {entry.name for entry in tokens if is_admin(entry, time.time())}
        if admins == {name}:
            raise Problem(HTTPStatus.CONFLICT, f"{name!r} is the last token of an admin: make another first")
        await durably(request, service.record(TokenRevoked(name), did(caller, "revoke", f"token {name}")))
    return Response(status_code=HTTPStatus.NO_CONTENT)
