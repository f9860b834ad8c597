"""Priorities with names: a job file may name one."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from stretto.model import PriorityClass
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, Problem
from stretto.service.state.events import PriorityClassDeleted, PriorityClassSet

router = APIRouter(prefix="/api/v1", tags=["cluster"])
Name = Annotated[str, Path(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,62}$")]  # none reads as a number


@router.get("/priority-classes", response_model=schemas.PriorityClasses)
async def priority_classes(service: Asked, caller: Who) -> Response:
    """Every class, the highest first."""
    classes = sorted(service.state.priority_classes.values(), key=lambda one: (-one.value, one.name))
    return Json({"priority_classes": [_shown(one) for one in classes]})


def _shown(one: PriorityClass) -> dict[str, Any]:
    preempts = "lower" if one.preempts else "never"
    return {"name": one.name, "value": one.value, "default": one.is_default, "preempts": preempts}


@router.put("/priority-classes/{name}", response_model=schemas.PriorityClass)
async def set_priority_class(
    name: Name, asked: schemas.PriorityClassAsked, request: Request, service: Asked, caller: Who
) -> Response:
    """A class is this from now on; jobs that are there keep their priority. There is one default at most."""
    require(caller, Role.OPERATOR, "set a priority class")
    priority_class = PriorityClass(name, asked.value, asked.default, asked.preempts == "lower")
    event = PriorityClassSet(
        priority_class.name, priority_class.value, priority_class.is_default, priority_class.preempts
    )
    await durably(request, service.record(event, did(caller, "set", f"priority class {name}")))
    return Json(_shown(priority_class))


@router.delete("/priority-classes/{name}", status_code=HTTPStatus.NO_CONTENT)
async def delete_priority_class(name: Name, request: Request, service: Asked, caller: Who) -> None:
    """No new job is of this class."""
    require(caller, Role.OPERATOR, "delete a priority class")
    if name not in service.state.priority_classes:
        raise Problem(HTTPStatus.NOT_FOUND, f"no priority class {name!r}")
    event = PriorityClassDeleted(name)
    await durably(request, service.record(event, did(caller, "delete", f"priority class {name}")))
