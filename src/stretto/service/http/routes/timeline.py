"""What jobs have held over time, and would hold: the picture of an elastic scheduler."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from stretto.model import FloatArray
from stretto.service.eventlog.archive import spell_of
from stretto.service.forecast.fork import Fork, fork_of
from stretto.service.forecast.job_sizes import MOST_JOBS, Ahead, sizes_ahead
from stretto.service.forecast.simulate import answered, packed
from stretto.service.http import over_time_schemas
from stretto.service.http.auth import Asked, Caller, Who
from stretto.service.http.pool_calls import while_listening, worked
from stretto.service.http.problems import Json
from stretto.service.http.routes.forecast import require_nodes
from stretto.service.pool.pool import Work
from stretto.service.service import Service
from stretto.service.state.records import JobRecord
from stretto.service.state.size_changes import Size, sizes_before, sizes_of
from stretto.service.state.usage import US_PER_S, Spell

router = APIRouter(prefix="/api/v1", tags=["foresight"])

STEPS = 240  # of time; chosen: a picture has some hundred pixels for them
MOST_AREAS = 12  # jobs that have an area of their own; chosen: more cannot be told apart
MOST_STEPS = 400  # of one job, the newest; chosen
PAUSE_EVERY_S = 0.005  # of work in the event loop; chosen: others come in between
MOST_RETIRED = 50_000  # rows of usage of jobs that have left memory, that are looked at; chosen

Hours = Annotated[float, Query(gt=0, le=168, allow_inf_nan=False, description="how far back, in hours")]


@dataclass(frozen=True, slots=True)
class Row:
    """One job, and what it has held."""

    job: str
    user: str
    queue: str
    sizes: Sequence[Size]
    record: JobRecord | None  # None: it has left memory
    until_s: float  # up to when the last size holds


@dataclass
class Sums:
    """GPUs that were held together, as changes at times."""

    times: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add what a job has held."""
        before = 0.0
        for size in row.sizes:
            self.times.append(size.at_s)
            self.changes.append(size.gpus - before)
            before = size.gpus
        self.times.append(row.until_s)
        self.changes.append(-before)

    def means(self, edges: FloatArray) -> list[float]:
        """The mean between each two edges."""
        order = np.argsort(self.times, kind="stable")
        times, changes = np.array(self.times)[order], np.array(self.changes)[order]
        gpus = np.append(0.0, np.cumsum(changes))
        charged = np.append(0.0, np.cumsum(changes * times))
        index = np.searchsorted(times, edges)
        gpu_s = gpus[index] * edges - charged[index]  # since long ago
        means = np.diff(gpu_s) / np.diff(edges)
        return [float(mean) for mean in np.round(np.maximum(means, 0.0), 3)]


@router.get("/timeline", response_model=over_time_schemas.Timeline)
async def timeline(
    service: Asked,
    caller: Who,
    hours: Hours = 4.0,
    find: Annotated[str, Query(max_length=255, description="part of a name, user, queue or id")] = "",
    queue: Annotated[str, Query(max_length=255, description="jobs of this queue alone")] = "",
    job: Annotated[str, Query(max_length=255, description="this job alone")] = "",
    limit: Annotated[int, Query(ge=0, le=MOST_JOBS)] = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """How many GPUs jobs have held, when that changed and why; single jobs are shown to their owners."""
    state = service.state
    now_s = max(service.clock.now_s(), state.at_s)
    from_s = max(now_s - hours * 3600.0, 0.0)
    edges = from_s + (now_s - from_s) * np.arange(STEPS + 1) / STEPS
    rows = await _rows(service, from_s, now_s)
    total = Sums()
    for row in rows:
        total.add(row)
    shown = [row for row in rows if caller.sees(row.user) and _fits(row, find.lower(), queue, job)]
    shown.sort(key=_order)
    most = sorted(shown, key=lambda row: -_gpu_s(row, from_s))[:MOST_AREAS]
    waiting = sum(row.record is not None and not row.sizes for row in shown)
    return Json(
        {
            "now_s": now_s,
            "unix_s": state.calendar.unix_at(now_s),
            "from_s": from_s,
            "step_s": (now_s - from_s) / STEPS,
            "gpus": sum(node.gpus - node.others for node in state.nodes if node.up and node.is_ours),
            "held": total.means(edges) if now_s > from_s else [],
            "areas": [
                {"id": row.job, "name": _name(row), "held": _means(row, edges)} for row in most if row.sizes
            ],
            "total": len(shown),
            "waiting": waiting,
            "jobs": [_shown(row, from_s) for row in shown[offset : offset + limit]],
        }
    )


async def _rows(service: Service, from_s: float, now_s: float) -> list[Row]:
    """All jobs that were there since a time, in no order."""
    state, unix_s = service.state, service.state.unix_s
    rows: list[Row] = []
    known: set[int] = set()
    paused = time.perf_counter()
    for record in list(state.jobs.values()):
        known.add(record.number)
        if record.has_ended and record.ended_s < from_s:
            continue
        until_s = record.ended_s if record.has_ended else now_s
        rows.append(Row(record.id, record.user, record.queue, sizes_of(record, unix_s), record, until_s))
        if time.perf_counter() - paused > PAUSE_EVERY_S:
            await asyncio.sleep(0)
            paused = time.perf_counter()
    if state.past.spells:
        from_us = round((from_s + unix_s) * US_PER_S)
        rows += await asyncio.to_thread(_retired, service, from_us, unix_s, now_s, known)
    return rows


def _retired(service: Service, from_us: int, unix_s: float, now_s: float, known: set[int]) -> list[Row]:
    """Jobs that have left memory, as their usage tells."""
    spells: dict[str, tuple[str, list[Spell]]] = {}
    used = service.log_writer.store.ended.used(from_us, None)
    for count, (number, job, owner, row) in enumerate(used):
        if count == MOST_RETIRED:
            break
        if number not in known:
            spells.setdefault(job, (owner, []))[1].append(spell_of(row))
    rows = []
    for job, (owner, parts) in spells.items():
        until_s = max(part.until_us for part in parts) / US_PER_S - unix_s
        rows.append(Row(job, owner, parts[-1].queue, list(sizes_before(parts, unix_s, now_s)), None, until_s))
    return rows


def _fits(row: Row, words: str, queue: str, job: str) -> bool:
    if (job and row.job != job) or (queue and row.queue != queue):
        return False
    return not words or words in f"{row.job} {row.user} {_name(row)} {row.queue}".lower()


def _order(row: Row) -> tuple[int, float, str]:
    """Those that hold GPUs, by their start; those that wait; those that have ended, last first."""
    is_over = row.record is None or row.record.has_ended
    if is_over:
        return 2, -row.until_s, row.job
    if row.record is not None and row.record.accounting.held_gpus:
        return 0, row.sizes[0].at_s, row.job
    return 1, 0.0 if row.record is None else float(row.record.number), row.job


def _gpu_s(row: Row, from_s: float) -> float:
    """GPU time since then."""
    if not row.sizes:
        return 0.0
    ends = [*(size.at_s for size in row.sizes[1:]), row.until_s]
    return sum(
        size.gpus * max(end_s - max(size.at_s, from_s), 0.0)
        for size, end_s in zip(row.sizes, ends, strict=True)
    )


def _means(row: Row, edges: FloatArray) -> list[float]:
    sums = Sums()
    sums.add(row)
    return sums.means(edges)


def _name(row: Row) -> str:
    return row.job if row.record is None else row.record.spec.name


def _shown(row: Row, from_s: float) -> dict[str, Any]:
    """A job; of what it held before the picture begins, the last size only."""
    record = row.record
    sizes = [
        size
        for size, later in pairwise([*row.sizes, None])
        if size is not None and (later is None or later.at_s > from_s)
    ][-MOST_STEPS:]
    has_ended = record is None or record.has_ended
    return {
        "id": row.job,
        "name": _name(row),
        "user": row.user,
        "queue": row.queue,
        "submitted_s": None if record is None else record.job.submitted_s,
        "ended_s": row.until_s if has_ended else None,
        "state": "" if record is None else record.state,
        "is_mean": record is None or record.has_dropped_changes,
        "steps": [[round(size.at_s, 3), size.gpus, size.gpu_type, size.reason] for size in sizes],
    }


@router.get("/timeline/forecast", response_model=over_time_schemas.SizesAhead)
async def forecast(
    request: Request,
    service: Asked,
    caller: Who,
    hours: Annotated[float, Query(gt=0, le=48, allow_inf_nan=False, description="how far ahead")] = 2.0,
    job: Annotated[list[str], Query(max_length=MOST_JOBS, description="jobs that are told one by one")] = [],  # noqa: B006
    draws: Annotated[int, Query(ge=1, le=64)] = 9,
) -> dict[str, Any]:
    """How many GPUs jobs would hold if no other comes: the middle of some futures, and their span."""
    require_nodes(service)
    forks: list[Fork] = []

    async def prepare() -> Work:
        # Once the turn has come: jobs may have started since it was asked for.
        state, now_s, memory = service.state, service.clock.now_s(), service.scheduling.memory
        fork = replace(fork_of(state, now_s, memory=memory), corrections=service.forecasts.corrections)
        forks.append(fork)
        own = _own(service, caller, job)
        ahead = Ahead(hours * 3600.0, own)
        question = await asyncio.to_thread(packed, sizes_ahead, fork, ahead, state.unix_s, draws)
        return answered, (state.configured, question)

    answer: dict[str, Any] = await while_listening(
        request, worked(service.long_work, caller, "the forecast", prepare)
    )
    now_s = forks[0].now_s
    return {"now_s": now_s, "unix_s": service.state.calendar.unix_at(now_s), **answer}


def _own(service: Service, caller: Caller, jobs: Iterable[str]) -> tuple[str, ...]:
    """Those that are there and the caller's to see, each once."""
    known = service.state.jobs
    return tuple(name for name in dict.fromkeys(jobs) if name in known and caller.owns(known[name]))
