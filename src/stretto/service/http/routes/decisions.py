"""The newest decisions, as people and programs see them."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from stretto.service.http import schemas
from stretto.service.http.auth import Asked, Role, Who
from stretto.service.http.problems import Json
from stretto.service.service import Service
from stretto.service.state.events import Decided, Event

router = APIRouter(prefix="/api/v1", tags=["cluster"])

KEPT = 200


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
        }


@router.get("/decisions", response_model=schemas.Decisions)
async def decisions(
    request: Request, service: Asked, caller: Who, limit: Annotated[int, Query(ge=1, le=200)] = 1
) -> Response:
    """The newest decisions since the service was started: their prices, gap and times, the latest first."""
    planned: DecisionHistory = request.app.state.planned
    return Json(planned.shown(limit, caller.role >= Role.OPERATOR), status_code=HTTPStatus.OK)
