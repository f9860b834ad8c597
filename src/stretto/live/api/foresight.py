"""What has not happened yet: why a job waits and until when, and what would become of all under changes."""

import asyncio
import time
from dataclasses import replace
from http import HTTPStatus
from math import isfinite
from statistics import median_low
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter
from pydantic import BaseModel, Field

from stretto.live.api.access import Asked, Who
from stretto.live.api.jobs import job_of
from stretto.live.api.problems import Problem
from stretto.live.api.shapes import LARGEST_SUBMISSION, Submission
from stretto.live.decide.scheduling import scheduler_of
from stretto.live.foresight.explain import explained, question_of
from stretto.live.foresight.fork import NEW, Extra, Fork, fork_of
from stretto.live.foresight.whatif import DRAWS, Outlook, as_json, configured_as, outlook_of, span_json
from stretto.live.jobfile import JobSpec
from stretto.live.jobfile.submission import read_submission
from stretto.live.service import Service
from stretto.live.state.admission import admitted
from stretto.model import InputError

router = APIRouter(prefix="/api/v1", tags=["foresight"])

MOST_DRAWS = 64
LONGEST_S = 30.0  # of wall time for one answer; chosen
RECENT = 9  # decisions that say how long one takes: any single one may have waited for its turn; chosen
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Nodes(BaseModel):
    """Nodes that are not there."""

    gpu_type: Annotated[str, Field(min_length=1, max_length=63)]
    gpus: Annotated[int, Field(ge=1, le=62)]
    count: Annotated[int, Field(ge=1, le=10_000)] = 1


class Asks(BaseModel):
    """What is to be different; nothing: only what is foreseen as it is."""

    policy: Annotated[str, Field(max_length=255)] = ""
    settings: Annotated[dict[str, str], Field(max_length=64)] = {}
    nodes: Annotated[list[Nodes], Field(max_length=64)] = []
    job: Annotated[str, Field(max_length=LARGEST_SUBMISSION)] = ""  # the text of a job file
    draws: Annotated[int, Field(ge=1, le=MOST_DRAWS)] = DRAWS


def _turn() -> asyncio.Semaphore:
    """A what-if takes a core: who asks meanwhile waits."""
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(1))


def _ready(service: Service) -> None:
    if service.state.cluster is None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no node has shown itself yet")


@router.get("/jobs/{job}/explain")
async def explain(job: str, service: Asked, caller: Who) -> dict[str, Any]:
    """Why a job does not run, who holds what it waits for, and what would start it."""
    record = await job_of(service, caller, job)
    _ready(service)
    decider = service.decider
    question = question_of(
        service.state,
        record,
        service.clock.now_s(),
        decider.scheduler,
        decider.latest,
        decider.latest_snapshot,
        median_low(decider.took_ms[-RECENT:]) if decider.took_ms else 0.0,
    )
    question = replace(question, shown=service.described(record))
    answer = await asyncio.to_thread(explained, question)
    for holder in answer["holders"]:  # that their GPUs are held may be known to all, what for may not
        holding = service.state.jobs.get(holder["id"])
        if holding is None or not caller.owns(holding):
            holder |= {"id": "", "name": "", "user": ""}
    return answer


@router.post("/jobs/dry-run")
async def dry_run(submission: Submission, service: Asked, caller: Who) -> dict[str, Any]:
    """Where, when and at what size a job would start. Nothing is submitted."""
    _ready(service)
    spec, warnings = read_submission(submission.text, submission.name, submission.workdir)
    spec = admitted(service.state, spec, caller.user, caller.is_operator)
    past = await service.archive.named(spec, caller.user)
    fork = fork_of(service.state, service.clock.now_s(), more=(spec, caller.user), past=past)
    async with _turn():
        outlook = await asyncio.to_thread(_foreseen, fork, DRAWS)
    return {**_would_start(fork, outlook, spec, service.state.unix_s), "warnings": list(warnings)}


@router.post("/whatif")
async def whatif(asks: Asks, service: Asked, caller: Who) -> dict[str, Any]:
    """What would become of the jobs that are there, as it is and as it might be."""
    _ready(service)
    if ":" in asks.policy:  # a file would be code that runs in the service
        raise InputError(f"policy: expected the name of an installed policy, got {asks.policy!r}")
    more = None
    if asks.job:
        spec = read_submission(asks.job)[0]
        more = admitted(service.state, spec, caller.user, caller.is_operator), caller.user
    past = {} if more is None else await service.archive.named(*more)
    state, now_s = service.state, service.clock.now_s()
    present = fork_of(state, now_s)
    forks = [present]
    if asks.policy or asks.settings or asks.nodes or asks.job:
        extra = [Extra(one.gpu_type, one.gpus, one.count) for one in asks.nodes]
        configured = configured_as(state.configured, asks.policy, asks.settings)
        scheduler_of(configured)  # wrong words are said before anything is simulated
        other = fork_of(state, now_s, extra, more, past)
        forks.append(other if configured == state.configured else other.under(configured))
    unix_s = state.unix_s
    mine = {one.job.id for one in present.members if caller.owns(state.jobs[one.job.id])} | {NEW}
    left_out = {name: why for name, why in present.left_out.items() if caller.owns(state.jobs[name])}
    async with _turn():  # meanwhile jobs may end, and leave
        answers = [
            as_json(fork, await asyncio.to_thread(_foreseen, fork, asks.draws), unix_s) for fork in forks
        ]
    for answer in answers:  # means are of all jobs; single ones are shown to their owners
        answer["jobs"] = [one for one in answer["jobs"] if one["id"] in mine]
    return {
        "now": round(now_s + unix_s, 3),
        "present": answers[0],
        "changed": answers[1] if len(answers) > 1 else None,
        "left_out": left_out,
        "assumed": list(forks[-1].assumed),
    }


def _foreseen(fork: Fork, draws: int) -> Outlook:
    return outlook_of(fork, draws, None, time.perf_counter() + LONGEST_S)


def _would_start(fork: Fork, outlook: Outlook, spec: JobSpec, unix_s: float) -> dict[str, Any]:
    start, end = outlook.start(NEW), outlook.end(NEW)
    fate = outlook.draws[0].fates.get(NEW)
    first = fate.first if fate is not None else None
    cluster = fork.cluster
    return {
        "name": spec.name,
        "starts": isfinite(start.middle_s),
        "now": round(fork.now_s + unix_s, 3),
        "start": span_json(start, unix_s),
        "end": span_json(end, unix_s),
        "gpus": 0 if first is None else first.gpus,
        "gpu_type": "" if first is None else cluster.type_names[first.kind],
        "nodes": {}
        if first is None
        else {
            cluster.nodes[node].id: mask.bit_count()
            for node, mask in zip(first.nodes, first.masks, strict=True)
        },
        "assumed": list(fork.assumed),
    }
