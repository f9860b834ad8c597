"""Nodes, queues, usage and decisions."""

from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from stretto.model import DEFAULT_QUEUE, Queue
from stretto.model.queue import check_queue_tree
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Caller, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.decision_history import DecisionHistory
from stretto.service.http.problems import Json, Problem, not_found
from stretto.service.service import Service
from stretto.service.state.events import NodeCordoned, QueueDeleted, QueueSet
from stretto.service.state.shares import usage_of
from stretto.service.state.state import State

router = APIRouter(prefix="/api/v1", tags=["cluster"])

Node = Annotated[str, Path(max_length=255)]
QueueName = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,63}$")]
MOST_NAMED = 5  # jobs or queues that are in one which cannot be deleted


@router.get("/nodes", response_model=schemas.Nodes)
async def nodes(service: Asked, caller: Who) -> Response:
    """Every node with what is held there."""
    return Json({"nodes": nodes_json(service, caller)})


def nodes_json(service: Service, caller: Caller) -> list[dict[str, Any]]:
    """Every node; users see of its jobs only their own."""
    state = service.state
    holders: list[dict[str, int]] = [{} for _ in state.nodes]
    for job, allocation in (state.placement or {}).items():
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            holders[node][job] = mask.bit_count()
    return [
        {
            "name": node.name,
            "gpu_type": node.gpu_type,
            "gpus": node.gpus,
            "free": max(node.gpus - node.others - sum(held.values()), 0),
            "others": node.others,
            "cpus": node.cpus,
            "memory_gb": node.memory_gb,
            "address": node.address,
            "up": node.up,
            "closed": node.closed,
            "drained": node.drained,
            "why": node.why,
            "jobs": {job: gpus for job, gpus in held.items() if caller.owns(state.jobs[job])},
        }
        for node, held in zip(state.nodes, holders, strict=True)
    ]


async def _close(
    request: Request, caller: Caller, node: str, what: str, because: schemas.Because | None
) -> Response:
    service: Service = request.app.state.service
    require(caller, Role.OPERATOR, what)
    if node not in service.state.node_index:
        raise not_found("node", node)
    why = because.why if because is not None else ""
    event = NodeCordoned(node, what != "uncordon", what == "drain", why)
    await durably(request, service.record(event, did(caller, what, f"node {node}")))
    index = service.state.node_index[node]
    return Json(nodes_json(service, caller)[index])


@router.post("/nodes/{node}/cordon", response_model=schemas.Node)
async def cordon(
    node: Node, request: Request, caller: Who, because: schemas.Because | None = None
) -> Response:
    """A node takes no new jobs; those that run there stay."""
    return await _close(request, caller, node, "cordon", because)


@router.post("/nodes/{node}/drain", response_model=schemas.Node)
async def drain(
    node: Node, request: Request, caller: Who, because: schemas.Because | None = None
) -> Response:
    """A node takes no new jobs, and those that run there leave."""
    return await _close(request, caller, node, "drain", because)


@router.post("/nodes/{node}/uncordon", response_model=schemas.Node)
async def uncordon(
    node: Node, request: Request, caller: Who, because: schemas.Because | None = None
) -> Response:
    """A node takes jobs again."""
    return await _close(request, caller, node, "uncordon", because)


@router.get("/queues", response_model=schemas.Queues)
async def queues(service: Asked, caller: Who) -> Response:
    """Every queue that has bounds, or jobs that have not ended."""
    return Json({"queues": queues_json(service)})


def queues_json(service: Service) -> list[dict[str, Any]]:
    """Queues by name, with what is in them."""
    state = service.state
    found: dict[str, dict[str, Any]] = {}

    def row(name: str) -> dict[str, Any]:
        queue = state.queues.get(name, Queue(name))
        return found.setdefault(
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
        one = row(record.queue or (DEFAULT_QUEUE if state.queues else ""))
        one["jobs"] += 1
        one["waiting"] += not record.books.held_gpus
        one["held_gpus"] += record.books.held_gpus
    return [found[name] for name in sorted(found)]


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
    said = bounds.model_dump(exclude_unset=True)
    if said.get("users") is not None:
        said["users"] = tuple(dict.fromkeys(said["users"]))
    async with request.app.state.one_bound:  # of two that do not go together, one comes first
        known = service.state.queues
        wanted = replace(known.get(queue, Queue(queue)), **said, is_default=queue == DEFAULT_QUEUE)
        check_queue_tree({**known, queue: wanted})
        events = [QueueSet(**asdict(wanted))]
        if queue != DEFAULT_QUEUE and DEFAULT_QUEUE not in known:
            events.append(QueueSet(DEFAULT_QUEUE, is_default=True))
        await durably(request, service.record(*events, did(caller, "set", f"queue {queue}")))
    return Json(next(one for one in queues_json(service) if one["name"] == queue))


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
    if parts := sorted(one.name for one in state.queues.values() if one.parent == queue):
        return f"{_some(parts)} {'is' if len(parts) == 1 else 'are'} in it"
    if jobs := [record.id for record in state.open_jobs() if record.queue == queue]:
        is_or_are = "job {} is in it and has" if len(jobs) == 1 else "jobs {} are in it and have"
        return is_or_are.format(_some(jobs)) + " not ended"
    kept = sorted(one.name for one in state.reservations.values() if one.queue == queue)
    if kept := [name for name in kept if state.reservations[name].until_s > now_s]:
        return f"GPUs are reserved for it: {_some(kept)}"
    return ""


def _some(names: list[str]) -> str:
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return " and ".join(filter(None, [", ".join(names[:MOST_NAMED]), *more]))


@router.get("/usage", response_model=schemas.Usage, response_model_exclude_none=True)
async def usage(service: Asked, caller: Who, by: Literal["user", "queue"] = "user") -> Response:
    """GPU-hours and jobs by user or queue; one's own only, for users."""
    usage = usage_of(service.state, caller.sees, service.clock.now_s(), by)
    return Json({"by": by, "usage": usage})


@router.get("/decisions", response_model=schemas.Decisions)
async def decisions(
    request: Request, service: Asked, caller: Who, limit: Annotated[int, Query(ge=1, le=200)] = 1
) -> Response:
    """The newest decisions since the service was started: their prices, gap and times, the latest first."""
    planned: DecisionHistory = request.app.state.planned
    return Json(planned.shown(limit, caller.role >= Role.OPERATOR), status_code=HTTPStatus.OK)
