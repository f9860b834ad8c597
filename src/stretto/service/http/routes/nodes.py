"""Nodes: listed, cordoned, drained; and how much of them each user has used."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Caller, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.node_rows import NodeRows
from stretto.service.http.problems import Json, not_found
from stretto.service.service import Service
from stretto.service.state.events import NodeCordoned

router = APIRouter(prefix="/api/v1", tags=["cluster"])

Node = Annotated[str, Path(max_length=255)]


@router.get("/nodes", response_model=schemas.Nodes)
async def nodes(request: Request, caller: Who) -> Response:
    """Every node with what is held there."""
    rows: NodeRows = request.app.state.node_rows
    return Response(b'{"nodes":' + rows.text(caller) + b"}", media_type=Json.media_type)


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
    rows: NodeRows = request.app.state.node_rows
    return Json(rows.one(caller, index))


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
