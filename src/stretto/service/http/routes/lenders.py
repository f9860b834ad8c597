"""Lenders: whose nodes are usable only while they are on loan, and what they say that they need."""

from http import HTTPStatus
from math import isnan
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from stretto.clusters.parse import LENDER_NAME
from stretto.errors import InputError
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, not_found
from stretto.service.service import Service
from stretto.service.state.events import LenderDeleted, LenderSet, NeedReported
from stretto.service.state.lender_records import LenderRecord
from stretto.service.state.lenders import nodes_of_lenders

router = APIRouter(prefix="/api/v1", tags=["cluster"])

Name = Annotated[str, Path(pattern=f"^{LENDER_NAME}$")]


@router.get("/lenders", response_model=schemas.Lenders)
async def lenders(service: Asked, caller: Who) -> Response:
    """Every lender, with what is on loan and how long it waits for its nodes."""
    known = service.state.lenders
    return Json({"lenders": [_shown(service, known[name]) for name in sorted(known)]})


def _shown(service: Service, lender: LenderRecord) -> dict[str, Any]:
    state, now_s = service.state, service.clock.now_s()
    up, at_home = nodes_of_lenders(state.nodes).get(lender.name, (0, 0))
    waits_s = None if isnan(lender.asked_s) else max(now_s - lender.asked_s, 0.0)
    return {
        "name": lender.name,
        "nodes": list(lender.nodes),
        "headroom": lender.headroom,
        "need": _number(lender.need),
        "up": up,
        "on_loan": sum(node.lender == lender.name and node.on_loan for node in state.nodes),
        "in_its_hands": at_home,
        "usable": [
            node.name
            for node in state.nodes
            if node.lender == node.in_hands_of == lender.name
            and node.up
            and not node.on_loan
            and node.name not in service.exchange.leaving
        ],
        "lacks": lender.lacking(up, at_home),
        "waits_s": waits_s,
        "guarantee_s": lender.guarantee_s or None,
        "late": bool(waits_s is not None and lender.guarantee_s and waits_s > lender.guarantee_s),
        "waits": lender.waits,
        "waits_missed": lender.waits_missed,
        "latest_wait_s": _number(lender.latest_wait_s),
        "longest_wait_s": lender.longest_wait_s,
        "failure": service.exchange.failures.get(lender.name, ""),
    }


def _number(value: float) -> float | None:
    return None if isnan(value) else value


@router.put("/lenders/{name}", response_model=schemas.Lender)
async def set_lender(
    name: Name, asked: schemas.LenderAsked, request: Request, service: Asked, caller: Who
) -> Response:
    """Nodes belong to a lender; those that jobs run on are on loan, all others with it as soon as may be."""
    require(caller, Role.OPERATOR, "set a lender")
    nodes = tuple(dict.fromkeys(asked.nodes))
    async with request.app.state.one_bound:  # of two lenders that want the same node, one comes first
        for node in nodes:
            if node not in service.state.node_index:
                raise not_found("node", node)
        others = (other for other in service.state.lenders.values() if other.name != name)
        for other in others:
            if twice := [node for node in nodes if node in other.nodes]:
                raise InputError(f"nodes: {twice[0]} belongs to lender {other.name}")
        event = LenderSet(name, nodes, asked.headroom, asked.guarantee_s)
        await durably(request, service.record(event, did(caller, "set", f"lender {name}")))
    return Json(_shown(service, service.state.lenders[name]))


@router.delete("/lenders/{name}", status_code=HTTPStatus.NO_CONTENT)
async def delete_lender(name: Name, request: Request, service: Asked, caller: Who) -> None:
    """Its nodes are ours from now on."""
    require(caller, Role.OPERATOR, "delete a lender")
    if name not in service.state.lenders:
        raise not_found("lender", name)
    await durably(request, service.record(LenderDeleted(name), did(caller, "delete", f"lender {name}")))


@router.post("/lenders/{name}/need", response_model=schemas.Lender)
async def report_need(
    name: Name, asked: schemas.Need, request: Request, service: Asked, caller: Who
) -> Response:
    """A lender needs so many of its nodes itself, or such a share; loans are settled at once."""
    require(caller, Role.OPERATOR, "say what a lender needs")
    lender = service.state.lenders.get(name)
    if lender is None:
        raise not_found("lender", name)
    if (asked.nodes is None) == (asked.share is None):
        raise InputError("need: expected nodes, or share, and not both")
    need = asked.nodes if asked.nodes is not None else (asked.share or 0.0) * len(lender.nodes)
    if need > len(lender.nodes):
        raise InputError(f"nodes: lender {name} has {len(lender.nodes)}, got {need:g}")
    if need != lender.need:
        # As often as it likes: that is no act of an operator to be kept for ever.
        await durably(request, service.record(NeedReported(name, need)))
    return Json(_shown(service, service.state.lenders[name]))
