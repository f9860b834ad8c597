"""Queues: their bounds, and what is in them."""

from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from stretto.model import DEFAULT_QUEUE, Queue
from stretto.model.queue import check_queue_tree
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, Problem, not_found
from stretto.service.service import Service
from stretto.service.state.events import QueueDeleted, QueueSet
from stretto.service.state.state import State

router = APIRouter(prefix="/api/v1", tags=["cluster"])

QueueName = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,63}$")]
MOST_NAMED = 5  # jobs or queues that are in one which cannot be deleted


@router.get("/queues", response_model=schemas.Queues)
async def queues(service: Asked, caller: Who) -> Response:
    """Every queue that has bounds, or jobs that have not ended."""
    return Json({"queues": queues_json(service)})


def queues_json(service: Service) -> list[dict[str, Any]]:
    """Queues by name, with what is in them."""
    state = service.state
    rows: dict[str, dict[str, Any]] = {}

    def row(name: str) -> dict[str, Any]:
        queue = state.queues.get(name, Queue(name))
        return rows.setdefault(
            name,
            {
                "name": name,
                "quota_gpus": queue.quota_gpus,
                "borrow_gpus": queue.borrow_gpus,
                "weight": queue.weight,
                "users": None if queue.users is None else list(queue.users),
                "is_default": queue.is_default,
                "shares": queue.shares,
                "parent": queue.parent,
                "jobs": 0,
                "waiting": 0,
                "held_gpus": 0,
            },
        )

    for name in state.queues:
        row(name)
    for record in state.open_jobs():
        of_queue = row(record.queue or (DEFAULT_QUEUE if state.queues else ""))
        of_queue["jobs"] += 1
        of_queue["waiting"] += not record.accounting.held_gpus
        of_queue["held_gpus"] += record.accounting.held_gpus
    return [rows[name] for name in sorted(rows)]


@router.put("/queues/{queue}", response_model=schemas.Queue)
async def set_queue(
    queue: QueueName,
    bounds: schemas.Bounds,
    request: Request,
    service: Asked,
    caller: Who,
) -> Response:
    """A queue has these bounds from now on. With the first one the default queue is there, too."""
    require(caller, Role.ADMIN, "set a queue")
    changes = bounds.model_dump(exclude_unset=True)
    if changes.get("users") is not None:
        changes["users"] = tuple(dict.fromkeys(changes["users"]))
    async with request.app.state.one_bound:  # of two that do not go together, one comes first
        queues = service.state.queues
        wanted = replace(queues.get(queue, Queue(queue)), **changes, is_default=queue == DEFAULT_QUEUE)
        check_queue_tree({**queues, queue: wanted})
        events = [QueueSet(**asdict(wanted))]
        if queue != DEFAULT_QUEUE and DEFAULT_QUEUE not in queues:
            events.append(QueueSet(DEFAULT_QUEUE, is_default=True))
        await durably(request, service.record(*events, did(caller, "set", f"queue {queue}")))
    return Json(next(listed for listed in queues_json(service) if listed["name"] == queue))


@router.delete(
    "/queues/{queue}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={409: {"description": "Jobs or other queues are in it, or GPUs are reserved for it"}},
)
async def delete_queue(queue: QueueName, request: Request, service: Asked, caller: Who) -> None:
    """There is no such queue any more. With the last one, jobs may name any queue again."""
    require(caller, Role.ADMIN, "delete a queue")
    if queue not in service.state.queues:
        raise not_found("queue", queue)
    if why := why_it_stays(service.state, queue, service.clock.now_s()):
        raise Problem(HTTPStatus.CONFLICT, f"queue {queue} cannot be deleted: {why}")
    await durably(request, service.record(QueueDeleted(queue), did(caller, "delete", f"queue {queue}")))


def why_it_stays(state: State, queue: str, now_s: float) -> str:
    """What keeps a queue from being deleted; "" for nothing."""
    others = sorted(name for name in state.queues if name != queue)
    if queue == DEFAULT_QUEUE and others:
        return f"it is there as long as others are: {_some(others)}"
    if parts := sorted(part.name for part in state.queues.values() if part.parent == queue):
        return f"{_some(parts)} {'is' if len(parts) == 1 else 'are'} in it"
    if jobs := [record.id for record in state.open_jobs() if record.queue == queue]:
        is_or_are = "job {} is in it and has" if len(jobs) == 1 else "jobs {} are in it and have"
        return is_or_are.format(_some(jobs)) + " not ended"
    reservations = sorted(
        reservation.name for reservation in state.reservations.values() if reservation.queue == queue
    )
    if reservations := [name for name in reservations if state.reservations[name].until_s > now_s]:
        return f"GPUs are reserved for it: {_some(reservations)}"
    return ""


def _some(names: list[str]) -> str:
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return " and ".join(filter(None, [", ".join(names[:MOST_NAMED]), *more]))
