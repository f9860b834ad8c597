"""Nodes: listed, cordoned, drained; and how much of them each user has used."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from stretto.backends.protocol import GpuUse
from stretto.service.gpu_use import mean_busy
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Caller, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, not_found
from stretto.service.service import Service
from stretto.service.state.events import NodeCordoned

router = APIRouter(prefix="/api/v1", tags=["cluster"])

Node = Annotated[str, Path(max_length=255)]


@router.get("/nodes", response_model=schemas.Nodes)
async def nodes(service: Asked, caller: Who) -> Response:
    """Every node with what is held there."""
    return Json({"nodes": nodes_json(service, caller)})


def nodes_json(service: Service, caller: Caller) -> list[dict[str, Any]]:
    """Every node; users see of its jobs only their own."""
    state = service.state
    ending = {index: mask.bit_count() for index, mask in service.reconciler.ending_gpus().items()}
    holders: list[dict[str, int]] = [{} for _ in state.nodes]
    for job, allocation in (state.placement or {}).items():
        for node, mask in zip(allocation.nodes, allocation.masks, strict=True):
            holders[node][job] = mask.bit_count()
    return [
        {
            "name": node.name,
            "gpu_type": node.gpu_type,
            "gpus": node.gpus,
            "free": max(node.gpus - node.others - sum(gpus_of_job.values()) - ending.get(index, 0), 0)
            if node.is_ours
            else 0,
            "ending": ending.get(index, 0),
            "others": node.others,
            "cpus": node.cpus,
            "memory_gb": node.memory_gb,
            "address": node.address,
            "up": node.up,
            "closed": node.closed,
            "taints": node.keeping_away,
            "drained": node.drained,
            "lender": node.lender,
            "on_loan": node.on_loan,
            "why": node.why,
            "zone": node.zone,
            "rack": node.rack,
            "nvlink_domain": node.nvlink_domain,
            "jobs": {job: gpus for job, gpus in gpus_of_job.items() if caller.owns(state.jobs[job])},
            **_use_json(service.gpu_watch.nodes.get(node.name, ())),
        }
        for index, (node, gpus_of_job) in enumerate(zip(state.nodes, holders, strict=True))
    ]


def _use_json(uses: Sequence[GpuUse | None]) -> dict[str, Any]:
    """How busy the GPUs of a node are, one by one, and in the mean."""
    busy = mean_busy([use for use in uses if use is not None])
    return {
        "busy": None if busy is None else round(busy, 3),
        "gpu_use": [
            None
            if use is None
            else {
                "busy": use.busy,
                "memory_gb": round(use.used_bytes / 1e9, 2),
                "memory_total_gb": round(use.bytes / 1e9, 2),
            }
            for use in uses
        ],
    }


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
