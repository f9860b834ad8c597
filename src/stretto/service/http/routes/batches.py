"""Many submissions in one request: each is taken or refused by itself, and all become durable together."""

import asyncio
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from stretto.errors import InputError
from stretto.service.http import schemas
from stretto.service.http.auth import Asked, Caller, Who
from stretto.service.http.commit import durably
from stretto.service.http.pool_calls import read_job_file
from stretto.service.http.problems import LONGEST_DETAIL, Json, Problem
from stretto.service.http.routes.jobs import check_submission_rate, check_task_rate
from stretto.service.service import Begun, TooManyOpen, tasks_of
from stretto.service.state.admission import NotPermitted

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

AT_ONCE = 10  # submissions that are read without a pause: some milliseconds


@router.post(
    "/batch",
    response_model=schemas.Outcomes,
    responses={
        200: {"description": "What became of each, in their order: some may be refused"},
        413: {"description": "The body is too large"},
        429: {"description": "Too many submissions; Retry-After says when"},
    },
)
async def submit_batch(batch: schemas.Batch, request: Request, service: Asked, caller: Who) -> Response:
    """Every job whose status is 201 is ours once this is answered, whatever becomes of the others."""
    check_submission_rate(request, caller)
    return Json({"jobs": await durably(request, _outcomes(batch, request, caller))})


async def _outcomes(batch: schemas.Batch, request: Request, caller: Caller) -> list[dict[str, Any]]:
    """What becomes of each, once all are durable."""
    begun: list[tuple[Begun, tuple[str, ...]] | dict[str, Any]] = []
    latest: asyncio.Future[int] | None = None  # what is written after all others of this batch
    for number, submission in enumerate(batch.jobs, start=1):
        try:
            newest, warnings = await _begun(request, caller, submission, latest)
        except (InputError, HTTPException) as refusal:
            begun.append(_refused(request, caller, refusal))
        else:
            begun.append((newest, warnings))
            latest = newest.writing or latest
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)  # others come in between
    return [each if isinstance(each, dict) else await _taken(request, *each) for each in begun]


async def _begun(
    request: Request,
    caller: Caller,
    submission: schemas.KeyedSubmission,
    latest: "asyncio.Future[int] | None",
) -> tuple[Begun, tuple[str, ...]]:
    """The submission, with warnings. One that comes after other jobs may name those of the same batch."""
    service = request.app.state.service
    given = submission.text, submission.name, submission.workdir, submission.job_name
    spec, warnings = await read_job_file(request, caller, *given)
    check_task_rate(request, caller, tasks_of(spec))
    spec = await service.with_upload(spec, submission.upload, caller.user)
    if spec.depends_on and latest is not None:
        await asyncio.shield(latest)
    return await service.begin_submission(spec, caller.user, submission.key, caller.is_operator), warnings


async def _taken(request: Request, begun: Begun, warnings: tuple[str, ...]) -> dict[str, Any]:
    accepted = await begun.accepted()
    request.app.state.meters.submits.labels("again" if accepted.again else "accepted").inc()
    first = await request.app.state.service.archive.job(accepted.names[0])
    return {
        "status": HTTPStatus.OK if accepted.again else HTTPStatus.CREATED,
        "id": first.id,
        "array": first.array,
        "ids": list(accepted.names),
        "warnings": list(warnings),
        "detail": "",
    }


def _refused(request: Request, caller: Caller, refusal: InputError | HTTPException) -> dict[str, Any]:
    """What a request of its own would have been answered."""
    app = request.app.state
    app.meters.submits.labels("refused").inc()
    status, detail = HTTPStatus.UNPROCESSABLE_ENTITY, str(refusal)
    if isinstance(refusal, HTTPException):
        status, detail = HTTPStatus(refusal.status_code), str(refusal.detail)
    elif isinstance(refusal, TooManyOpen):
        status = HTTPStatus.CONFLICT
    elif isinstance(refusal, NotPermitted):
        status = HTTPStatus.FORBIDDEN
        app.audit.refused(caller, refusal.what, request.url.path)
    if isinstance(refusal, Problem) and refusal.refusal:
        app.audit.refused(caller, refusal.refusal, request.url.path)
    nothing = {"id": "", "array": "", "ids": [], "warnings": []}
    return {"status": status, **nothing, "detail": detail[:LONGEST_DETAIL]}
