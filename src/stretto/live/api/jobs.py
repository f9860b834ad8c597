"""Jobs: submitted, shown, changed, followed."""

import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from stretto.live.api.access import Caller, caller_of, service_of
from stretto.live.api.problems import Problem, not_found
from stretto.live.backends.protocol import BackendUnreachable, NoSuchWorker
from stretto.live.events import Cancelled, Event, Held, Requeued, Scaled
from stretto.live.jobfile.submission import read_submission
from stretto.live.records import JobRecord
from stretto.live.service import Service

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

LARGEST_SUBMISSION = 1 << 20  # bytes; a file has its scripts beside it, not in it
MOST_JOBS = 1000  # of one page
TICK_S = 15.0  # between two comments on a quiet stream, so that nobody in between hangs up

Asked = Annotated[Service, Depends(service_of)]
Who = Annotated[Caller, Depends(caller_of)]


class Submission(BaseModel):
    """A job file, or one that a neighbouring system would take."""

    text: Annotated[str, Field(max_length=LARGEST_SUBMISSION)]
    name: Annotated[str, Field(max_length=255)] = "job file"  # what messages call it


class Sizes(BaseModel):
    """Other bounds for the number of GPUs."""

    min_gpus: Annotated[int, Field(ge=1, le=1 << 20)]
    max_gpus: Annotated[int, Field(ge=1, le=1 << 20)]


def _job(service: Service, caller: Caller, name: str) -> JobRecord:
    record = service.state.jobs.get(name)
    if record is None or not caller.owns(record):
        raise not_found("job", name)
    return record


@router.post("", status_code=HTTPStatus.CREATED)
async def submit(
    submission: Submission,
    service: Asked,
    caller: Who,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
) -> dict[str, Any]:
    """The job is ours once this is answered, whatever happens next."""
    spec, warnings = read_submission(submission.text, submission.name)
    names = await service.submit(spec, caller.user, idempotency_key)
    return {**service.described(service.state.jobs[names[0]]), "warnings": list(warnings)}


@router.get("")
async def listed(
    service: Asked,
    caller: Who,
    everybody: bool = False,
    ended: bool = False,
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=MOST_JOBS)] = 200,
) -> dict[str, Any]:
    """Jobs by submission; `next` is the cursor of the next page."""
    state = service.state
    start = state.jobs[after].number if after in state.jobs else -1
    records = (
        record
        for record in (state.jobs.values() if ended else state.open_jobs())
        if record.number > start and (everybody or record.user == caller.user)
    )
    page: list[JobRecord] = []
    for record in records:
        if len(page) == limit:
            return {"jobs": [service.described(one) for one in page], "next": page[-1].id}
        page.append(record)
    return {"jobs": [service.described(one) for one in page], "next": None}


@router.get("/{job}")
async def described(job: str, service: Asked, caller: Who) -> dict[str, Any]:
    """One job."""
    return service.described(_job(service, caller, job))


@router.get("/{job}/wait")
async def awaited(
    job: str, service: Asked, caller: Who, wait_s: Annotated[float, Query(ge=0, le=60)] = 30.0
) -> dict[str, Any]:
    """One job, as soon as it has ended or after `wait_s`."""
    record = _job(service, caller, job)
    await service.wait_for(lambda: True if record.has_ended else None, wait_s)
    return service.described(record)


async def _change(service: Service, caller: Caller, job: str, *events: Event) -> dict[str, Any]:
    record = _job(service, caller, job)
    if record.has_ended:
        raise Problem(HTTPStatus.CONFLICT, f"job {job} has ended: {record.state}")
    await service.record(*events)
    return service.described(record)


@router.post("/{job}/cancel")
async def cancel(job: str, service: Asked, caller: Who) -> dict[str, Any]:
    """End a job, whatever it does."""
    return await _change(service, caller, job, Cancelled(job, f"cancelled by {caller.user or 'its owner'}"))


@router.post("/{job}/hold")
async def hold(job: str, service: Asked, caller: Who) -> dict[str, Any]:
    """Keep a job from running until it is released."""
    return await _change(service, caller, job, Held(job, True))


@router.post("/{job}/release")
async def release(job: str, service: Asked, caller: Who) -> dict[str, Any]:
    """Let a held job run again."""
    return await _change(service, caller, job, Held(job, False))


@router.post("/{job}/requeue")
async def requeue(job: str, service: Asked, caller: Who) -> dict[str, Any]:
    """End a job's attempt and let it wait anew."""
    return await _change(service, caller, job, Requeued(job, 0.0, "requeued by hand"))


@router.post("/{job}/scale")
async def scale(job: str, sizes: Sizes, service: Asked, caller: Who) -> dict[str, Any]:
    """Give an elastic job other bounds."""
    record = _job(service, caller, job)
    if record.spec.elastic is None:
        raise Problem(HTTPStatus.CONFLICT, f"job {job} is not elastic: its size cannot change")
    if sizes.min_gpus > sizes.max_gpus:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"min_gpus must be at most max_gpus, got {sizes.min_gpus} and {sizes.max_gpus}",
        )
    return await _change(service, caller, job, Scaled(job, sizes.min_gpus, sizes.max_gpus))


@router.get("/{job}/log")
async def log(
    job: str,
    service: Asked,
    caller: Who,
    rank: Annotated[int, Query(ge=0)] = 0,
    attempt: Annotated[int, Query(ge=0)] = 0,
    offset: int = 0,
    limit: Annotated[int, Query(ge=1, le=1 << 20)] = 1 << 16,
    wait_s: Annotated[float, Query(ge=0, le=55)] = 0.0,
) -> dict[str, Any]:
    """Bytes of what one worker has written, as text; `next_offset` is where to read on."""
    record = _job(service, caller, job)
    name = f"{job}.{attempt or max(record.attempt, 1)}.{rank}"
    try:
        piece = await service.backend.log(name, offset, limit, wait_s)
    except NoSuchWorker:
        raise not_found("worker", name) from None
    except BackendUnreachable as gone:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(gone)) from None
    return {
        "worker": name,
        "text": piece.data.decode("utf-8", "replace"),
        "offset": piece.offset,
        "next_offset": piece.next_offset,
        "complete": piece.complete,
    }


@router.get("/{job}/events")
async def events(
    job: str, request: Request, service: Asked, caller: Who, after: int = 0, follow: bool = False
) -> StreamingResponse:
    """What has happened to a job, as server-sent events; with `follow`, as it happens."""
    record = _job(service, caller, job)
    return StreamingResponse(_events(service, record, request, after, follow), media_type="text/event-stream")


async def _events(
    service: Service, record: JobRecord, request: Request, after: int, follow: bool
) -> AsyncIterator[str]:
    async for seq, at_s, kind, body in service.history(record.id, after, follow, TICK_S):
        if await request.is_disconnected():
            return
        if not kind:
            yield ": still here\n\n"
            continue
        said = {"at_s": at_s, "kind": kind, **{k: v for k, v in body.items() if k not in ("spec", "secret")}}
        yield f"id: {seq}\nevent: {kind}\ndata: {json.dumps(said)}\n\n"
