"""How the training of one job went: its loss, its speed at each size, and what changes of size cost."""

import asyncio
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from stretto.model import View, ints
from stretto.scheduler.constraints.job_rows import select_jobs
from stretto.scheduler.round import Scheduler
from stretto.service.http import over_time_schemas
from stretto.service.http.auth import Asked, Who
from stretto.service.http.problems import Json
from stretto.service.http.routes.jobs import job_of
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.service import Service
from stretto.service.state.events import Configured
from stretto.service.state.records import JobRecord
from stretto.service.state.size_changes import sizes_of
from stretto.service.state.training_history import (
    Happened,
    Point,
    paces_of,
    points_of,
    resizes_of,
    thinned,
)

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

MOST_POINTS = 400  # of a curve; chosen: a picture has some hundred pixels for them
MOST_RESIZES = 100  # the newest; chosen
MOST_EVENTS = 20_000  # of one job, that are looked at; chosen
KINDS = frozenset(
    {"Reported", "WorkersWanted", "WorkersRan", "Generation", "Joined", "WorkersJoined", "AttemptClosed"}
)
SIGNIFICANT = 4  # digits of a speed; chosen: no measurement has more


@router.get("/{job}/training", response_model=over_time_schemas.Training)
async def training(job: str, request: Request, service: Asked, caller: Who) -> Response:
    """Loss and batch over time, measured beside believed speed, and what each change of size cost."""
    record = await job_of(service, caller, job)
    events = await asyncio.to_thread(_events_of, service, record)
    sizes = sizes_of(record, service.state.unix_s)
    points = points_of(events)
    if (newest := _newest(service, record)) is not None and (not points or newest.at_s > points[-1].at_s):
        points.append(newest)
    now_s = service.clock.now_s()
    return Json(
        {
            "now_s": now_s,
            "unix_s": service.state.calendar.unix_at(now_s),
            "points": [asdict(point) for point in thinned(points, MOST_POINTS)],
            "resizes": [asdict(resize) for resize in list(resizes_of(sizes, events))[-MOST_RESIZES:]],
            "measured": [
                {**asdict(pace), "steps_per_s": _rounded(pace.steps_per_s)}
                for pace in paces_of(events, sizes)
            ],
            "believed": await asyncio.to_thread(request.app.state.beliefs.of, record),
        }
    )


def _events_of(service: Service, record: JobRecord) -> list[Happened]:
    store = service.log_writer.store
    recorded = store.read(kinds=KINDS, subjects={record.id}, limit=MOST_EVENTS)
    return [Happened(one.at_s, one.kind, one.body) for one in recorded]


def _newest(service: Service, record: JobRecord) -> Point | None:
    """What was reported last, which may not be in the log yet."""
    learned = service.reports.shown(record).learned
    told = Happened(learned.reported_s, "Reported", {"report": learned.latest})
    return next(iter(points_of([told])), None)


@dataclass
class Beliefs:
    """What the policy believes of single jobs, for people.

    With an estimator of its own: that of decisions works in another thread, and remembers what it answered.
    """

    service: Service
    _scheduler: Scheduler | None = None
    _of: Configured | None = None
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def of(self, record: JobRecord) -> list[dict[str, Any]]:
        """Goodput of a job by GPU type and number, on the fewest nodes, as the policy was shown it last.

        In steps of the initial batch a second. Empty where the policy looks at no goodput, or at no such job.
        """
        snapshot, configured = self.service.scheduling.latest_snapshot, self.service.state.configured
        if snapshot is None or View.GOODPUT_MODEL not in self.service.scheduling.scheduler.policy.views:
            return []
        rows = [row for row, name in enumerate(snapshot.jobs.ids) if name == record.job.id]
        if not rows or snapshot.jobs.evidence[rows[0]] is None:  # of that only a table is known
            return []
        with self._one_at_a_time:
            if self._scheduler is None or self._of is not configured:
                self._scheduler, self._of = scheduler_of(configured), configured
            policy = self._scheduler.policy
            alone = select_jobs(snapshot.jobs, ints(rows), {}, snapshot.placement)
            seen = replace(snapshot, jobs=alone).limited_to(policy.views)
            configurations = policy.configurations(snapshot.cluster)
            per_s = self._scheduler.estimator.estimate(seen, configurations).per_s[0]
        best: dict[tuple[int, int], float] = {}
        for index in np.flatnonzero(np.isfinite(per_s)).tolist():
            key = int(configurations.kind[index]), int(configurations.gpus[index])
            best[key] = max(best.get(key, 0.0), float(per_s[index]))
        names = snapshot.cluster.type_names
        return [
            {"gpu_type": names[kind], "gpus": gpus, "steps_per_s": _rounded(best[kind, gpus])}
            for kind, gpus in sorted(best)
            if best[kind, gpus] > 0 and gpus <= record.job.max_gpus
        ]


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")
