"""Secrets of users: set, listed without their values, deleted. No route gives a value back."""

import asyncio
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from stretto.jobfile.parts import SECRET_NAME
from stretto.service.eventlog.secret_table import SecretRow
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Caller, Role, Who
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, not_found
from stretto.service.sealed_secrets import SealedSecrets
from stretto.service.service import Service

router = APIRouter(prefix="/api/v1/secrets", tags=["jobs"])
MOST_JOBS = 100  # of one secret that a list names; chosen
Name = Annotated[str, Path(pattern=rf"^{SECRET_NAME.pattern}$")]


def secrets_of(service: Service) -> SealedSecrets:
    """All secrets of the service."""
    assert service.context.secrets is not None
    return service.context.secrets


@router.get("", response_model=schemas.SecretList)
async def secrets(service: Asked, caller: Who) -> Response:
    """One's own secrets by name, without their values; for administrators those of all users."""
    owner = None if caller.role >= Role.ADMIN else caller.user
    rows = await asyncio.to_thread(secrets_of(service).table.rows, owner)
    users = _users_of(service)
    return Json({"secrets": [_shown(row, users) for row in rows]})


@router.put("/{name}", response_model=schemas.Secret)
async def set_secret(
    name: Name, asked: schemas.SecretAsked, request: Request, service: Asked, caller: Who
) -> Response:
    """A secret of one's own is this from now on. Workers that run keep what they have."""

    async def doing() -> SecretRow:
        # First: the audit rather names what was not done than misses what was.
        await service.record(did(caller, "set", _words(name, caller.user)))
        return await asyncio.to_thread(secrets_of(service).put, caller.user, name, asked.value)

    row = await durably(request, doing())
    return Json(_shown(row, _users_of(service)))


@router.delete("/{name}", status_code=HTTPStatus.NO_CONTENT)
async def delete_secret(
    name: Name,
    request: Request,
    service: Asked,
    caller: Who,
    user: Annotated[
        schemas.UserName | None, Query(description="whose; else one's own. For administrators")
    ] = None,
) -> None:
    """A secret is gone. Workers that run keep what they have; a later start that needs it fails."""
    owner = _owner(caller, name, user)

    async def doing() -> bool:
        if not await asyncio.to_thread(secrets_of(service).table.rows, owner, {name}):
            return False
        await service.record(did(caller, "delete", _words(name, owner)))
        return await asyncio.to_thread(secrets_of(service).table.remove, owner, name)

    if not await durably(request, doing()):
        raise not_found("secret", name)


def _owner(caller: Caller, name: str, user: str | None) -> str:
    """Whose secret is meant. Raises 404 for one of another user, as if it were not there."""
    if user is None or user == caller.user:
        return caller.user
    if caller.role < Role.ADMIN:
        raise not_found("secret", name, refusal=f"delete a secret of {user}")
    return user


def _words(name: str, owner: str) -> str:
    return f"secret {name} of {owner}" if owner else f"secret {name}"


def _users_of(service: Service) -> dict[tuple[str, str], list[str]]:
    """By owner and name, the jobs that have not ended and name it."""
    users: dict[tuple[str, str], list[str]] = {}
    for _, job in service.state.open:
        record = service.state.jobs[job]
        for name in dict.fromkeys(record.spec.secrets.values()):
            users.setdefault((record.user, name), []).append(record.id)
    return users


def _shown(row: SecretRow, users: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    jobs = users.get((row.owner, row.name), [])[:MOST_JOBS]
    return {"name": row.name, "user": row.owner, "set_unix_s": row.set_unix_s, "jobs": jobs}
