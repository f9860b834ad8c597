"""What workers have written: in pieces, or as a stream."""

import codecs
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from math import isnan
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from stretto.backends import protocol
from stretto.backends.protocol import BackendUnreachable, NoSuchWorker
from stretto.service.http import schemas
from stretto.service.http.auth import Asked, Caller, Who
from stretto.service.http.problems import RETRY_SOON, Json, Problem, not_found
from stretto.service.http.routes.jobs import job_of
from stretto.service.http.schemas import LARGEST_NUMBER
from stretto.service.http.sse import STREAM, LastId, streamed
from stretto.service.retention.log_retention import age_in_words
from stretto.service.service import Service
from stretto.service.state.records import JobRecord
from stretto.service.state.status import JobState, state_of

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

PIECE_BYTES = 1 << 16
TICK_S = 15.0  # between two comments on a quiet stream
MOST_WORKERS = 1 << 20

DELETED: dict[int | str, dict[str, Any]] = {
    410: {"description": "The log was deleted, a while after the end"}
}

Rank = Annotated[int, Query(ge=0, lt=MOST_WORKERS, description="which worker, by its index")]
Attempt = Annotated[int, Query(ge=0, le=MOST_WORKERS, description="which attempt; 0: the latest")]


async def _worker_of(
    service: Service, caller: Caller, job: str, attempt: int, rank: int
) -> tuple[JobRecord, str]:
    """The job, and a worker's id: made of the job's own and of numbers, so that it leads nowhere else.

    Raises 404 for a job that the caller may not see, 410 where its logs were deleted.
    """
    record = await job_of(service, caller, job)
    if not isnan(record.logs_deleted_s):
        age = age_in_words(record.logs_deleted_s - record.ended_s)
        raise Problem(HTTPStatus.GONE, f"the log of job {job} was deleted {age} after its end")
    return record, record.worker_id(attempt or max(record.attempt, 1), rank)


@router.get("/{job}/log", response_model=schemas.LogPiece, responses=DELETED)
async def log(
    job: str,
    service: Asked,
    caller: Who,
    rank: Rank = 0,
    attempt: Attempt = 0,
    offset: Annotated[
        int, Query(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, description="negative: from the end")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=1 << 20)] = PIECE_BYTES,
    wait_s: Annotated[float, Query(ge=0, le=55, allow_inf_nan=False)] = 0.0,
) -> Response:
    """Bytes of what one worker has written, as text; `next_offset` is where to read on."""
    record, name = await _worker_of(service, caller, job, attempt, rank)
    piece = await _piece(service, record, name, offset, limit, wait_s)
    data = piece.data
    if not piece.complete or len(data) == limit:
        data = data[: whole_characters(data)] or data
    return Json(
        {
            "worker": name,
            "text": data.decode("utf-8", "replace"),
            "offset": piece.offset,
            "next_offset": piece.next_offset - (len(piece.data) - len(data)),
            "complete": piece.complete and len(data) == len(piece.data),
        }
    )


@router.get(
    "/{job}/log/follow",
    response_class=StreamingResponse,
    responses={200: {"content": {STREAM: {}}}, **DELETED},
)
async def follow(
    job: str,
    request: Request,
    service: Asked,
    caller: Who,
    rank: Rank = 0,
    attempt: Attempt = 0,
    offset: Annotated[int, Query(ge=0, le=LARGEST_NUMBER)] = 0,
    last_event_id: LastId = "",
) -> Response:
    """What one worker writes, as server-sent events whose ids are offsets, until it has ended."""
    record, name = await _worker_of(service, caller, job, attempt, rank)
    begin = int(last_event_id) if last_event_id else offset
    await _piece(service, record, name, begin, 1, 0.0)  # who is not there is said now, with a status
    return streamed(request, caller, _pieces(service, caller, name, begin))


async def _pieces(service: Service, caller: Caller, name: str, offset: int) -> AsyncIterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while caller.holds_still(service):
        try:
            piece = await service.backend.log(name, offset, PIECE_BYTES, TICK_S)
        except (NoSuchWorker, BackendUnreachable) as gone:
            yield f"event: gone\ndata: {json.dumps({'why': str(gone)})}\n\n"
            return
        offset = piece.next_offset
        text = decoder.decode(piece.data, piece.complete)
        if text:
            behind = offset - len(decoder.getstate()[0])
            yield f"id: {behind}\nevent: log\ndata: {json.dumps({'text': text, 'next_offset': behind})}\n\n"
        elif not piece.complete:
            yield ": still here\n\n"
        if piece.complete and len(piece.data) < PIECE_BYTES:
            yield f"event: end\ndata: {json.dumps({'next_offset': offset})}\n\n"
            return


async def _piece(
    service: Service, record: JobRecord, name: str, offset: int, limit: int, wait_s: float
) -> protocol.LogPiece:
    try:
        return await service.backend.log(name, offset, limit, wait_s)
    except NoSuchWorker:
        shown = state_of(service.state, record)
        if shown in (JobState.PENDING, JobState.STARTING):
            why = f"job {record.id} is {shown}, and a log begins with its worker"
            raise Problem(HTTPStatus.NOT_FOUND, f"no worker {name!r}: {why}") from None
        raise not_found("worker", name) from None
    except BackendUnreachable as gone:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(gone), RETRY_SOON) from None


def whole_characters(data: bytes) -> int:
    """How many of the bytes come before a character of UTF-8 whose rest is yet to come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-8:], False)
    return len(data) - len(decoder.getstate()[0])
