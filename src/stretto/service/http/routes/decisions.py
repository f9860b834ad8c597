"""The newest decisions, as people and programs see them."""

import shlex
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response

from stretto.service.http import over_time_schemas, schemas
from stretto.service.http.auth import Asked, Role, Who, require
from stretto.service.http.pool_calls import while_listening, worked
from stretto.service.http.price_history import PriceHistory
from stretto.service.http.problems import Json
from stretto.service.one_decision import decision_at
from stretto.service.pool.pool import Work
from stretto.service.service import Service
from stretto.service.state.events import Decided, Event

router = APIRouter(prefix="/api/v1", tags=["cluster"])

KEPT = 200
MOST_PRICES = 400  # of each type; chosen: a picture has some hundred pixels for them


@dataclass
class DecisionHistory:
    """Keeps the newest decisions since this process began."""

    service: Service
    latest: deque[tuple[int, Decided]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def __post_init__(self) -> None:
        """Listen to what happens."""
        self.service.log_writer.listeners.append(self.heard)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Keep decisions."""
        self.latest.extend((seq, event) for seq, event in told if isinstance(event, Decided))

    def shown(self, limit: int, whole: bool) -> dict[str, Any]:
        """The newest `limit`, the latest first; their actions too where the whole may be seen."""
        state = self.service.state
        took_ms = [event.took_ms for _, event in self.latest]
        names = state.cluster.type_names if state.cluster is not None else ()
        return {
            "policy": state.configured.policy,
            "decisions": [
                {
                    "seq": seq,
                    "at_s": event.at_s,
                    "seen": event.seen,
                    "due": list(event.due),
                    "took_ms": event.took_ms,
                    # Types that came later have no price in an older decision.
                    "prices": None
                    if event.prices is None
                    else dict(zip(names, map(float, event.prices), strict=False)),
                    "gap": event.gap,
                    "wake_s": event.wake_s,
                    "changes": dict(Counter(action["verb"] for action in event.actions)),
                    "actions": list(event.actions) if whole else None,
                }
                for seq, event in list(self.latest)[: -limit - 1 : -1]
            ],
            "took_ms_p50": float(np.percentile(took_ms, 50)) if took_ms else None,
            "took_ms_p95": float(np.percentile(took_ms, 95)) if took_ms else None,
            "dropped": state.dropped,
            "again": command_of(self.service, "") if whole else "",
        }


@router.get("/decisions/{seq}/again", response_model=over_time_schemas.DecisionAgain)
async def again(
    seq: Annotated[int, Path(ge=1, le=schemas.LARGEST_NUMBER)], request: Request, service: Asked, caller: Who
) -> dict[str, Any]:
    """A decision made again from the log: what it saw, what it changed, and why the other jobs wait."""
    require(caller, Role.OPERATOR, "replay decisions")
    address = service.log_writer.store.engine.url.render_as_string(hide_password=False)

    async def prepare() -> Work:
        return decision_at, (address, service.context.key, seq)

    asked = worked(service.long_work, caller, "the replay", prepare)
    answer: dict[str, Any] = await while_listening(request, asked)
    return {**answer, "command": command_of(service, seq)}


@router.get("/prices", response_model=over_time_schemas.PricesOverTime)
async def prices(
    request: Request,
    service: Asked,
    caller: Who,
    hours: Annotated[float, Query(gt=0, le=168, allow_inf_nan=False, description="how far back")] = 4.0,
) -> Response:
    """What one more GPU of each type was worth over the last `hours`, as decisions said."""
    state, now_s = service.state, service.clock.now_s()
    history: PriceHistory = request.app.state.prices
    from_s = max(now_s - hours * 3600.0, 0.0)
    rows = await history.since(from_s, MOST_PRICES)
    return Json(
        {
            "now_s": now_s,
            "unix_s": state.calendar.unix_at(now_s),
            "from_s": from_s,
            "gpu_types": list(state.cluster.type_names) if state.cluster is not None else [],
            "steps": [[max(at_s, from_s), [float(f"{price:.4g}") for price in row]] for at_s, row in rows],
        }
    )


def command_of(service: Service, seq: int | str) -> str:
    """The command that makes a decision again, on the machine of the service."""
    where = service.log_writer.store.name
    return f"stretto simulate --from-log {shlex.quote(where)} --decision {seq}".rstrip()


@router.get("/decisions", response_model=over_time_schemas.Decisions)
async def decisions(
    request: Request, service: Asked, caller: Who, limit: Annotated[int, Query(ge=1, le=200)] = 1
) -> Response:
    """The newest decisions since the service was started: their prices, gap and times, the latest first."""
    planned: DecisionHistory = request.app.state.planned
    return Json(planned.shown(limit, caller.role >= Role.OPERATOR), status_code=HTTPStatus.OK)
