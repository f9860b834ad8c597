"""Uploads: what jobs bring along, offered, sent part by part, and fetched by the workers of those jobs."""

import asyncio
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from stretto.client.upload_manifest import UploadManifest, manifest_in
from stretto.service.http import schemas
from stretto.service.http.auth import Asked, Who
from stretto.service.http.commit import durably
from stretto.service.http.problems import Json, Problem
from stretto.service.http.routes.workers import UNWANTED, speaker_of
from stretto.service.service import Service

router = APIRouter(prefix="/api/v1")
BYTES = "application/octet-stream"
CONTENT = {"type": "string", "format": "binary"}
OF_WORKERS: dict[int | str, dict[str, Any]] = {**UNWANTED, 404: {"description": "The job has no upload"}}
Worker = Annotated[str, Query(max_length=200)]


@router.get("/uploads", response_model=schemas.UploadBounds, tags=["jobs"])
async def upload_limits(service: Asked, caller: Who) -> Response:
    """How much may be uploaded here, and for how long it stays after the last job that names it."""
    limits = service.uploads_here().limits
    return Json(
        {
            "most_bytes": limits.most_bytes,
            "most_file_bytes": limits.most_file_bytes,
            "most_user_bytes": limits.most_user_bytes,
            "keep_s": limits.keep_s,
        }
    )


@router.post("/uploads", response_model=schemas.UploadOffered, tags=["jobs"])
async def offer_upload(asked: schemas.UploadAsked, request: Request, service: Asked, caller: Who) -> Response:
    """Say what an upload holds; the answer names it, and the parts that are to be sent."""
    uploads = service.uploads_here()

    def offered() -> tuple[UploadManifest, list[str]]:
        manifest = manifest_in(asked.model_dump())
        return manifest, uploads.offer(caller.user, manifest)

    manifest, missing = await durably(request, asyncio.to_thread(offered))
    shown = {"digest": manifest.digest, "files": len(manifest.files), "bytes": manifest.bytes}
    return Json({**shown, "missing": missing})


@router.post(
    "/uploads/{digest}/parts",
    status_code=HTTPStatus.NO_CONTENT,
    tags=["jobs"],
    openapi_extra={"requestBody": {"required": True, "content": {BYTES: {"schema": CONTENT}}}},
)
async def send_parts(
    digest: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")], request: Request, service: Asked, caller: Who
) -> None:
    """Parts of an upload, each behind its length in four bytes, the highest first."""
    uploads = service.uploads_here()
    pack = await request.body()
    await durably(request, asyncio.to_thread(uploads.put, caller.user, digest, pack))


# ── for workers ───────────────────────────────────────────────────────────────────────────────────────


@router.get("/worker/upload", response_model=schemas.UploadShown, responses=OF_WORKERS, tags=["worker"])
async def fetched_manifest(worker: Worker, request: Request, service: Asked) -> Response:
    """What the job has brought along: its manifest, byte for byte as its digest names it."""
    _, manifest = await _manifest_of(service, request, worker)
    return Response(manifest.content, media_type="application/json")


@router.get(
    "/worker/upload/content",
    response_class=StreamingResponse,
    responses={**OF_WORKERS, 200: {"content": {BYTES: {"schema": CONTENT}}}},
    tags=["worker"],
)
async def fetched_content(
    worker: Worker,
    request: Request,
    service: Asked,
    offset: Annotated[int, Query(ge=0, le=schemas.LARGEST_NUMBER)] = 0,
) -> StreamingResponse:
    """All its files one behind another, in the order of the manifest, from a byte on."""
    owner, manifest = await _manifest_of(service, request, worker)
    content = service.uploads_here().content(owner, manifest, offset)
    return StreamingResponse(content, media_type=BYTES)


async def _manifest_of(service: Service, request: Request, worker: str) -> tuple[str, UploadManifest]:
    """The owner and the manifest of the upload of a worker's job. Raises 404 where it has none."""
    record, _ = speaker_of(service, request, worker)
    if record.spec.upload is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"job {record.id} has no upload")
    digest = record.spec.upload.digest
    return record.user, await asyncio.to_thread(service.uploads_here().manifest, record.user, digest)
