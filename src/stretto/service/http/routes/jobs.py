"""Jobs: submitted, shown, changed, followed."""

import asyncio
from collections.abc import Callable, Iterator
from http import HTTPStatus
from itertools import islice
from math import ceil
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from stretto.jobfile.to_job import scaled_bounds
from stretto.service.http import schemas
from stretto.service.http.audit import did
from stretto.service.http.auth import Asked, Caller, Role, Who, require
from stretto.service.http.commit import durably
from stretto.service.http.pool_calls import read_job_file
from stretto.service.http.problems import Json, Problem, not_found
from stretto.service.http.routes.budgets import budgets_in_words
from stretto.service.http.sse import STREAM, After, LastId, happening, start_of, streamed
from stretto.service.scheduling.estimates import worker_gpus_of
from stretto.service.scheduling.job_serving import serving_of
from stretto.service.scheduling.job_speeds import speeds_of
from stretto.service.service import Service, TooManyOpen, tasks_of
from stretto.service.state.admission import check_new_priority
from stretto.service.state.events import Cancelled, Event, Held, Prioritised, Requeued, Scaled
from stretto.service.state.records import JobRecord
from stretto.service.state.status import JobState, JobStatus, state_of

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

MOST_JOBS = 1000  # of one page
AT_ONCE = 100  # jobs that are described without a pause: some milliseconds
LAST_STATES = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})


async def job_of(service: Service, caller: Caller, word: str) -> JobRecord:
    """A job that the caller may see: by id, or by the name of the newest of the caller's own.

    Raises 404, also for one that belongs to another user, and 422 for an array of several.
    """
    record = await service.archive.job(word)
    tasks = [record] if record is not None else await jobs_of(service, caller, word)
    if len(tasks) > 1:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{word} is an array of {len(tasks)} jobs: expected one of {tasks[0].id} to {tasks[-1].id}",
        )
    return _seen_by(caller, tasks, word)[0]


async def jobs_of(service: Service, caller: Caller, word: str) -> list[JobRecord]:
    """A job, or the tasks of an array: by id, or by the name of the newest of one's own. Raises 404."""
    return _seen_by(caller, await service.archive.meant(word, caller.user), word)


def _seen_by(caller: Caller, records: list[JobRecord], word: str) -> list[JobRecord]:
    if not records:
        raise not_found("job", word)
    if not caller.owns(records[0]):
        raise not_found("job", word, refusal=f"job of {records[0].user}")
    return records


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    response_model=schemas.Accepted,
    responses={
        200: {"model": schemas.Accepted, "description": "The key was used before, for this job"},
        201: {"description": "The job is ours, whatever happens next"},
        409: {"description": "There are too many jobs that have not ended"},
        413: {"description": "The body is too large"},
        429: {"description": "Too many submissions; Retry-After says when"},
    },
)
async def submit(
    submission: schemas.Submission,
    request: Request,
    idempotency_key: Annotated[
        str,
        Header(
            pattern=r"^[\x21-\x7e]{0,200}$",
            description="the same key submits once, however often it is tried",
        ),
    ] = "",
) -> Response:
    """The job is ours once this is answered, whatever happens next."""
    # Taken from the request: a dependency of each would cost as much again as reading the body.
    service: Service = request.app.state.service
    caller: Caller = request.state.caller
    check_submission_rate(request, caller)
    meters = request.app.state.meters
    given = submission.text, submission.name, submission.workdir, submission.job_name
    try:
        spec, warnings = await read_job_file(request, caller, *given)
        check_task_rate(request, caller, tasks_of(spec))
        spec = await service.with_upload(spec, submission.upload, caller.user)
        accepted = await durably(
            request, service.submit(spec, caller.user, idempotency_key, caller.is_operator)
        )
    except TooManyOpen as full:
        meters.submits.labels("refused").inc()
        raise Problem(HTTPStatus.CONFLICT, str(full)) from None
    except Exception:
        meters.submits.labels("refused").inc()
        raise
    meters.submits.labels("again" if accepted.again else "accepted").inc()
    first = await service.archive.job(accepted.names[0])
    assert first is not None
    return Json(
        {
            **service.status_of(first).to_json(),
            "ids": list(accepted.names),
            "warnings": list(warnings),
            "outlook": await service.outlook_of(first) if first.job.rewards else None,
        },
        status_code=HTTPStatus.OK if accepted.again else HTTPStatus.CREATED,
        headers={"location": f"/api/v1/jobs/{first.id}"},
    )


def check_submission_rate(request: Request, caller: Caller) -> None:
    """Raise 429 for a user who submits more often than one may; a batch is one submission."""
    meters, buckets = request.app.state.meters, request.app.state.submits
    wait_s = buckets.take(caller.user) if caller.token is not None else 0.0
    if wait_s:
        meters.submits.labels("refused").inc()
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"at most {buckets.per_s:g} submissions a second of one user",
            {"retry-after": str(ceil(wait_s))},
        )


def check_task_rate(request: Request, caller: Caller, tasks: int) -> None:
    """Raise 429 for a user who submits more jobs than one may, the tasks of arrays counted one by one."""
    buckets = request.app.state.tasks
    wait_s = buckets.take(caller.user, tasks) if caller.token is not None else 0.0
    if wait_s:
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"at most {buckets.per_s:g} jobs a second of one user, and {buckets.burst} at once",
            {"retry-after": str(ceil(min(wait_s, 3_600.0)))},
        )


@router.get("", response_model=schemas.JobPage)
async def listed(
    service: Asked,
    caller: Who,
    everybody: Annotated[bool, Query(description="not only one's own: for operators")] = False,
    ended: Annotated[bool, Query(description="also those that have ended")] = False,
    state: Annotated[list[JobState], Query(max_length=16)] = [],  # noqa: B006
    user: Annotated[str | None, Query(max_length=64)] = None,
    queue: Annotated[str | None, Query(max_length=63)] = None,
    newest: Annotated[bool, Query(description="the latest first")] = False,
    after: Annotated[str, Query(max_length=64, description="the `next` of the page before")] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_JOBS)] = 200,
) -> Response:
    """Jobs by submission, or from the latest back; `next` is the cursor of the next page."""
    if everybody or (user is not None and user != caller.user):
        require(caller, Role.OPERATOR, "list jobs of others")
    owner = user if user is not None else None if everybody else caller.user
    start: int | None = None
    if after:
        last = await service.archive.job(after)
        if last is None or not caller.owns(last):
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"after: expected the `next` of a page, got {after!r}"
            )
        start = last.number
    words = frozenset(state)

    def fits(record: JobRecord) -> bool:
        if owner is not None and record.user != owner:
            return False
        if queue is not None and record.queue != queue:
            return False
        return not words or state_of(service.state, record).value in words

    page = list(
        islice(filter(fits, _behind(service, start, ended or bool(words & LAST_STATES), newest)), limit + 1)
    )
    if (ended and not words) or words & LAST_STATES:
        there = {record.id for record in page}
        left = await service.archive.left(
            lambda table: table.page(
                limit + 1,
                after=start,
                newest_first=newest,
                owner=owner,
                queue=queue,
                states=words & LAST_STATES,
            )
        )
        page += [record for record in left if record.id not in there]
        page.sort(key=lambda record: record.number, reverse=newest)
    shown = []
    for number, record in enumerate(page[:limit], start=1):
        shown.append(service.status_of(record).to_json())
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)  # others come in between
    return Json({"jobs": shown, "next": shown[-1]["id"] if len(page) > limit else None})


def _behind(service: Service, start: int | None, ended: bool, newest: bool) -> Iterator[JobRecord]:
    """Jobs of the state with a number above `start`, in order; or below it, from the newest back."""
    state = service.state
    if ended:
        every = reversed(state.jobs.values()) if newest else iter(state.jobs.values())
    else:
        numbers = reversed(state.open) if newest else iter(state.open)
        every = (state.jobs[name] for _, name in numbers)
    if start is None:
        return every
    return (record for record in every if (record.number < start if newest else record.number > start))


@router.get("/{job}", response_model=schemas.Described)
async def described(job: str, service: Asked, caller: Who) -> Response:
    """One job, with its workers' size, what policies are shown of its speed, and where the policy put it."""
    record = await job_of(service, caller, job)
    speeds = speeds_of(service.state, record)
    shown = service.status_of(record).to_json()
    standing = service.scheduling.standing_of(record)
    outlook = await service.outlook_of(record)
    table = None if speeds is None else speeds.to_json()
    cluster, allowed = service.state.cluster, record.job.gpu_types
    by_type = (
        {} if cluster is None else dict(zip(cluster.type_names, worker_gpus_of(record, cluster), strict=True))
    )
    sizes = {gpu_type: gpus for gpu_type, gpus in by_type.items() if not allowed or gpu_type in allowed}
    budgets = budgets_in_words(service, record)
    serving = serving_of(service.state, service.reports.shown(record))
    served = None if serving is None else serving.to_json()
    rest = {"speeds": table, "serving": served, "outlook": outlook, "standing": standing, "budgets": budgets}
    unix_at = service.state.calendar.unix_at
    attempts = [
        {"number": number, "began_s": at_s, "began_unix_s": unix_at(at_s), "why": why}
        for number, at_s, why in record.attempts
    ]
    times = {
        "submitted_unix_s": unix_at(record.job.submitted_s),
        "ended_unix_s": unix_at(record.ended_s) if record.has_ended else None,
    }
    return Json({**shown, "gpus_per_worker": sizes, **rest, **times, "attempts": attempts})


@router.get("/{job}/wait", response_model=JobStatus)
async def awaited(
    job: str,
    service: Asked,
    caller: Who,
    wait_s: Annotated[float, Query(ge=0, le=60, allow_inf_nan=False)] = 30.0,
) -> Response:
    """One job, as soon as it has ended or after `wait_s`."""
    record = await job_of(service, caller, job)
    await service.wait_for(lambda: True if record.has_ended else None, wait_s)
    return Json(service.status_of(record).to_json())


CONFLICT: dict[int | str, dict[str, Any]] = {409: {"description": "The job cannot be changed so any more"}}


async def _change(
    request: Request, caller: Caller, word: str, what: str, event: Callable[[str], Event]
) -> Response:
    service: Service = request.app.state.service
    records = await jobs_of(service, caller, word)
    going = [record for record in records if not record.has_ended]
    if not going:
        ended = (
            f"job {word} has ended: {records[0].state}" if len(records) == 1 else f"array {word} has ended"
        )
        raise Problem(HTTPStatus.CONFLICT, ended)
    owner = going[0].user
    noted = [did(caller, what, f"job {word} of {owner}")] if owner != caller.user else []
    await durably(request, service.record(*(event(record.id) for record in going), *noted))
    return Json({**service.status_of(going[0]).to_json(), "ids": [record.id for record in going]})


@router.post("/{job}/cancel", response_model=schemas.Changed, responses=CONFLICT)
async def cancel(job: str, request: Request, caller: Who) -> Response:
    """End a job, or all tasks of an array, whatever they do."""
    why = f"cancelled by {caller.user or 'its owner'}"
    return await _change(request, caller, job, "cancel", lambda name: Cancelled(name, why))


@router.post("/{job}/hold", response_model=schemas.Changed, responses=CONFLICT)
async def hold(job: str, request: Request, caller: Who) -> Response:
    """Keep a job, or all tasks of an array, from running until released."""
    return await _change(request, caller, job, "hold", lambda name: Held(name, True))


@router.post("/{job}/release", response_model=schemas.Changed, responses=CONFLICT)
async def release(job: str, request: Request, caller: Who) -> Response:
    """Let a held job, or all tasks of an array, run again."""
    return await _change(request, caller, job, "release", lambda name: Held(name, False))


@router.post("/{job}/requeue", response_model=schemas.Changed, responses=CONFLICT)
async def requeue(job: str, request: Request, caller: Who) -> Response:
    """End the attempt of a job, or of all tasks of an array, and let them wait anew."""
    return await _change(
        request, caller, job, "requeue", lambda name: Requeued(name, 0.0, "requeued by hand")
    )


@router.post("/{job}/scale", response_model=schemas.Changed, responses=CONFLICT)
async def scale(job: str, sizes: schemas.Sizes, request: Request, service: Asked, caller: Who) -> Response:
    """Give an elastic job other bounds."""
    record = await job_of(service, caller, job)
    if record.spec.elastic is None:
        raise Problem(HTTPStatus.CONFLICT, f"job {job} is not elastic: its size cannot change")
    lowest, highest, each = sizes.min_gpus, sizes.max_gpus, record.spec.resources.gpus_per_worker
    if lowest > highest:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"min_gpus must be at most max_gpus, got {lowest} and {highest}",
        )
    if lowest % each or highest % each:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"sizes must be whole workers of {each} GPUs, got {lowest} and {highest}",
        )
    if (cluster := service.state.cluster) is not None:
        lowest, highest = scaled_bounds(record.spec, lowest, highest, cluster, record.job.gpu_types)
    return await _change(request, caller, job, "scale", lambda name: Scaled(name, lowest, highest))


@router.post("/{job}/priority", response_model=schemas.Changed, responses=CONFLICT)
async def prioritise(
    job: str, asked: schemas.Priority, request: Request, service: Asked, caller: Who
) -> Response:
    """Let a job come sooner or later; larger is sooner. Above 0 is for operators."""
    check_new_priority(await jobs_of(service, caller, job), asked.priority, caller.is_operator)
    return await _change(request, caller, job, "priority", lambda name: Prioritised(name, asked.priority))


@router.get(
    "/{job}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {STREAM: {}}}, 204: {"description": "Nothing can follow: do not come back"}},
)
async def events(
    job: str,
    request: Request,
    service: Asked,
    caller: Who,
    after: After = 0,
    follow: bool = False,
    words: Annotated[bool, Query(description="each with `words`: what happened, and what of it")] = False,
    last_event_id: LastId = "",
) -> Response:
    """What has happened to a job, as server-sent events; with `follow`, until it has ended."""
    record = await job_of(service, caller, job)
    feed = request.app.state.feed
    about = {record.id, record.array} if record.array else {record.id}
    seen = start_of(after, last_event_id, feed)
    if last_event_id and follow and record.has_ended:
        over = service.state.seq
        if seen >= over or not (await feed.after(seen, about))[1]:
            return Response(status_code=HTTPStatus.NO_CONTENT)
    texts = happening(service, feed, caller, seen, follow, None, about, lambda: record.has_ended, words)
    return streamed(request, caller, texts)
