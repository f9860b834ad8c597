"""The channel of workers: what generation they are in, and what they report (decision 0010)."""

from dataclasses import asdict
from http import HTTPStatus
from math import ceil
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from stretto.service.http.auth import Asked
from stretto.service.http.problems import Problem
from stretto.service.http.rate_limits import RateLimiter
from stretto.service.http.schemas import LARGEST_NUMBER
from stretto.service.service import Service
from stretto.service.state.events import Checkpointed, Joined, StoreOpened, WorkerReady
from stretto.service.state.records import JobRecord, Worker, WorkerPhase
from stretto.service.state.reported_metrics import checked_report

UNWANTED: dict[int | str, dict[str, Any]] = {
    410: {"description": "The job wants no such worker any more: it is to end"}
}

router = APIRouter(
    prefix="/api/v1/worker",
    tags=["worker"],
    responses=UNWANTED,
)

LONGEST_WAIT_S = 55.0  # of a long poll; chosen: proxies give up after a minute
Name = Annotated[str, Field(max_length=200)]
Number = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]


class Said(BaseModel):
    """What every message of a worker says."""

    worker: Name


class SaidStore(Said):
    """Rank 0 listens."""

    generation: Number
    address: Name


class SaidJoined(Said):
    """A worker trains in a generation."""

    generation: Number
    step: Number = 0
    lost_s: float = Field(0.0, ge=0.0, allow_inf_nan=False)


class SaidCheckpoint(Said):
    """A checkpoint is complete."""

    step: Number = 0
    path: Annotated[str, Field(max_length=4096)]


def speaker_of(service: Service, request: Request, name: str) -> tuple[JobRecord, Worker]:
    """The worker that speaks; the token that was shown at the door must be that of its job."""
    job = request.state.worker_job
    if name.split(".")[0] != job:
        raise Problem(
            HTTPStatus.FORBIDDEN, f"the token is that of job {job}, which has no worker {name[:80]!r}"
        )
    record = service.state.jobs.get(job)
    worker = record.workers.get(name) if record is not None else None
    if record is None or worker is None or record.has_ended or worker.life is WorkerPhase.ENDED:
        raise Problem(HTTPStatus.GONE, f"no worker {name[:80]!r} is wanted")
    return record, worker


def check_rate(request: Request, record: JobRecord) -> None:
    """Raise 429 for a job that says more than any training has to say; the SDK says it again later."""
    buckets: RateLimiter = request.app.state.said
    wait_s = buckets.take(record.id)
    if wait_s:
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"at most {buckets.per_s:g} messages a second of one job",
            {"retry-after": str(ceil(wait_s))},
        )


@router.get(
    "/generation",
    response_model=dict[str, Any],
    responses={204: {"description": "Nothing new so far: ask again"}},
)
async def generation(
    request: Request,
    worker: Annotated[str, Query(max_length=200)],
    service: Asked,
    after: Annotated[int, Query(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)] = 0,
    wait_s: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 25.0,
    store: bool = False,
) -> Response | dict[str, Any]:
    """The newest generation once it is later than `after`, or once its store is known."""

    def news() -> dict[str, Any] | None:
        record, speaker = speaker_of(service, request, worker)
        members = record.members
        if members.number <= after and not (store and members.number == after and members.store):
            if speaker.stopped and not members.number:
                raise Problem(HTTPStatus.GONE, f"worker {worker!r} is to end")
            return None
        if store and not members.store and not members.leaves:
            return None
        return generation_json(service, record)

    answer = await service.wait_for(news, min(wait_s, LONGEST_WAIT_S))
    return Response(status_code=HTTPStatus.NO_CONTENT) if answer is None else answer


def generation_json(service: Service, record: JobRecord) -> dict[str, Any]:
    """A generation as workers read it."""
    members, nodes = record.members, service.state.nodes
    counted: dict[int, int] = {}
    workers = []
    for name in members.workers:
        member = record.workers[name]
        local = counted.get(member.node, 0)
        counted[member.node] = local + 1
        workers.append(
            {
                "id": member.id,
                "node": nodes[member.node].name,
                "address": nodes[member.node].address or "127.0.0.1",
                "local_rank": local,
                "gpus": list(member.gpus),
                "gpu_type": nodes[member.node].gpu_type,
            }
        )
    until_s = members.at_s + record.spec.grace_period_s - service.clock.now_s()
    return {
        "generation": members.number,
        "workers": workers,
        "store": members.store or None,
        "source": members.source or None,
        "batch": None if members.batch is None else asdict(members.batch),
        "until_s": max(until_s, 0.0),
        "leave": members.leaves,
        "secret": service.context.meeting(record.id, record.attempt, members.number),
    }


@router.post("/ready", status_code=HTTPStatus.NO_CONTENT)
async def ready(said: Said, request: Request, service: Asked) -> None:
    """A newcomer can take part."""
    record, worker = speaker_of(service, request, said.worker)
    if worker.life is not WorkerPhase.READY:
        await service.record(WorkerReady(record.id, worker.id))


@router.post(
    "/store",
    status_code=HTTPStatus.NO_CONTENT,
    responses={409: {"description": "The generation has another rank 0"}},
)
async def opened(opening: SaidStore, request: Request, service: Asked) -> None:
    """Rank 0 of a generation has opened its store."""
    record, worker = speaker_of(service, request, opening.worker)
    members = record.members
    if opening.generation == members.number and members.workers and members.workers[0] != worker.id:
        raise Problem(HTTPStatus.CONFLICT, f"rank 0 of generation {members.number} is {members.workers[0]}")
    check_rate(request, record)
    if opening.generation == members.number and opening.address != members.store:
        await service.record(StoreOpened(record.id, opening.generation, opening.address))


@router.post(
    "/joined",
    status_code=HTTPStatus.NO_CONTENT,
    responses={409: {"description": "There is no such generation yet"}},
)
async def joined(said: SaidJoined, request: Request, service: Asked) -> None:
    """A worker trains in a generation."""
    record, worker = speaker_of(service, request, said.worker)
    if said.generation > record.members.number:
        raise Problem(HTTPStatus.CONFLICT, f"the newest generation is {record.members.number}")
    if said.generation > worker.joined:
        await service.record(Joined(record.id, worker.id, said.generation, said.step, said.lost_s))


@router.post("/report", status_code=HTTPStatus.NO_CONTENT)
async def report(said: dict[str, Any], request: Request, service: Asked) -> None:
    """What rank 0 says of the training."""
    record, _ = speaker_of(service, request, str(said.get("worker", "")))
    check_rate(request, record)
    await service.reports.take(record, checked_report(said))


@router.post("/checkpoint", status_code=HTTPStatus.NO_CONTENT)
async def checkpoint(said: SaidCheckpoint, request: Request, service: Asked) -> None:
    """A checkpoint is complete."""
    record, _ = speaker_of(service, request, said.worker)
    check_rate(request, record)
    await service.record(Checkpointed(record.id, said.step, said.path))
