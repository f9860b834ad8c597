"""What has not happened yet: why a job waits and until when, and what would become of all under changes."""

import asyncio
from dataclasses import replace
from http import HTTPStatus
from statistics import median_low
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from stretto.errors import InputError
from stretto.policies import policy_names
from stretto.service.forecast.explain import MOST_SIMULATED, explained, explained_at_once, question_of
from stretto.service.forecast.fork import NEW, ExtraNodes, fork_of
from stretto.service.forecast.simulate import (
    DRAWS,
    answered,
    check_settings,
    configured_as,
    foreseen,
    packed,
    would_start,
)
from stretto.service.http import schemas
from stretto.service.http.auth import Asked, Caller, Who
from stretto.service.http.pool_calls import LimitExceeded, read_job_file, while_listening, worked
from stretto.service.http.problems import Problem
from stretto.service.http.routes.jobs import job_of
from stretto.service.http.schemas import LARGEST_SUBMISSION, Asking, Submission
from stretto.service.pool.pool import Work
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.service import Service
from stretto.service.state.admission import admitted

router = APIRouter(prefix="/api/v1", tags=["foresight"])

MOST_DRAWS = 64
MOST_NODES = 10_000  # that a what-if may add; chosen
MOST_WITHOUT = 1_000  # jobs that a what-if may leave out; chosen
RECENT = 9  # decisions that say how long one takes: any single one may have waited for its turn; chosen


class Nodes(Asking):
    """Nodes that are not there."""

    gpu_type: Annotated[str, Field(min_length=1, max_length=63)]
    gpus: Annotated[int, Field(ge=1, le=62)]
    count: Annotated[int, Field(ge=1, le=MOST_NODES)] = 1


class Asks(Asking):
    """What is to be different; nothing: only what is foreseen as it is."""

    policy: Annotated[str, Field(max_length=255)] = ""
    settings: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)
    nodes: Annotated[list[Nodes], Field(max_length=64)] = Field(default_factory=list)
    job: Annotated[str, Field(max_length=LARGEST_SUBMISSION)] = ""  # the text of a job file
    # Ids of jobs that are to be away
    without: Annotated[list[Annotated[str, Field(max_length=255)]], Field(max_length=MOST_WITHOUT)] = Field(
        default_factory=list
    )
    draws: Annotated[int, Field(ge=1, le=MOST_DRAWS)] = DRAWS


def require_nodes(service: Service) -> None:
    """Raise 503 while no node has shown itself."""
    if service.state.cluster is None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no node has shown itself yet")


@router.get("/jobs/{job}/explain")
async def explain(job: str, request: Request, service: Asked, caller: Who) -> dict[str, Any]:
    """Why a job does not run, which jobs hold what it waits for, and what would start it."""
    record = await job_of(service, caller, job)
    require_nodes(service)
    scheduling, kept = service.scheduling, service.forecasts

    def at_once() -> dict[str, Any]:
        status, now_s = service.status_of(record), service.clock.now_s()
        seen = kept.latest, kept.made_s, kept.reached_s, kept.draws, kept.assumed
        told = explained_at_once(service.state, record, status, now_s, *seen)
        return {**_of_ones_own(service, caller, told), "held": kept.held()}

    if len(service.state.open) > MOST_SIMULATED:
        return at_once()

    async def prepare() -> Work:
        question = question_of(
            service.state,
            record,
            service.clock.now_s(),
            scheduling.scheduler,
            scheduling.latest,
            scheduling.latest_snapshot,
            median_low(scheduling.took_ms[-RECENT:]) if scheduling.took_ms else 0.0,
            scheduling.memory,
        )
        fork = replace(question.fork, corrections=kept.corrections)
        question = replace(question, status=service.status_of(record), fork=fork)
        return answered, (service.state.configured, await asyncio.to_thread(packed, explained, question))

    asked = worked(service.short_work, caller, "the explanation", prepare)
    try:
        answer: dict[str, Any] = await while_listening(request, asked)
    except LimitExceeded:  # a machine is busy, and the reason is known all the same
        return at_once()
    return {**_of_ones_own(service, caller, answer), "held": kept.held()}


def _of_ones_own(service: Service, caller: Caller, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer for a caller: that GPUs are held may be known to all, what for may not."""
    for holder in answer["holders"]:
        holding = service.state.jobs.get(holder["id"])
        if holding is None or not caller.owns(holding):
            holder |= {"id": "", "name": "", "user": ""}
    return answer


@router.post("/jobs/dry-run")
async def dry_run(submission: Submission, request: Request, service: Asked, caller: Who) -> dict[str, Any]:
    """Where, when and at what size a job would start. Nothing is submitted."""
    require_nodes(service)
    given = submission.text, submission.name, submission.workdir, submission.job_name
    spec, warnings = await while_listening(request, read_job_file(request, caller, *given))
    spec = await service.with_upload(spec, submission.upload, caller.user)
    spec = admitted(service.state, spec, caller.user, caller.is_operator)
    service.check_image(spec)
    service.check_level(spec)
    await service.check_secrets(spec, caller.user)

    async def prepare() -> Work:
        past = await service.archive.named(spec, caller.user)
        state, memory = service.state, service.scheduling.memory
        fork = fork_of(state, service.clock.now_s(), more=(spec, caller.user), past=past, memory=memory)
        fork = replace(fork, corrections=service.forecasts.corrections)
        return answered, (
            state.configured,
            await asyncio.to_thread(packed, would_start, fork, state.unix_s),
        )

    asked = worked(service.long_work, caller, "the dry run", prepare)
    answer = await while_listening(request, asked)
    return {"name": spec.name, **answer, "warnings": list(warnings)}


async def _away(service: Service, caller: Caller, jobs: list[str]) -> frozenset[str]:
    """Jobs of the caller's that are to be left out. Raises 404, and InputError for one that has ended."""
    for name in jobs:
        if (await job_of(service, caller, name)).has_ended:
            raise InputError(f"without: expected jobs that have not ended, got {name}")
    return frozenset(jobs)


@router.get("/policies", response_model=schemas.Policies)
async def policies(service: Asked, caller: Who) -> dict[str, Any]:
    """The policies that a what-if may name."""
    return {"policies": list(policy_names()), "current": service.state.configured.policy}


@router.post("/whatif")
async def whatif(asks: Asks, request: Request, service: Asked, caller: Who) -> dict[str, Any]:
    """What would become of the jobs that are there, as it is and as it might be."""
    require_nodes(service)
    if ":" in asks.policy:  # a file would be code that runs in the service
        raise InputError(f"policy: expected the name of an installed policy, got {asks.policy!r}")
    if sum(nodes.count for nodes in asks.nodes) > MOST_NODES:
        raise InputError(f"nodes: expected at most {MOST_NODES} in all")
    configured = configured_as(service.state.configured, asks.policy, asks.settings)
    if asks.policy or asks.settings:  # wrong words are said before anything is simulated
        check_settings(scheduler_of(configured), asks.settings)
    more = None
    if asks.job:
        read = await while_listening(request, read_job_file(request, caller, asks.job))
        more = admitted(service.state, read[0], caller.user, caller.is_operator), caller.user
    away = await _away(service, caller, asks.without)
    extra = [ExtraNodes(nodes.gpu_type, nodes.gpus, nodes.count) for nodes in asks.nodes]
    common: dict[str, Any] = {}
    mine = {NEW}

    async def prepare() -> Work:
        past = {} if more is None else await service.archive.named(*more)
        state, now_s, memory = service.state, service.clock.now_s(), service.scheduling.memory
        present = fork_of(state, now_s, memory=memory)
        forks = [present]
        if asks.policy or asks.settings or extra or more or away:
            other = fork_of(state, now_s, extra, more, past, memory, away)
            forks.append(other if configured == state.configured else other.under(configured))
        mine.update(member.job.id for member in present.members if caller.owns(state.jobs[member.job.id]))
        hidden = {name for name in present.left_out if not caller.owns(state.jobs[name])}
        common["now"] = round(now_s + state.unix_s, 3)
        common["left_out"] = {name: why for name, why in present.left_out.items() if name not in hidden}
        common["assumed"] = list(forks[-1].assumed)
        forks = [replace(fork, corrections=service.forecasts.corrections) for fork in forks]
        question = await asyncio.to_thread(packed, foreseen, forks, asks.draws, state.unix_s)
        return answered, (state.configured, question)

    call = worked(service.long_work, caller, "the what-if", prepare)
    answers = await while_listening(request, call)
    for answer in answers:  # means are of all jobs; single ones are shown to their owners
        answer["jobs"] = [job for job in answer["jobs"] if job["id"] in mine]
    return {
        "now": common["now"],
        "present": answers[0],
        "changed": answers[1] if len(answers) > 1 else None,
        "left_out": common["left_out"],
        "assumed": common["assumed"],
    }
