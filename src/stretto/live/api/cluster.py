"""Nodes, queues, usage, and the service itself."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from stretto import __version__
from stretto.live.api.access import Caller, Role, caller_of, require, service_of
from stretto.live.api.problems import Problem, not_found
from stretto.live.events import NodeCordoned
from stretto.live.service import Service

router = APIRouter(tags=["cluster"])

Asked = Annotated[Service, Depends(service_of)]
Who = Annotated[Caller, Depends(caller_of)]


class Closing(BaseModel):
    """Whether a node is to take no new jobs, and to keep none."""

    closed: bool
    drain: bool = False
    why: str = ""


@router.get("/api/v1/nodes")
async def nodes(service: Asked, caller: Who) -> dict[str, Any]:
    """Every node with what is held there."""
    state = service.state
    holders: dict[int, dict[str, int]] = {}
    for job, allocation in (state.placement or {}).items():
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            holders.setdefault(node, {})[job] = mask.bit_count()
    return {
        "nodes": [
            {
                "name": node.name,
                "gpu_type": node.gpu_type,
                "gpus": node.gpus,
                "free": node.gpus - sum(holders.get(index, {}).values()),
                "up": node.up,
                "closed": node.closed,
                "drained": node.drained,
                "why": node.why,
                "jobs": holders.get(index, {}),
            }
            for index, node in enumerate(state.nodes)
        ]
    }


@router.post("/api/v1/nodes/{node}/close")
async def close(node: str, closing: Closing, service: Asked, caller: Who) -> dict[str, Any]:
    """Cordon a node, drain it, or open it again."""
    require(caller, Role.OPERATOR)
    if node not in service.state.node_index:
        raise not_found("node", node)
    await service.record(NodeCordoned(node, closing.closed, closing.drain, closing.why))
    return {"node": node, "closed": closing.closed, "drained": closing.closed and closing.drain}


@router.get("/api/v1/usage")
async def usage(
    service: Asked, caller: Who, by: Annotated[str, Query(pattern="^(user|queue)$")] = "user"
) -> dict[str, Any]:
    """GPU-hours and jobs by user or queue; one's own only, for users."""
    found: dict[str, dict[str, float]] = {}
    now_s = service.clock.now_s()
    for record in service.state.jobs.values():
        if caller.role < Role.OPERATOR and record.user != caller.user:
            continue
        books = record.books
        gpu_s = books.attained_gpu_s
        if books.held_gpus:
            gpu_s += books.held_gpus * (now_s - books.held_since_s)
        row = found.setdefault(
            record.user if by == "user" else record.spec.queue, {"jobs": 0, "gpus": 0, "gpu_hours": 0.0}
        )
        row["jobs"] += 1
        row["gpus"] += books.held_gpus
        row["gpu_hours"] += gpu_s / 3600
    return {"by": by, "usage": [{by: name, **row} for name, row in sorted(found.items())]}


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(service: Asked) -> dict[str, Any]:
    """The store can be written and a node is there; 503 otherwise."""
    if not service.ledger.healthy:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the store does not answer")
    if service.state.cluster is None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no node has shown itself yet")
    return {"status": "ready", "seq": service.state.seq}


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of the service."""
    return {"version": __version__}
