"""Jobs that wait: which of them starts next, and when each job would start and end.

Futures of all jobs take seconds to simulate. So they are simulated once for all users who look.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from stretto.model import StrettoError, traits_of
from stretto.service.forecast.fork import fork_of
from stretto.service.forecast.line import LineAhead, line_ahead
from stretto.service.forecast.simulate import answered, packed, span_json
from stretto.service.http import over_time_schemas
from stretto.service.http.auth import Asked, Caller, Who
from stretto.service.http.problems import Json
from stretto.service.kept_forecasts import MOST_WAITING
from stretto.service.pool import Closed, OutOfMemory, OutOfTime, TooManyWaiting
from stretto.service.pool.pool import Work
from stretto.service.scheduling.loop import SchedulingLoop
from stretto.service.service import Service
from stretto.service.state.records import JobRecord

router = APIRouter(prefix="/api/v1", tags=["foresight"])

EVERY_S, PATIENT = (
    30.0,
    8.0,
)  # between two forecasts, and times what one took; chosen: an eighth of a core at most
OLD_S = 300.0  # after which a forecast says nothing any more, or ten times what it took; chosen
MOST_JOBS = 200  # that are told of one by one; chosen: more than a page shows
FRESH_S = 0.5  # for which a line is not looked at again; chosen
NOBODY = ""  # the user of a forecast that is everybody's

log = logging.getLogger(__name__)


@dataclass
class SharedForecast:
    """The newest futures of all jobs, and those that are being worked out. Wall times are monotonic."""

    service: Service
    latest: LineAhead | None = None
    failed: str = ""
    made_s: float = 0.0
    took_s: float = 0.0
    _line: list[str] = field(default_factory=list, repr=False)
    _line_s: float = -inf
    _line_of: LineAhead | None = field(default=None, repr=False)
    _task: "asyncio.Task[None] | None" = field(default=None, repr=False)

    @property
    def is_working(self) -> bool:
        """Whether another one is on its way."""
        return self._task is not None and not self._task.done()

    def current(self) -> LineAhead | None:
        """What is known; a new one is begun where that is old. None: nothing yet."""
        age_s = time.monotonic() - self.made_s
        if not self.is_working and (self.made_s == 0.0 or age_s >= max(EVERY_S, PATIENT * self.took_s)):
            self._task = asyncio.ensure_future(self._work())
        return self.latest if age_s < max(OLD_S, 10.0 * self.took_s) else None

    async def line(self, foreseen: LineAhead | None) -> list[str]:
        """Jobs that wait: those whose start is foreseen, then those that the policy knows, then others."""
        if time.monotonic() - self._line_s > FRESH_S or self._line_of is not foreseen:
            scheduling, known = self.service.scheduling, self.service.state.jobs
            snapshot, scheduler = scheduling.latest_snapshot, scheduling.scheduler
            in_order = await asyncio.to_thread(scheduling.line.ids, snapshot, scheduler)
            others = (record.id for record in self.service.state.open_jobs())
            names = dict.fromkeys([*(() if foreseen is None else foreseen.line), *in_order, *others])
            self._line = [name for name in names if name in known and _waits(known[name])]
            self._line_s, self._line_of = time.monotonic(), foreseen
        return self._line

    async def _work(self) -> None:
        began_s, service = time.monotonic(), self.service

        async def prepare() -> Work:
            now_s, memory = service.clock.now_s(), service.scheduling.memory
            fork = fork_of(service.state, now_s, memory=memory, most_waiting=MOST_WAITING)
            fork = replace(fork, corrections=service.forecasts.corrections)
            return answered, (service.state.configured, await asyncio.to_thread(packed, line_ahead, fork))

        try:
            self.latest, self.failed = await service.long_work.call(NOBODY, prepare), ""
        except (Closed, OutOfMemory, OutOfTime, TooManyWaiting, StrettoError) as wrong:
            self.failed = str(wrong) or "it took too long, or too much memory"
            log.info("no forecast of the line: %s", self.failed)
        self.made_s = time.monotonic()
        self.took_s = self.made_s - began_s


@router.get("/line", response_model=over_time_schemas.WaitingLine)
async def line(
    request: Request,
    service: Asked,
    caller: Who,
    job: Annotated[list[str], Query(max_length=MOST_JOBS, description="jobs that are told one by one")] = [],  # noqa: B006
    limit: Annotated[int, Query(ge=0, le=20_000)] = 500,
) -> Response:
    """Jobs that wait, the next to start first: as far as that is foreseen, then in the policy's order."""
    scheduling: SchedulingLoop = service.scheduling
    shared: SharedForecast = request.app.state.shared_forecast
    foreseen = shared.current() if service.state.cluster is not None else None
    waiting = await shared.line(foreseen)
    return Json(
        {
            "waiting": len(waiting),
            "policy": service.state.configured.policy,
            "order": traits_of(scheduling.scheduler.policy).order,
            "line": own_places(service, caller, waiting, limit),
            "forecast": None if foreseen is None else told(service, caller, foreseen, job),
            "is_foreseeing": shared.is_working,
            "failed": shared.failed,
        }
    )


def own_places(service: Service, caller: Caller, ids: Sequence[str], limit: int) -> list[tuple[str, int]]:
    """Those that are the caller's to see, with their place among all, from 1 on; the first ones."""
    known = service.state.jobs
    own = (
        (name, place) for place, name in enumerate(ids, start=1) if name in known and caller.owns(known[name])
    )
    return list(islice(own, limit))


def told(service: Service, caller: Caller, foreseen: LineAhead, jobs: Iterable[str]) -> dict[str, Any]:
    """A forecast, with some of the caller's jobs one by one."""
    calendar, known, unix_s = service.state.calendar, service.state.jobs, service.state.unix_s
    own = [name for name in jobs if name in foreseen.spans and name in known and caller.owns(known[name])]
    return {
        "draws": foreseen.draws,
        "made_unix_s": calendar.unix_at(foreseen.now_s),
        "until_unix_s": calendar.unix_at(foreseen.until_s),
        "started": len(foreseen.line),
        "jobs": {
            name: dict(
                zip(("start", "end"), (span_json(span, unix_s) for span in foreseen.spans[name]), strict=True)
            )
            for name in own
        },
    }


def _waits(record: JobRecord) -> bool:
    return not record.has_ended and not record.accounting.held_gpus
