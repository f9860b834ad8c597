"""The service itself: whether it lives, whether it can take jobs, and its figures."""

from http import HTTPStatus

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from stretto import __version__
from stretto.backends.protocol import Remarks
from stretto.service.http import schemas
from stretto.service.http.auth import Asked, Who
from stretto.service.http.problems import RETRY_SOON, Json, Problem

router = APIRouter(tags=["service"])

FIGURES = "text/plain; version=0.0.4; charset=utf-8"  # the text format of Prometheus


@router.get("/healthz", response_model=schemas.Status)
async def healthz() -> Response:
    """The process answers."""
    return Json({"status": "ok"})


@router.get("/readyz", response_model=schemas.Ready)
async def readyz(service: Asked) -> Response:
    """The store can be written, the cluster has shown its nodes, and no other service leads; else 503.

    A cluster that answers and has no node is one that is scaled to zero: nodes may come when jobs wait.
    """
    if service.leadership is not None and not service.leadership.is_sure:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "another service may lead", RETRY_SOON)
    if not service.log_writer.keeps_up:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the store does not answer", RETRY_SOON)
    if service.state.cluster is None and not service.reconciler.sees_empty_cluster:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no node has shown itself yet", RETRY_SOON)
    state = service.state
    remark = service.backend.remark if isinstance(service.backend, Remarks) else ""
    return Json({"status": "ready", "seq": state.seq, "skipped_events": state.skips, "remark": remark})


@router.get("/version", response_model=schemas.Version)
async def version() -> Response:
    """The version of the service."""
    return Json({"version": __version__})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, caller: Who) -> Response:
    """Figures for Prometheus; a scraper gives a token too."""
    return Response(request.app.state.meters.text(), media_type=FIGURES)
